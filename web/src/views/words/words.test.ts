import { describe, expect, it } from 'vitest'
import { lastAttention, mean, sharesOf } from './attention'
import { idsOf, mark, same, prefixField } from './prefix'
import { neighbour, treeOf } from './tree'
import { warping } from './warping'
import type { Beams, Candidate, ModelInfo } from '../../lib/types'

const candidate = (number: number, parent: number | null, score: number, more: Partial<Candidate> = {}): Candidate => ({
  number,
  parent,
  token: { id: 10 + number, text: `▁w${number}` },
  logprob: -1,
  score,
  kept: true,
  ended: false,
  ...more,
})

const beams: Beams = {
  steps: [
    [candidate(0, null, -1), candidate(1, null, -2), candidate(2, null, -3, { kept: false })],
    [candidate(3, 1, -2.5), candidate(4, 0, -1.5), candidate(5, 0, -4, { kept: false })],
    [
      candidate(6, 4, -1.6, { kept: false, ended: true, token: { id: 3, text: '</s>' } }),
      candidate(7, 3, -5, { kept: false }),
    ],
  ],
  texts: [{ text: 'w0 w4', score: -0.5, ids: [10, 14], ended: 'end', tokens: [] }],
}

describe('the tree', () => {
  const tree = treeOf(beams, [])

  it('has the best of each step above', () => {
    expect(tree.steps.map((step) => step.map(({ number }) => number))).toEqual([
      [0, 1, 2],
      [4, 3, 5],
      [6, 7],
    ])
    expect(tree.ranks).toBe(3)
    expect(tree.byNumber.get(7)!.ids).toEqual([11, 13, 17])
  })

  it('knows the path to the best hypothesis', () => {
    expect(tree.nodes.filter(({ best }) => best).map(({ number }) => number)).toEqual([0, 4, 6])
    expect(tree.byNumber.get(6)!.fate).toBe('ended')
    expect(tree.byNumber.get(2)!.fate).toBe('dropped')
  })

  it('can do without what was dropped', () => {
    expect(treeOf(beams, [], false).nodes.map(({ number }) => number)).toEqual([0, 1, 4, 3, 6])
  })

  it('is walked by arrow keys', () => {
    const at = (number: number, key: string): number | undefined =>
      neighbour(tree, tree.byNumber.get(number)!, key)?.number
    expect(at(4, 'ArrowLeft')).toBe(0)
    expect(at(0, 'ArrowLeft')).toBeUndefined()
    expect(at(0, 'ArrowRight')).toBe(4)
    expect(at(0, 'ArrowDown')).toBe(1)
    expect(at(0, 'ArrowUp')).toBeUndefined()
  })

  it('is a chain for one beam, after what was written', () => {
    const tokens = [5, 6, 7].map((id) => ({ id, text: `▁${id}`, logprob: -0.5 }))
    const one = treeOf({ steps: [], texts: [{ text: '', score: 0, ids: [5, 6, 7], ended: 'length', tokens }] }, [5])
    expect(one.nodes.map(({ ids, score, best }) => [ids, score, best])).toEqual([
      [[5, 6], -1, true],
      [[5, 6, 7], -1.5, true],
    ])
  })
})

describe('the text so far', () => {
  it('is of one text', () => {
    const said = prefixField.write({ of: mark('The cat'), ids: [3, 14] })
    expect(idsOf(prefixField.read(said), 'The cat')).toEqual([3, 14])
    expect(idsOf(prefixField.read(said), 'The dog')).toEqual([])
    expect(idsOf(prefixField.read('3,x,14'), 'The dog')).toEqual([3, 14])
    expect(prefixField.write({ of: 'abcd', ids: [] })).toBe('')
    expect(same([1, 2], [1, 2, 3])).toBe(false)
  })

  it('has its probabilities at the places before its words', () => {
    const top = (id: number) => [{ id, text: '', p: id / 10 }]
    const places = [1, 2, 3, 4].map((id) => ({ label: '', side: 'target' as const, top: top(id) }))
    expect(sharesOf(places, [2, 9])).toEqual([0.2, null])
    expect(sharesOf(places.slice(1), [2, 3])).toEqual([0.2, 0.3])
  })
})

describe('the attention', () => {
  it('is the mean of the heads', () => {
    expect(mean([0.2, 0.8, 0.6, 0.4], 2, 2).map((x) => Math.round(10 * x))).toEqual([4, 6])
  })

  it('is the source where there is one', () => {
    const attentions = [
      { name: 'd0', kind: 'decoder', block: 0, heads: 2 },
      { name: 'c0', kind: 'cross', block: 0, heads: 2 },
      { name: 'd1', kind: 'decoder', block: 1, heads: 2 },
    ]
    expect(lastAttention({ attentions } as ModelInfo)?.name).toBe('c0')
    expect(lastAttention({ attentions: attentions.filter(({ kind }) => kind === 'decoder') } as ModelInfo)?.name).toBe(
      'd1',
    )
    expect(lastAttention({ attentions: [] as ModelInfo['attentions'] } as ModelInfo)).toBeNull()
  })
})

describe('sampling', () => {
  it('leaves out what does nothing', () => {
    expect(warping({ temperature: 1, k: 0, p: 1, min: 0 })).toEqual({ request: {}, said: '' })
    expect(warping({ temperature: 0.7, k: 5, p: 0.9, min: 0.1 })).toEqual({
      request: { temperature: 0.7, top_k: 5, top_p: 0.9, min_p: 0.1 },
      said: 'temperature 0.7, top-k 5, top-p 0.9, min-p 0.1',
    })
  })
})
