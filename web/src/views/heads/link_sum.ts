/** The sum behind a weight between words, which may have several tokens. */

import { tolerance } from '../../lib/rounding'
import type { Expression, Explanation, ValueInfo } from '../../lib/types'
import { weightAt, type Link, type AttentionWeights } from './weights'

/** Where a token's link is in the value: recurrent models have no axis of heads. */
export function placeIn({ axes }: ValueInfo, { head, query, key }: Pick<Link, 'head' | 'query' | 'key'>): number[] {
  const places: Record<string, number> = { H: head, T: query, S: key }
  return [...axes].map((letter) => places[letter] ?? 0)
}

/** A word's link, made of those of its pieces. */
export function pieceExplanation(
  value: ValueInfo,
  tokens: AttentionWeights,
  head: number,
  queries: number[],
  keys: number[],
): Explanation {
  const terms: Expression[] = queries.flatMap((query) =>
    keys.map((key): Expression => ({
      op: 'number',
      value: weightAt(tokens, head, query, key),
      of: value.name,
      at: placeIn(value, { head, query, key }),
    })),
  )
  const sum: Expression = terms.length === 1 ? terms[0]! : { op: 'sum', terms }
  const n = queries.length
  const expression: Expression =
    n === 1 ? sum : { op: 'quotient', over: sum, under: { op: 'number', value: n, of: null, at: null } }
  const total = queries.reduce(
    (all, query) => all + keys.reduce((row, key) => row + weightAt(tokens, head, query, key), 0),
    0,
  )
  return {
    name: value.name,
    at: placeIn(value, { head, query: queries[0]!, key: keys[0]! }),
    formula: value.formula,
    value: total / n,
    tolerance: tolerance(expression, { epsilon: Number.EPSILON, smallest: 0 }), // both sums are this page's, in double precision
    expression,
  }
}
