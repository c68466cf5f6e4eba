/** How far rounding can take the network's number from the sum behind it: the rule of Python's `seeing/explain/rounding.py`,
 * for pages on disk. The server sends its own tolerance with every explanation.
 *
 * Each operation rounds its result by at most u = ε/2 of it, and passes on, times its slope, what its arguments were off
 * by. That is added up along the tree, to first order, in units of u.
 */

import { evaluate, number, numbers } from './expression'
import type { Expression, Precision } from './types'

/** Units in which exp, tanh and the like may be off: libraries promise two, and round their argument. */
const OF_FUNCTIONS = 4
/** Of float32: fast kernels make a number below it 0. */
const SMALLEST = 2 ** -126

export function tolerance(e: Expression, { epsilon, smallest }: Precision): number {
  if (!Number.isFinite(evaluate(e))) return 0
  return ((epsilon + Number.EPSILON) / 2) * off(e) + Math.max(smallest, SMALLEST)
}

/** By how many u the sum of n products may be off, relative to Σ |aᵢ bᵢ|: n at worst, for long sums some 8 √n. */
const roundings = (n: number): number => Math.min(n, 8 * Math.sqrt(n)) + 1

const sum = (values: number[]): number => values.reduce((total, value) => total + value, 0)

function off(e: Expression): number {
  switch (e.op) {
    case 'number':
      return e.of === null ? Math.abs(number(e.value)) : 0 // a tapped number is the network's own
    case 'vector':
      throw new Error('a vector is no number')
    case 'sum':
      return sum(e.terms.map(off)) + e.terms.length * sum(e.terms.map((term) => Math.abs(evaluate(term))))
    case 'product': {
      let [value, error] = [1, 0]
      for (const factor of e.factors) {
        const x = evaluate(factor)
        error = Math.abs(x) * error + Math.abs(value) * off(factor) + Math.abs(value * x)
        value *= x
      }
      return error
    }
    case 'quotient': {
      const [a, b] = [Math.abs(evaluate(e.over)), Math.abs(evaluate(e.under))]
      return b ? (off(e.over) + (a * off(e.under)) / b + 2 * a) / b : Infinity
    }
    case 'dot': {
      const [a, b] = [numbers(e.a), numbers(e.b)]
      return roundings(a.length) * sum(a.map((x, i) => Math.abs(x * b[i]!)))
    }
    case 'softmax': {
      // s - max is rounded before e^ makes of it a relative error; the terms of the sum likewise, d e^-d < 0.4.
      const scores = numbers(e.scores)
      const distance = Math.max(...scores) - scores[e.place]!
      if (!Number.isFinite(distance)) return 0
      return (roundings(scores.length) + 0.4 * scores.length + 4 * OF_FUNCTIONS + distance) * evaluate(e)
    }
    case 'mean': {
      const x = numbers(e.x)
      return ((roundings(x.length) + 1) * sum(x.map(Math.abs))) / x.length
    }
    case 'mean_square':
      return (roundings(e.x.values.length) + 2) * evaluate(e)
    case 'variance': {
      const [x, mean] = [numbers(e.x), evaluate(e.mean)]
      const away = sum(x.map((value) => Math.abs(value - mean)))
      return (roundings(x.length) + 4) * evaluate(e) + (2 * off(e.mean) * away) / x.length
    }
    case 'call':
      return through(e.function, evaluate(e.x), evaluate(e), off(e.x))
  }
}

/** How far y = function(x) is off if x is off by `error`. */
function through(name: string, x: number, result: number, error: number): number {
  const y = Math.abs(result)
  switch (name) {
    case 'relu':
      return error
    case 'exp':
      return y * (error + Math.abs(x) + OF_FUNCTIONS)
    case 'sqrt':
      return (y ? error / (2 * y) : 0) + OF_FUNCTIONS * y
    case 'gelu':
    case 'gelu_tanh': // x (1 + erf) / 2: where erf is near -1, what is left is off by a part of x
      return 1.2 * error + 2 * OF_FUNCTIONS * Math.abs(x)
    case 'silu':
      return 1.2 * error + 2 * OF_FUNCTIONS * y
    case 'tanh':
      return (1 - y * y) * error + OF_FUNCTIONS * y
    case 'sigmoid':
      return y * (1 - y) * error + OF_FUNCTIONS * y
    default: // sin, cos
      return error + OF_FUNCTIONS * y
  }
}
