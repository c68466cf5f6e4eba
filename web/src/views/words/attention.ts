/** One row of the decoder's last attention, mean over its heads. */

import type { AttentionInfo, ModelInfo, Place, Tok } from '../../lib/types'

export interface AttentionRow {
  trace: string
  /** "decoder.blocks.2.cross_attention.weights" */
  name: string
  /** Whose row of the weights. */
  row: number
  tokens: Tok[]
  weights: number[]
}

/** The last cross-attention; without an encoder, the last self-attention. */
export function lastAttention({ attentions }: ModelInfo): AttentionInfo | null {
  const cross = attentions.filter(({ kind }) => kind === 'cross')
  const own = attentions.filter(({ kind }) => kind === 'decoder')
  return cross.at(-1) ?? own.at(-1) ?? null
}

export function mean(values: ArrayLike<number>, heads: number, keys: number): number[] {
  return Array.from({ length: keys }, (_, key) => {
    let sum = 0
    for (let head = 0; head < heads; head++) sum += values[head * keys + key]!
    return sum / Math.max(heads, 1)
  })
}

/** The places before the last ones are of the prompt. */
export function sharesOf(places: Place[], ids: number[]): (number | null)[] {
  const first = places.length - 1 - ids.length
  return ids.map((id, i) => places[first + i]?.top.find((choice) => choice.id === id)?.p ?? null)
}
