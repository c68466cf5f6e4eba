/** The sum behind a number, as a tree: evaluated again here, in double precision. */

import type { At, Explanation, Expression, Num, Vector } from './types'

export function number(said: Num): number {
  if (typeof said === 'number') return said
  return said === 'inf' ? Infinity : said === '-inf' ? -Infinity : NaN
}

export const numbers = (vector: Vector): number[] => vector.values.map(number)

/** The page's own result, and whether the network's number is the same but for rounding: `tolerance` is what that may be. */
export function check({ expression, value, tolerance }: Explanation): { value: number; agrees: boolean } {
  const own = evaluate(expression)
  return { value: own, agrees: Object.is(own, value) || own === value || Math.abs(own - value) <= tolerance }
}

const sum = (terms: number[]): number => terms.reduce((total, term) => total + term, 0)

export function evaluate(e: Expression): number {
  switch (e.op) {
    case 'number':
      return number(e.value)
    case 'vector':
      throw new Error('a vector is no number')
    case 'sum':
      return sum(e.terms.map(evaluate))
    case 'product':
      return e.factors.map(evaluate).reduce((product, factor) => product * factor, 1)
    case 'quotient':
      return evaluate(e.over) / evaluate(e.under)
    case 'dot': {
      const [a, b] = [numbers(e.a), numbers(e.b)]
      return sum(a.map((x, i) => x * (b[i] ?? NaN)))
    }
    case 'softmax': {
      const scores = numbers(e.scores)
      const highest = Math.max(...scores)
      const powers = scores.map((score) => Math.exp(score - highest))
      return (powers[e.place] ?? NaN) / sum(powers)
    }
    case 'mean':
      return sum(numbers(e.x)) / e.x.values.length
    case 'mean_square':
      return sum(numbers(e.x).map((x) => x * x)) / e.x.values.length
    case 'variance': {
      const mean = evaluate(e.mean)
      return sum(numbers(e.x).map((x) => (x - mean) ** 2)) / e.x.values.length
    }
    case 'call': {
      const f = FUNCTIONS[e.function]
      if (!f) throw new Error(`no function is called ${e.function}`)
      return f(evaluate(e.x))
    }
  }
}

/** By a series that converges to double precision. */
export function erf(x: number): number {
  const z = Math.abs(x)
  if (z > 6) return Math.sign(x)
  let [term, sum] = [z, z]
  for (let n = 1; n < 200 && Math.abs(term) > 1e-17 * Math.abs(sum); n++) {
    term *= (2 * z * z) / (2 * n + 1) // Kummer's form: all terms are positive, nothing cancels
    sum += term
  }
  return (Math.sign(x) * 2 * Math.exp(-z * z) * sum) / Math.sqrt(Math.PI)
}

const sigmoid = (x: number): number => 1 / (1 + Math.exp(-x))

const FUNCTIONS: Record<string, (x: number) => number> = {
  exp: Math.exp,
  sqrt: Math.sqrt,
  tanh: Math.tanh,
  sigmoid,
  relu: (x) => Math.max(0, x),
  gelu: (x) => 0.5 * x * (1 + erf(x / Math.SQRT2)),
  gelu_tanh: (x) => 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3))),
  silu: (x) => x * sigmoid(x),
  sin: Math.sin,
  cos: Math.cos,
}

/** The cells of values and weights that a number is made of; null in `at`: all along that axis. */
export interface Cells {
  of: string
  at: At
}

export function cells(e: Expression): Cells[] {
  const found = new Map<string, Cells>()
  const add = (of: string | null, at: At | null): void => {
    if (of !== null && at !== null) found.set(`${of}@${at.join()}`, { of, at })
  }
  const walk = (e: Expression): void => {
    switch (e.op) {
      case 'number':
      case 'vector':
        return add(e.of, e.at)
      case 'sum':
        return e.terms.forEach(walk)
      case 'product':
        return e.factors.forEach(walk)
      case 'quotient':
        return [e.over, e.under].forEach(walk)
      case 'dot':
        return [e.a, e.b].forEach(walk)
      case 'softmax':
        return walk(e.scores)
      case 'mean':
      case 'mean_square':
        return walk(e.x)
      case 'variance':
        return [e.x, e.mean].forEach(walk)
      case 'call':
        return walk(e.x)
    }
  }
  walk(e)
  return [...found.values()]
}
