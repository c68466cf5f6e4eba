/** Expressions and numbers as a person reads them. */

import { evaluate, number } from './expression'
import type { At, Expression, Num, Vector } from './types'

/** A number in `digits` decimals; very small and very large ones as powers of ten. */
export function plain(value: number, digits = 4): string {
  if (Number.isNaN(value)) return 'not a number'
  if (!Number.isFinite(value)) return value > 0 ? '∞' : '−∞'
  if (value === 0) return '0'
  const size = Math.abs(value)
  if (size < 0.5 * 10 ** -digits || size >= 1e6) return power(value, Math.max(1, digits - 2))
  return value.toFixed(size >= 1000 ? Math.min(digits, 1) : digits).replace('-', '−')
}

/** In so many decimals, whatever its size. A model whose numbers broke says nan. */
export function fixed(value: number, digits: number): string {
  if (Number.isNaN(value)) return 'nan'
  return Number.isFinite(value) ? value.toFixed(digits).replace('-', '−') : plain(value)
}

/** How long the bar of a probability is, of 1; one that is no number has none. */
export const bar = (p: number | null | undefined): number => (Number.isFinite(p) ? Math.max(0, Math.min(1, p!)) : 0)

function power(value: number, digits: number): string {
  const [mantissa, exponent] = value.toExponential(digits).split('e')
  const raised = String(Number(exponent)).replace(/./g, (sign) => '⁻⁰¹²³⁴⁵⁶⁷⁸⁹'['-0123456789'.indexOf(sign)]!)
  return `${mantissa!.replace('-', '−')}·10${raised}`
}

/** As short as a cell of a picture allows. */
export function brief(value: number): string {
  if (!Number.isFinite(value)) return plain(value)
  const size = Math.abs(value)
  const said = size >= 100 ? value.toFixed(0) : size >= 10 ? value.toFixed(1) : value.toFixed(2)
  return said.replace('-', '−').replace(/^−0\.00$/, '0.00')
}

/** A stretch of the written sum; `of` and `at` say which cell the number is. */
export interface Piece {
  text: string
  of?: string | null
  at?: At | null
  /** An exponent. */
  raised?: boolean
  /** How many terms stand behind an ellipsis. */
  hidden?: number
}

export interface Style {
  digits?: number
  /** Long sums show so many terms at their beginning; null: all of them. */
  first?: number | null
}

export function formatExpression(expression: Expression, { digits = 4, first = 4 }: Style = {}): Piece[] {
  return new Writer(digits, first).written(expression, 0)
}

/** One number less deep: what each part of a sum, product or quotient comes to. */
export function formatSteps(expression: Expression, style: Style = {}): Piece[] | null {
  const part = (e: Expression): Expression => ({ op: 'number', value: evaluate(e), of: null, at: null })
  const deep = (e: Expression): boolean => e.op !== 'number'
  switch (expression.op) {
    case 'sum':
      return expression.terms.some(deep) && expression.terms.length > 1
        ? formatExpression({ op: 'sum', terms: expression.terms.map(part) }, style)
        : null
    case 'product':
      return expression.factors.some(deep) ? formatExpression({ op: 'product', factors: expression.factors.map(part) }, style) : null
    case 'quotient':
      return deep(expression.over) || deep(expression.under)
        ? formatExpression({ op: 'quotient', over: part(expression.over), under: part(expression.under) }, style)
        : null
    case 'call':
      return deep(expression.x) ? formatExpression({ ...expression, x: part(expression.x) }, style) : null
    case 'softmax': {
      const scores = expression.scores.values.map(number)
      // Only powers too large for a number are divided by the largest.
      const highest = Math.max(...scores)
      const shift = Math.abs(highest) > 80 ? highest : 0
      const powers = scores.map((score) => Math.exp(score - shift))
      const under = powers.reduce((sum, each) => sum + each, 0)
      return formatExpression({ op: 'quotient', over: constant(powers[expression.place]!), under: constant(under) }, style)
    }
    case 'mean':
    case 'mean_square':
    case 'variance':
      return formatExpression(
        {
          op: 'quotient',
          over: constant(evaluate(expression) * expression.x.values.length),
          under: constant(expression.x.values.length),
        },
        style,
      )
    default:
      return null
  }
}

const constant = (value: number): Expression => ({ op: 'number', value, of: null, at: null })

/** How tightly an operation binds: parentheses go around what binds less than its surroundings. */
const SUM = 1
const PRODUCT = 2
const POWER = 3

class Writer {
  constructor(
    private readonly digits: number,
    private readonly first: number | null,
  ) {}

  written(e: Expression, around: number): Piece[] {
    switch (e.op) {
      case 'number':
        return [this.#number(number(e.value), e.of, e.at, around)]
      case 'vector':
        return [{ text: '[' }, ...this.#list(e.values.length, ', ', (i) => [this.#component(e, i)]), { text: ']' }]
      case 'sum':
        return bracketed(this.#sum(e.terms.length, (i) => this.#term(e.terms[i]!, i > 0)), around > SUM)
      case 'product':
        return bracketed(
          this.#list(e.factors.length, ' · ', (i) => this.written(e.factors[i]!, PRODUCT)),
          around > PRODUCT,
        )
      case 'quotient':
        return bracketed(
          [...this.written(e.over, PRODUCT), { text: ' / ' }, ...this.written(e.under, POWER)],
          around > PRODUCT,
        )
      case 'dot':
        return bracketed(
          this.#sum(e.a.values.length, (i) => [
            this.#component(e.a, i, SUM),
            { text: '·' },
            this.#component(e.b, i, PRODUCT),
          ]),
          around > SUM,
        )
      case 'softmax': {
        const power = (i: number): Piece[] => [{ text: 'e' }, this.#component(e.scores, i, 0, true)]
        const all = this.#list(e.scores.values.length, ' + ', power)
        return bracketed([...power(e.place), { text: ' / (' }, ...all, { text: ')' }], around > PRODUCT)
      }
      case 'mean':
        return this.#average(e.x, around, (i) => [this.#component(e.x, i, SUM)])
      case 'mean_square':
        return this.#average(e.x, around, (i) => [this.#component(e.x, i, POWER), { text: '²' }])
      case 'variance': {
        const mean = evaluate(e.mean)
        return this.#average(e.x, around, (i) => [
          { text: '(' },
          this.#component(e.x, i),
          { text: mean < 0 ? ' + ' : ' − ' },
          this.#number(Math.abs(mean), null, null, 0),
          { text: ')²' },
        ])
      }
      case 'call':
        return [{ text: e.function === 'sqrt' ? '√(' : `${e.function}(` }, ...this.written(e.x, 0), { text: ')' }]
    }
  }

  /** After the first, (−1) · x is written − x. */
  #term(e: Expression, later: boolean): Piece[] {
    if (!later || e.op !== 'product' || !isMinusOne(e.factors[0])) return this.written(e, SUM)
    const [, ...rest] = e.factors
    const positive = this.written(rest.length === 1 ? rest[0]! : { op: 'product', factors: rest }, PRODUCT)
    return [{ text: '−' }, ...positive]
  }

  #average(x: Vector, around: number, term: (i: number) => Piece[]): Piece[] {
    const n = x.values.length
    return bracketed([{ text: '(' }, ...this.#sum(n, term), { text: `) / ${n}` }], around > PRODUCT)
  }

  #component(vector: Vector, i: number, around = 0, raised = false): Piece {
    const at = vector.at?.map((place) => (place === null ? i : place)) ?? null
    const piece = this.#number(number(vector.values[i] as Num), vector.of, at, around)
    return raised ? { ...piece, raised } : piece
  }

  #number(value: number, of: string | null, at: At | null, around: number): Piece {
    const text = plain(value, Number.isInteger(value) && of === null ? 0 : this.digits)
    return { text: value < 0 && around >= PRODUCT ? `(${text})` : text, of, at }
  }

  /** Terms with + between them, − before a negative one. */
  #sum(n: number, term: (i: number) => Piece[]): Piece[] {
    const pieces = this.#list(n, ' + ', term)
    for (let i = 1; i < pieces.length; i++) {
      const [before, piece] = [pieces[i - 1]!, pieces[i]!]
      if (before.text === ' + ' && piece.text.startsWith('−')) {
        pieces[i - 1] = { text: ' − ' }
        pieces[i] = { ...piece, text: piece.text.slice(1) }
      }
    }
    return pieces.filter(({ text }) => text !== '')
  }

  /** The first terms and the last one; what lies between is counted. */
  #list(n: number, between: string, item: (i: number) => Piece[]): Piece[] {
    const shown = this.first === null || n <= this.first + 2 ? n : this.first
    const pieces: Piece[] = []
    for (let i = 0; i < shown; i++) pieces.push(...(i > 0 ? [{ text: between }] : []), ...item(i))
    if (shown < n) {
      const hidden = n - shown - 1
      pieces.push({ text: between }, { text: `… ${hidden} more …`, hidden }, { text: between }, ...item(n - 1))
    }
    return pieces
  }
}

function isMinusOne(e: Expression | undefined): boolean {
  return e?.op === 'number' && e.of === null && e.value === -1
}

function bracketed(pieces: Piece[], needed: boolean): Piece[] {
  return needed ? [{ text: '(' }, ...pieces, { text: ')' }] : pieces
}

/** "[5, 12, :]" */
export function place(at: At): string {
  return `[${at.map((each) => (each === null ? ':' : each)).join(', ')}]`
}
