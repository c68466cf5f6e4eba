import { describe, expect, it } from 'vitest'
import { aToken, orUsual, someHeads } from './address'
import { along, linkAt, type Place } from './lines'
import { pieceExplanation, placeIn } from './link_sum'
import { groups, links, mostOf, moved, weightsOf, share, strongest, usualLeast, weightAt } from './weights'
import { check } from '../../lib/expression'
import type { Tok } from '../../lib/types'

const tok = (text: string, word: number): Tok => ({ id: 0, text, word })
const queries = [tok('The', 0), tok('▁cat', 1), tok('##s', 1)]
const keys = [tok('▁', 0), tok('Les', 0), tok('▁chats', 1)]
// two heads, three queries, three keys
const values = Float32Array.from([0.2, 0.3, 0.5, 0.1, 0.1, 0.8, 0.3, 0.3, 0.4, 1, 0, 0, 0, 1, 0, 0, 0, 1])

describe('words', () => {
  it('puts the pieces of a word together', () => {
    expect(groups(queries, 'word')).toEqual([
      { label: 'The', pieces: [0] },
      { label: 'cats', pieces: [1, 2] },
    ])
    expect(groups(keys, 'word').map(({ label }) => label)).toEqual(['Les', 'chats'])
    expect(groups(keys, 'token')).toHaveLength(3)
  })

  it('sums over the keys of a word and averages over its queries', () => {
    const weights = weightsOf('word', 'a.weights', values, 2, queries, keys)
    expect([weights.rows, weights.columns]).toEqual([2, 2])
    expect(weightAt(weights, 0, 0, 0)).toBeCloseTo(0.5)
    expect(weightAt(weights, 0, 1, 0)).toBeCloseTo((0.2 + 0.6) / 2)
    expect(weightAt(weights, 1, 1, 1)).toBeCloseTo(0.5)
    for (let head = 0; head < 2; head++) {
      for (let row = 0; row < 2; row++)
        expect(weightAt(weights, head, row, 0) + weightAt(weights, head, row, 1)).toBeCloseTo(1)
    }
  })

  it('finds the same place on the other level', () => {
    const [word, token] = [weightsOf('word', '', values, 2, queries, keys), weightsOf('token', '', values, 2, queries, keys)]
    expect(moved(2, token.rowPieces, word.rowPieces)).toBe(1)
    expect(moved(1, word.rowPieces, token.rowPieces)).toBe(1)
  })

  it('writes the link of a word as a sum that comes out right', () => {
    const token = weightsOf('token', '', values, 2, queries, keys)
    const value = { name: 'a.weights', axes: 'BHTS', shape: [1, 2, 3, 3], formula: '' }
    const whole = pieceExplanation(value, token, 0, [1, 2], [0, 1])
    expect(whole.value).toBeCloseTo(0.4)
    expect(check(whole).agrees).toBe(true)
    expect(placeIn({ ...value, axes: 'BTS' }, { head: 0, query: 2, key: 1 })).toEqual([0, 2, 1])
  })
})

describe('links', () => {
  const weights = weightsOf('token', '', values, 2, queries, keys)

  it('are those of the chosen heads that are strong enough', () => {
    expect(links(weights, [0], 0.5)).toHaveLength(2)
    expect(links(weights, [], 0)).toHaveLength(0)
    expect(links(weights, [1], 0)).toHaveLength(3) // nothing is no link
    expect(links(weights, [0, 1], 0, { side: 'query', place: 1 }).every(({ query }) => query === 1)).toBe(true)
    expect(links(weights, [0], 0, { side: 'key', place: 2 }).map(({ weight }) => weight)).toHaveLength(3)
  })

  it('are listed from the strongest', () => {
    const [first, second] = strongest(links(weights, [0, 1], 0), 2)
    expect(first).toMatchObject({ head: 1, query: 0, key: 0 })
    expect(second!.weight).toBe(1)
    expect(mostOf(weights, [0])).toBeCloseTo(0.8)
  })

  it('are hidden where there are too many', () => {
    const even = (n: number, weight: number): number =>
      usualLeast({ ...weights, heads: 1, rows: n, columns: n, values: new Float32Array(n * n).fill(weight) })
    expect(even(4, 0.25)).toBe(0.001) // few enough: all are shown
    expect(even(50, 0.025)).toBe(0.03)
    expect(even(20, 0.5)).toBe(0.1) // never above a tenth
    expect(share(0.104)).toBe('0.10')
    expect(share(0.002)).toBe('0.002')
    expect(share(0)).toBe('0.00')
  })
})

describe('curves', () => {
  const place: Place = { width: 212, row: 20, scrolled: 0, height: 60, margin: 6 }

  it('run from one end to the other', () => {
    expect(along(0, place)).toBe(0)
    expect(along(106, place)).toBeCloseTo(0.5)
    expect(along(300, place)).toBe(1)
  })

  it('are found where they are', () => {
    const all = [
      { head: 0, query: 0, key: 2, weight: 0.5 },
      { head: 0, query: 2, key: 2, weight: 0.5 },
    ]
    expect(linkAt(all, [0], 106, 30, place)).toBe(all[0])
    expect(linkAt(all, [0], 106, 51, place)).toBe(all[1])
    expect(linkAt(all, [0], 106, 5, place)).toBeNull()
    expect(linkAt(all, [0], 2, 10, place)).toBeNull()
  })
})

describe('the address', () => {
  it('tells all heads from none', () => {
    expect(someHeads.read(someHeads.write([]))).toEqual([])
    expect(someHeads.read(someHeads.write(null))).toBeNull()
    expect(someHeads.read('2,x,5')).toEqual([2, 5])
  })

  it('holds a token', () => {
    expect(aToken.read('k12')).toEqual({ side: 'key', place: 12 })
    expect(aToken.read('12')).toBeNull()
    expect(aToken.write({ side: 'query', place: 3 })).toBe('q3')
  })

  it('holds a number or what is usual', () => {
    expect(orUsual.read('7')).toBe(1)
    expect(orUsual.read('x')).toBeNull()
  })
})
