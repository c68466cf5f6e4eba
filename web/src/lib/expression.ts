/** The sum behind a number: added up again here, in double precision, and written out. */

import type { At, Expression, Num, Vector } from './types'

/** A value, and how far float32 rounding can have taken the network's from it. */
interface Bounded {
  value: number
  slack: number
}

const EPSILON = 2 ** -24
/** Sums of n terms round n times, but not all the same way: the error grows as √n. 4 leaves room for bad luck. */
const LUCK = 4

export function number(said: Num): number {
  if (typeof said === 'number') return said
  return said === 'inf' ? Infinity : said === '-inf' ? -Infinity : NaN
}

const numbers = (vector: Vector): number[] => vector.values.map(number)

export function evaluate(expression: Expression): number {
  return bounded(expression).value
}

/** Whether the network's number is the one that these parts give, but for rounding. */
export function check(expression: Expression, network: number): { value: number; slack: number; agrees: boolean } {
  const { value, slack } = bounded(expression)
  const same = Object.is(value, network) || value === network || (Number.isNaN(value) && Number.isNaN(network))
  const room = slack + 4 * EPSILON * Math.abs(network) + 1e-9
  return { value, slack: room, agrees: same || Math.abs(value - network) <= room }
}

function bounded(e: Expression): Bounded {
  switch (e.op) {
    case 'number':
      return leaf(number(e.value), e.of)
    case 'vector':
      throw new Error('a vector is no number')
    case 'sum':
      return added(e.terms.map(bounded))
    case 'product': {
      let product: Bounded = { value: 1, slack: 0 }
      for (const factor of e.factors.map(bounded)) product = times(product, factor)
      return product
    }
    case 'quotient': {
      const [over, under] = [bounded(e.over), bounded(e.under)]
      const value = over.value / under.value
      const slack = (over.slack + Math.abs(value) * under.slack) / Math.abs(under.value)
      return rounded(value, slack)
    }
    case 'dot': {
      const [a, b] = [numbers(e.a), numbers(e.b)]
      return added(a.map((x, i) => times(leaf(x, e.a.of), leaf(b[i] ?? NaN, e.b.of))))
    }
    case 'softmax': {
      const scores = numbers(e.scores)
      const highest = Math.max(...scores)
      const parts = scores.map((score) => Math.exp(score - highest))
      const value = (parts[e.place] ?? NaN) / parts.reduce((sum, part) => sum + part, 0)
      const reach = Math.max(0, ...scores.filter(Number.isFinite).map((score) => highest - score))
      const loose = e.scores.of === null ? 16 * Math.max(...scores.filter(Number.isFinite).map(Math.abs)) : 0
      return { value, slack: value * EPSILON * (LUCK * Math.sqrt(scores.length) + 2 * reach + loose) }
    }
    case 'mean':
      return over(added(numbers(e.x).map((x) => leaf(x, e.x.of))), e.x.values.length)
    case 'mean_square':
      return over(added(numbers(e.x).map((x) => times(leaf(x, e.x.of), leaf(x, e.x.of)))), e.x.values.length)
    case 'variance': {
      const mean = bounded(e.mean)
      const squares = numbers(e.x).map((x) => {
        const from = added([leaf(x, e.x.of), { value: -mean.value, slack: mean.slack }])
        return times(from, from)
      })
      return over(added(squares), e.x.values.length)
    }
    case 'call':
      return called(e.function, bounded(e.x))
  }
}

/** A tapped number is the network's own; one that nobody tapped was rounded on its way. */
function leaf(value: number, of: string | null): Bounded {
  return { value, slack: of === null && Number.isFinite(value) ? 16 * EPSILON * Math.abs(value) : 0 }
}

function rounded(value: number, slack: number): Bounded {
  const own = Number.isFinite(value) ? 2 * EPSILON * Math.abs(value) : 0
  return { value, slack: (Number.isNaN(slack) ? 0 : slack) + own }
}

function times(a: Bounded, b: Bounded): Bounded {
  const value = a.value * b.value
  if (!Number.isFinite(value)) return { value, slack: 0 }
  return rounded(value, Math.abs(a.value) * b.slack + Math.abs(b.value) * a.slack)
}

function over(a: Bounded, n: number): Bounded {
  return rounded(a.value / n, a.slack / n)
}

function added(terms: Bounded[]): Bounded {
  let [value, reach, squares, slacks] = [0, 0, 0, 0]
  for (const term of terms) {
    value += term.value
    reach = Math.max(reach, Math.abs(value))
    squares += term.value * term.value
    slacks += term.slack * term.slack
  }
  if (!Number.isFinite(value)) return { value, slack: 0 }
  // Each addition rounds the sum so far, which is as large as `reach` in this order, and about √squares in another.
  const own = LUCK * EPSILON * Math.sqrt(terms.length) * (reach + Math.sqrt(squares))
  return { value, slack: own + LUCK * Math.sqrt(slacks) }
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

function called(name: string, x: Bounded): Bounded {
  const f = FUNCTIONS[name]
  if (!f) throw new Error(`no function is called ${name}`)
  const value = f(x.value)
  // How steep the function is here; all but exp and √ change by 1.13 times their argument at most.
  const steep = name === 'exp' ? value : name === 'sqrt' ? 0.5 / Math.max(value, 1e-30) : 1.13
  // Angles are rounded before the sine is taken.
  const angle = name === 'sin' || name === 'cos' ? 4 * EPSILON * Math.abs(x.value) : 0
  const own = ['tanh', 'gelu', 'gelu_tanh', 'silu', 'sigmoid'].includes(name) ? 4 * EPSILON * (1 + Math.abs(x.value)) : 0
  return rounded(value, steep * x.slack + angle + own)
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
