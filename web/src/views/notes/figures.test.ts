import { describe, expect, it } from 'vitest'
import type { NoteStep, Printing } from '../../lib/types'
import { figure, lineOf, markOf, printsOf, raised, rowsOf } from './figures'

const weights: NoteStep = {
  name: 'weights', formula: '', value: [[0.7311, 0.2689], [0.5, 0.5]], rows: ['q', 'r'], columns: ['k1', 'k2'],
  lines: [{ of: '', text: 'a word' }, { of: 'q → k1', text: 'first' }, { of: 'q → k2', text: 'second' }, { of: 'r', text: 'row' }],
}

describe('figures', () => {
  it('are written as the server writes them', () => {
    const cases: [number | '-inf', string][] = [
      [2, '2'], [0.30000000000000004, '0.3'], [0.99995, '0.99995'], [0.7310585786300049, '0.7311'], [-1.3416, '−1.3416'],
      [63082496, '63,082,496'], [-0.00000001, '0'], ['-inf', '−∞'], [54.59815003, '54.59815'],
    ]
    for (const [value, said] of cases) expect(figure(value)).toBe(said)
  })

  it('are rows', () => {
    expect(rowsOf(5)).toEqual([[5]])
    expect(rowsOf([1, 2])).toEqual([[1, 2]])
    expect(rowsOf([[1], [2]])).toEqual([[1], [2]])
  })
})

describe('sums', () => {
  it('belong to a number or to its row', () => {
    expect(lineOf(weights, { row: 0, column: 1 })).toBe(2)
    expect(lineOf(weights, { row: 1, column: 1 })).toBe(3)
    const vector = { ...weights, value: [1, 2], rows: [], columns: [], lines: [{ of: '1', text: '' }, { of: '2', text: '' }] }
    expect(lineOf(vector, { row: 0, column: 1 })).toBe(1)
    const named = { ...vector, lines: [{ of: 'The, 1', text: '' }, { of: 'The, 2', text: '' }] }
    expect(lineOf(named, { row: 0, column: 1 })).toBe(1)
    const single = { ...vector, value: 5, lines: [{ of: 'μ', text: '' }] }
    expect(lineOf(single, { row: 0, column: 0 })).toBe(0)
    expect(lineOf({ ...vector, lines: [{ of: '', text: '' }] }, { row: 0, column: 0 })).toBe(-1)
  })

  it('have raised exponents', () => {
    expect(raised('e^-0.5 / (e^3) - 10000^(2/4)').map(({ text, raised }) => (raised ? `<${text}>` : text)).join('')).toBe(
      'e<−0.5> / (e<3>) − 10000<2/4>',
    )
    expect(raised('may not look at 2: -∞').map(({ text }) => text).join('')).toBe('may not look at 2: −∞')
    expect(raised('look-ahead')[0]!.text).toBe('look-ahead')
  })
})

describe('printings', () => {
  const printing: Printing = { note: 'one', of: 'weights', value: ['0.75', '0.27'], row: 'q', differs: true }

  it('have their wrong numbers', () => {
    const wrong = [{ note: 'one', of: 'weights', where: 'q → k1', printed: '0.75', true: '0.7311' }]
    expect(printsOf(weights, printing, wrong).rows).toEqual([[{ text: '0.75', true: '0.7311' }, { text: '0.27', true: null }]])
    expect(printsOf(weights, { ...printing, note: 'two' }, wrong).rows[0]![0]!.true).toBeNull()
  })

  it('may have too many', () => {
    const shape = { note: 'one', of: 'weights', where: 'how many', printed: '7 numbers', true: '6 numbers' }
    expect(printsOf(weights, printing, [shape]).shape).toEqual(shape)
  })

  it('are marked', () => {
    expect(markOf({ printed: [], differs: false })).toBe('absent')
    expect(markOf({ printed: [printing], differs: true })).toBe('wrong')
    expect(markOf({ printed: [printing], differs: false })).toBe('right')
  })
})
