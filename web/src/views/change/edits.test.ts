import { describe, expect, it } from 'vitest'
import type { ModelInfo } from '../../lib/types'
import { changesField, headOff, offAt, placesOf, setCell, swapWord, toggleHead, toggleHeads, toggleOff, type Change } from './edits'
import { placeName, changeSentence } from './sentences'

const A = 'encoder.blocks.0.self_attention'

describe('heads', () => {
  it('go off and on', () => {
    const off = toggleHead([], A, 2, 4)
    expect(off).toEqual([{ kind: 'zero', value: `${A}.heads`, head: 2 }])
    expect(headOff(off, A, 2)).toBe(true)
    expect(headOff(off, A, 1)).toBe(false)
    expect(toggleHead(off, A, 2, 4)).toEqual([])
  })

  it('are all off by one edit, and all but one by one each', () => {
    const all = toggleHeads(toggleHead([], A, 1, 3), A, 3)
    expect(all).toEqual([{ kind: 'zero', value: `${A}.heads` }])
    expect(headOff(all, A, 0)).toBe(true)
    expect(toggleHead(all, A, 0, 3).map((each) => each.kind === 'zero' && each.head)).toEqual([1, 2])
    expect(toggleHeads(all, A, 3)).toEqual([])
  })

  it('come back together when all were off one by one', () => {
    const each = [0, 1].reduce<Change[]>((changes, head) => toggleHead(changes, A, head, 2), [])
    expect(toggleHeads(each, A, 2)).toEqual([])
  })
})

describe('switches', () => {
  it('are off everywhere or in places, not both', () => {
    const everywhere = toggleOff([], 'scaling', '*')
    expect(everywhere).toEqual([{ kind: 'off', what: 'scaling' }])
    const one = toggleOff(everywhere, 'scaling', A)
    expect(offAt(one, 'scaling')).toEqual([A])
    expect(offAt(toggleOff(one, 'scaling', 'decoder.blocks.0'), 'scaling')).toEqual([A, 'decoder.blocks.0'])
    expect(toggleOff(one, 'scaling', '*')).toEqual(everywhere)
    expect(toggleOff(everywhere, 'scaling', '*')).toEqual([])
  })

  it('are where the model has them', () => {
    const model = {
      encoder: { blocks: 2, d_model: 4, positions: 'sinusoidal' },
      decoder: { blocks: 1, d_model: 4, positions: 'sinusoidal' },
      attentions: [{ name: A, kind: 'encoder', block: 0, heads: 2 }],
    } as unknown as ModelInfo
    expect(placesOf(model, 'mask')).toEqual([])
    expect(placesOf(model, 'scaling')[0]!.places).toEqual([{ label: '0', where: A }])
    expect(placesOf(model, 'block').map(({ places }) => places.length)).toEqual([2, 1])
    expect(placesOf(model, 'residual').map(({ label }) => label)).toContain('cross-attention')
    expect(placesOf(model, 'positions').flatMap(({ places }) => places.map(({ where }) => where))).toEqual(['encoder', 'decoder'])
  })
})

it('a cell and a word have one new value each', () => {
  const cell = { kind: 'set', value: `${A}.weights`, at: [0, 0, 1, 2], to: 0.5 } as const
  expect(setCell(setCell([], { ...cell, at: [...cell.at] }), { ...cell, at: [...cell.at], to: 0.9 })).toMatchObject([{ to: 0.9 }])
  const swap = { kind: 'swap', word: 1, from: 'cat', to: 'dog' } as const
  expect(swapWord(swapWord([], swap), { ...swap, to: 'cow' })).toEqual([{ ...swap, to: 'cow' }])
  expect(swapWord(swapWord([], swap), { ...swap, to: 'cat' })).toEqual([])
})

describe('the address', () => {
  it('keeps all changes', () => {
    const changes: Change[] = [{ kind: 'off', what: 'mask' }, { kind: 'swap', word: 3, from: 'a&b', to: '“c”' }]
    expect(changesField.read(changesField.write(changes))).toEqual(changes)
    expect(changesField.write([])).toBe('')
  })

  it('may say anything', () => {
    for (const said of ['', '{', '{}', '[1, null, "x", {"kind": "explode"}, {"kind": "zero"}, {"kind": "set", "value": "a"}]']) {
      expect(changesField.read(said)).toEqual([])
    }
  })
})

describe('sentences', () => {
  it('name places', () => {
    expect(placeName('decoder.blocks.0.cross_attention')).toBe('decoder block 0, cross-attention')
    expect(placeName('encoder')).toBe('encoder')
    expect(placeName('encoder.*')).toBeNull()
  })

  it('say each change', () => {
    expect(changeSentence({ kind: 'off', what: 'scaling' })).toBe('Scores are not divided by √d_k: everywhere.')
    expect(changeSentence({ kind: 'off', what: 'block', where: 'encoder.blocks.1' })).toBe('A block passes its input on unchanged: encoder block 1.')
    expect(changeSentence({ kind: 'zero', value: `${A}.heads`, head: 3 })).toBe('Head 3 is zero: encoder block 0, self-attention.')
    expect(changeSentence({ kind: 'scale', value: '*.output', by: -0.5 })).toBe('*.output is multiplied by −0.5.')
    expect(changeSentence({ kind: 'swap', word: 1, from: 'cat', to: 'dog' })).toBe('“cat” becomes “dog”.')
    const set: Change = { kind: 'set', value: `${A}.weights`, at: [0, 2, 1, 4], to: 0.9, renormalise: true }
    expect(changeSentence(set, () => ({ query: 'it', key: 'cat' }))).toBe(
      'The weight of “cat” for “it” is 0.9; the row still sums to 1: encoder block 0, self-attention, head 2.',
    )
  })
})
