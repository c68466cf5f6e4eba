import { describe, expect, it } from 'vitest'
import { cells, check, erf, evaluate } from './expression'
import type { Expression, Num, Vector } from './types'
import { brief, formatExpression, formatSteps, plain } from './format'
import { tolerance } from './rounding'

const vector = (values: Num[], of: string | null = 'x', at: (number | null)[] | null = [0, null]): Vector => ({ op: 'vector', values, of, at })
const leaf = (value: Num, of: string | null = null): Expression => ({ op: 'number', value, of, at: of ? [0] : null })
const text = (expression: Expression, first: number | null = 4): string => formatExpression(expression, { first }).map((piece) => piece.text).join('')

describe('evaluate', () => {
  it('adds, multiplies, divides', () => {
    expect(evaluate({ op: 'sum', terms: [leaf(1), leaf(2.5)] })).toBe(3.5)
    expect(evaluate({ op: 'product', factors: [leaf(2), leaf(-3)] })).toBe(-6)
    expect(evaluate({ op: 'quotient', over: leaf(1), under: { op: 'call', function: 'sqrt', x: leaf(16) } })).toBe(0.25)
    expect(evaluate({ op: 'dot', a: vector([1, 2, 3]), b: vector([4, -5, 6]) })).toBe(12)
  })

  it('takes means, squares and variances', () => {
    expect(evaluate({ op: 'mean', x: vector([1, 2, 6]) })).toBe(3)
    expect(evaluate({ op: 'mean_square', x: vector([1, 2, 3]) })).toBeCloseTo(14 / 3, 14)
    expect(evaluate({ op: 'variance', x: vector([1, 3]), mean: leaf(2) })).toBe(1)
  })

  it('takes softmaxes, with masked scores', () => {
    expect(evaluate({ op: 'softmax', scores: vector([0, 0, '-inf']), place: 0 })).toBe(0.5)
    expect(evaluate({ op: 'softmax', scores: vector([0, 0, '-inf']), place: 2 })).toBe(0)
    expect(evaluate({ op: 'softmax', scores: vector([1000, 1001]), place: 1 })).toBeCloseTo(0.7310585786300049, 14)
  })

  it('knows the functions', () => {
    const call = (name: string, x: number): number => evaluate({ op: 'call', function: name, x: leaf(x) })
    expect(call('relu', -1)).toBe(0)
    expect(call('gelu', 1)).toBeCloseTo(0.8413447460685429, 14)
    expect(call('gelu_tanh', 1)).toBeCloseTo(0.8411919906082768, 14)
    expect(call('silu', 2)).toBeCloseTo(1.7615941559557646, 14)
    expect(call('sigmoid', 0)).toBe(0.5)
    expect(() => call('magic', 0)).toThrow('magic')
  })

  it('has an exact enough error function', () => {
    // from tables
    for (const [x, y] of [[0, 0], [0.5, 0.5204998778130465], [1, 0.8427007929497149], [3, 0.9999779095030014], [-1, -0.8427007929497149], [7, 1]] as const) {
      expect(erf(x)).toBeCloseTo(y, 13)
    }
  })
})

describe('check', () => {
  const agrees = (expression: Expression, value: number, precision = { epsilon: 2 ** -23, smallest: 0 }): boolean =>
    check({ name: '', at: [], formula: '', expression, value, tolerance: tolerance(expression, precision) }).agrees
  const a = Array.from({ length: 64 }, (_, i) => Math.fround(Math.sin(i * 1.7)))
  const b = Array.from({ length: 64 }, (_, i) => Math.fround(Math.cos(i * 2.3)))
  const dot: Expression = { op: 'dot', a: vector(a), b: vector(b) }
  const float32 = a.reduce((sum, x, i) => Math.fround(sum + Math.fround(x * b[i]!)), 0)

  it('forgives what float32 rounds', () => {
    expect(agrees(dot, float32)).toBe(true)
  })

  it('forgives nothing else', () => {
    expect(agrees(dot, float32 + 0.001)).toBe(false)
    expect(agrees({ op: 'softmax', scores: vector([1, 2, 3]), place: 0 }, 0.0901)).toBe(false)
    expect(agrees({ op: 'softmax', scores: vector([1, 2, 3]), place: 0 }, Math.fround(0.09003057317038046))).toBe(true)
  })

  it('forgives what bfloat16 rounds, where the network computed in it', () => {
    const half: Expression = { op: 'product', factors: [leaf(1.5, 'x'), leaf(1.0078125, 'y')] }
    expect(agrees(half, 1.515625)).toBe(false)
    expect(agrees(half, 1.515625, { epsilon: 2 ** -7, smallest: 0 })).toBe(true)
  })

  it('takes the tolerance that it is given', () => {
    const given = { name: '', at: [], formula: '', expression: leaf(1), value: 1.25 }
    expect(check({ ...given, tolerance: 0.25 }).agrees).toBe(true)
    expect(check({ ...given, tolerance: 0.2 }).agrees).toBe(false)
  })

  it('compares infinities', () => {
    const masked: Expression = { op: 'sum', terms: [leaf(0.5), leaf('-inf')] }
    expect(agrees(masked, -Infinity)).toBe(true)
    expect(agrees(masked, 0.5)).toBe(false)
    expect(agrees({ op: 'sum', terms: [leaf('inf'), leaf('-inf')] }, NaN)).toBe(true)
  })
})

it('lists the cells a number is made of, each once', () => {
  const row = vector([1, 2], 'keys', [0, 1, null])
  expect(cells({ op: 'sum', terms: [{ op: 'dot', a: row, b: row }, leaf(1, 'bias'), leaf(2)] })).toEqual([
    { of: 'keys', at: [0, 1, null] },
    { of: 'bias', at: [0] },
  ])
})

describe('write', () => {
  it('writes a product of vectors, with signs', () => {
    expect(text({ op: 'dot', a: vector([0.5, -0.25]), b: vector([-1, 2]) })).toBe('0.5000·(−1.0000) − 0.2500·2.0000')
  })

  it('counts what it leaves out, and leaves nothing out if asked', () => {
    const long: Expression = { op: 'mean', x: vector(Array<number>(64).fill(1)) }
    expect(text(long)).toBe('(1.0000 + 1.0000 + 1.0000 + 1.0000 + … 59 more … + 1.0000) / 64')
    expect(text(long, null).split(' + ')).toHaveLength(64)
  })

  it('brackets what binds less', () => {
    const sum: Expression = { op: 'sum', terms: [leaf(1), leaf(-2)] }
    expect(text({ op: 'product', factors: [sum, leaf(3)] })).toBe('(1 − 2) · 3')
    expect(text({ op: 'quotient', over: sum, under: sum })).toBe('(1 − 2) / (1 − 2)')
    expect(text({ op: 'call', function: 'sqrt', x: sum })).toBe('√(1 − 2)')
  })

  it('subtracts', () => {
    const minus: Expression = { op: 'product', factors: [leaf(-1), leaf(0.25, 'z')] }
    expect(text({ op: 'sum', terms: [leaf(1), minus] })).toBe('1 − 0.2500')
    expect(text({ op: 'sum', terms: [leaf(1), { op: 'product', factors: [leaf(-1), leaf(-0.25, 'z')] }] })).toBe('1 − (−0.2500)')
  })

  it('says which cell each number is', () => {
    const pieces = formatExpression({ op: 'dot', a: vector([1, 2], 'q', [0, 3, null]), b: vector([1, 2], 'k', [0, null, 4]) })
    expect(pieces.filter(({ of }) => of).map(({ of, at }) => [of, at])).toEqual([
      ['q', [0, 3, 0]], ['k', [0, 0, 4]], ['q', [0, 3, 1]], ['k', [0, 1, 4]],
    ])
  })

  it('shows what comes between', () => {
    const step = formatSteps({ op: 'softmax', scores: vector([0, 0]), place: 0 })
    expect(step?.map((piece) => piece.text).join('')).toBe('1 / 2')
    const far = formatSteps({ op: 'softmax', scores: vector([1, 0]), place: 0 })
    expect(far?.map((piece) => piece.text).join('')).toBe('2.7183 / 3.7183')
    expect(formatSteps(leaf(1))).toBeNull()
  })
})

describe('numbers', () => {
  it('are short but never wrong', () => {
    expect(plain(-0.12345)).toBe('−0.1235')
    expect(plain(0)).toBe('0')
    expect(plain(0.00001234)).toBe('1.23·10⁻⁵')
    expect(plain(-Infinity)).toBe('−∞')
    expect(plain(12345678)).toBe('1.23·10⁷')
    expect(brief(-0.001)).toBe('0.00')
    expect(brief(123.4)).toBe('123')
  })
})
