/** The weights of one attention, by token or by word, and the links between queries and keys. */

import { labels } from '../../lib/tokens'
import type { At, Tok } from '../../lib/types'

export type Level = 'token' | 'word'

export interface AttentionWeights {
  /** Whose weights: "encoder.blocks.0.self_attention.weights". */
  name: string
  heads: number
  rows: number
  columns: number
  /** heads × rows × columns */
  values: Float32Array
  rowLabels: string[]
  columnLabels: string[]
  /** Of each row and column the tokens that it is made of. */
  rowPieces: number[][]
  columnPieces: number[][]
}

/** One weight: how much a query attends to a key. */
export interface Link {
  head: number
  query: number
  key: number
  weight: number
}

/** A selected token, as a query or as a key. */
export interface Focus {
  side: 'query' | 'key'
  place: number
}

export interface Group {
  label: string
  pieces: number[]
}

/** All weights of an attention, of the one text there is. */
export const every = (axes: string): At => [...axes].map((letter) => (letter === 'B' ? 0 : null))

/** Pieces of a word put together. */
export function groups(tokens: Tok[], level: Level): Group[] {
  const texts = labels(tokens)
  const found: Group[] = []
  tokens.forEach(({ word }, i) => {
    const last = found.at(-1)
    if (level === 'word' && last && tokens[i - 1]!.word === word) {
      last.pieces.push(i)
      last.label = joined(last.label, texts[i]!)
    } else found.push({ label: texts[i]!, pieces: [i] })
  })
  return found
}

/** "␣" stands for a word's beginning alone, "##" for the middle of one: both vanish in the word. */
function joined(word: string, piece: string): string {
  const rest = piece.replace(/^##/, '')
  return word === '␣' ? rest : word + rest
}

/** A word's weights: the mean over its tokens as queries, the sum over its tokens as keys. */
export function weightsOf(
  level: Level,
  name: string,
  values: Float32Array,
  heads: number,
  queries: Tok[],
  keys: Tok[],
): AttentionWeights {
  const [rows, columns] = [groups(queries, level), groups(keys, level)]
  const said = {
    name,
    heads,
    rows: rows.length,
    columns: columns.length,
    rowLabels: rows.map(({ label }) => label),
    columnLabels: columns.map(({ label }) => label),
    rowPieces: rows.map(({ pieces }) => pieces),
    columnPieces: columns.map(({ pieces }) => pieces),
  }
  if (level === 'token') return { ...said, values }
  const sums = new Float32Array(heads * rows.length * columns.length)
  const columnOf = columns.flatMap(({ pieces }, c) => pieces.map(() => c))
  for (let h = 0; h < heads; h++) {
    rows.forEach(({ pieces }, r) => {
      const to = (h * rows.length + r) * columns.length
      for (const query of pieces) {
        const from = (h * queries.length + query) * keys.length
        for (let key = 0; key < keys.length; key++) sums[to + columnOf[key]!]! += values[from + key]! / pieces.length
      }
    })
  }
  return { ...said, values: sums }
}

export function weightAt({ values, rows, columns }: AttentionWeights, head: number, query: number, key: number): number {
  return values[(head * rows + query) * columns + key] ?? NaN
}

export function ofHead({ values, rows, columns }: AttentionWeights, head: number): Float32Array {
  return values.subarray(head * rows * columns, (head + 1) * rows * columns)
}

/** The weights of these heads that are at least so large; only of one token, if one is selected. */
export function links(weights: AttentionWeights, heads: number[], least: number, focus: Focus | null = null): Link[] {
  const { rows, columns, values } = weights
  const found: Link[] = []
  const [firstRow, endRow] = focus?.side === 'query' ? [focus.place, focus.place + 1] : [0, rows]
  const [firstColumn, endColumn] = focus?.side === 'key' ? [focus.place, focus.place + 1] : [0, columns]
  for (const head of heads) {
    for (let query = firstRow; query < endRow; query++) {
      for (let key = firstColumn; key < endColumn; key++) {
        const weight = values[(head * rows + query) * columns + key]!
        if (weight >= least && weight > 0) found.push({ head, query, key, weight })
      }
    }
  }
  return found
}

export function strongest(found: Link[], n: number): Link[] {
  return [...found]
    .sort((a, b) => b.weight - a.weight || a.head - b.head || a.query - b.query || a.key - b.key)
    .slice(0, n)
}

export function mostOf(weights: AttentionWeights, heads: number[]): number {
  let most = 0
  for (const head of heads) for (const weight of ofHead(weights, head)) if (weight > most) most = weight
  return most
}

const LEASTS = [0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 0.08, 0.09, 0.1]

/** The default threshold: it leaves eight links for each query, but hides nothing above a tenth. */
export function usualLeast({ values, rows }: AttentionWeights): number {
  const counts = LEASTS.map(() => 0)
  for (const weight of values) {
    for (let i = 0; i < LEASTS.length && weight >= LEASTS[i]!; i++) counts[i]!++
  }
  return LEASTS.find((_, i) => counts[i]! <= 8 * rows) ?? 0.1
}

/** "0.10", and "0.002" where two decimals would say nothing. */
export const share = (weight: number): string => weight.toFixed(weight > 0 && weight < 0.01 ? 3 : 2)

/** The same place on the other level: the word of a token, or the first token of a word. */
export function moved(place: number, from: number[][], to: number[][]): number {
  const token = from[place]?.[0] ?? 0
  return Math.max(
    0,
    to.findIndex((pieces) => pieces.includes(token)),
  )
}
