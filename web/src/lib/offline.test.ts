import { describe, expect, it } from 'vitest'
import { check } from './expression'
import { explainOffline } from './explain_offline'
import { cut, floats } from './offline'
import type { At, ModelInfo, TraceInfo } from './types'

it('reads little-endian float32', () => {
  const bytes = new Uint8Array(new Float32Array([1.5, -2, Infinity]).buffer)
  expect([...floats(btoa(String.fromCharCode(...bytes)))]).toEqual([1.5, -2, Infinity])
})

it('cuts slices along any axis', () => {
  const values = Float32Array.from({ length: 24 }, (_, i) => i) // [2, 3, 4]
  expect(cut(values, [2, 3, 4], [1, null, null])).toEqual({ shape: [3, 4], values: values.slice(12) })
  expect([...cut(values, [2, 3, 4], [null, 2, 1]).values]).toEqual([9, 21])
  expect([...cut(values, [2, 3, 4], [1, 2, 3]).values]).toEqual([23])
})

describe('sums without weights', () => {
  // One head of two tokens and width 2, by hand.
  const numbers: Record<string, { axes: string; shape: number[]; values: number[] }> = {
    'encoder.blocks.0.input': { axes: 'BTD', shape: [1, 2, 2], values: [1, 2, 3, 5] },
    'encoder.blocks.0.self_attention_norm.mean': { axes: 'BT1', shape: [1, 2, 1], values: [1.5, 4] },
    'encoder.blocks.0.self_attention_norm.variance': { axes: 'BT1', shape: [1, 2, 1], values: [0.25, 1] },
    'encoder.blocks.0.self_attention_norm.normalized': { axes: 'BTD', shape: [1, 2, 2], values: [-0.99998, 0.99998, -0.999995, 0.999995] },
    'encoder.blocks.0.self_attention.queries': { axes: 'BHTK', shape: [1, 1, 2, 2], values: [1, 0, 2, 1] },
    'encoder.blocks.0.self_attention.keys': { axes: 'BGSK', shape: [1, 1, 2, 2], values: [1, 1, 0, 3] },
    'encoder.blocks.0.self_attention.values': { axes: 'BGSK', shape: [1, 1, 2, 2], values: [1, 2, 3, 4] },
    'encoder.blocks.0.self_attention.scores': { axes: 'BHTS', shape: [1, 1, 2, 2], values: [1, 0, 3, 3] },
    'encoder.blocks.0.self_attention.scaled_scores': { axes: 'BHTS', shape: [1, 1, 2, 2], values: [1, 0, 3, 3].map((x) => x / Math.SQRT2) },
    'encoder.blocks.0.self_attention.masked_scores': { axes: 'BHTS', shape: [1, 1, 2, 2], values: [Math.SQRT1_2, -Infinity, 3 / Math.SQRT2, 3 / Math.SQRT2] },
    'encoder.blocks.0.self_attention.weights': { axes: 'BHTS', shape: [1, 1, 2, 2], values: [1, 0, 0.5, 0.5] },
    'encoder.blocks.0.self_attention.heads': { axes: 'BHTK', shape: [1, 1, 2, 2], values: [1, 2, 2, 3] },
    'encoder.blocks.0.self_attention.concatenated': { axes: 'BTE', shape: [1, 2, 2], values: [1, 2, 2, 3] },
    'encoder.blocks.0.self_attention.output': { axes: 'BTD', shape: [1, 2, 2], values: [0.5, 0.5, 1, 1] },
    'encoder.blocks.0.self_attention_add': { axes: 'BTD', shape: [1, 2, 2], values: [1.5, 2.5, 4, 6] },
  }
  const info = {
    id: 'here', model: 'm', precision: { epsilon: 2 ** -23, smallest: 2 ** -149 },
    values: Object.entries(numbers).map(([name, { axes, shape }]) => ({ name, axes, shape, formula: '' })),
  } as unknown as TraceInfo
  const model = { name: 'm', encoder: { norm_place: 'pre', norm_epsilon: 1e-5, scaled_scores: true } } as unknown as ModelInfo
  const read = (name: string, at: At): number[] => [...cut(Float32Array.from(numbers[name]!.values), numbers[name]!.shape, at).values]

  for (const [name, { shape }] of Object.entries(numbers)) {
    const known = !/(queries|keys|values|attention\.output|input)$/.test(name)
    it(`${known ? 'explains' : 'has no weights for'} ${name}`, () => {
      const size = shape.reduce((n, each) => n * each, 1)
      for (let i = 0; i < size; i++) {
        let rest = i
        const at = shape.toReversed().map((n) => { const place = rest % n; rest = Math.floor(rest / n); return place }).reverse()
        const explain = () => explainOffline(info, model, name, at, read)
        if (!known) expect(explain).toThrow(/needs weights, which are not in this file/)
        else expect(check(explain())).toMatchObject({ agrees: true })
      }
    })
  }
})
