import { expect, it } from 'vitest'
import type { Place, TraceInfo } from '../../lib/types'
import { apart, likeliest, moved, share, stages } from './compare'

it('measures distributions and vectors', () => {
  expect(apart([0.5, 0.5], [0.5, 0.5])).toBe(0)
  expect(apart([1, 0], [0, 1])).toBe(1)
  expect(apart([9, 0.25, 0.75], [1, 0], 1, 0, 2)).toBe(0.75)
  const [moved2, was2] = moved([0, 0, 3, 4], [3, 4], 2, 1, 0)
  expect(share(moved2, was2)).toBe(0)
  expect(share(...moved([3, 4], [6, 8], 2, 0, 0))).toBe(1)
  expect(share(...moved([-Infinity, 4], [-Infinity, 4], 2, 0, 0))).toBe(0)
})

it('takes the likeliest of both runs, with all that is known of them', () => {
  const place = (...top: [number, number][]): Place => ({ label: '', side: 'target', top: top.map(([id, p]) => ({ id, text: `w${id}`, p })) })
  const both = likeliest(place([1, 0.6], [2, 0.3]), place([3, 0.9]), 2, { before: [0, 0.6, 0.3, 0.05], after: [0, 0.01, 0.02, 0.9] })
  expect(both).toEqual([
    { id: 3, text: 'w3', before: 0.05, after: 0.9 },
    { id: 1, text: 'w1', before: 0.6, after: 0.01 },
  ])
  expect(likeliest(place([1, 0.6]), null, 5)).toEqual([{ id: 1, text: 'w1', before: 0.6, after: null }])
})

it('knows what is handed on in any family', () => {
  const names = ['encoder.embedding.output', 'encoder.blocks.0.input', 'encoder.blocks.0.output', 'encoder.forwards.0.hidden', 'encoder.output', 'decoder.output']
  const trace = { values: names.map((name) => ({ name })) } as unknown as TraceInfo
  expect(stages(trace, 'encoder').map(({ label }) => label)).toEqual(['embedding', 'block 0', 'layer 0, forward', 'output'])
})
