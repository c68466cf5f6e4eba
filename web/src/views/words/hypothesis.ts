/** One prefix, run: the probabilities of its tokens, and the decoder's attention. */

import { source } from '../../lib/api'
import { lru } from '../../lib/lru'
import { session } from '../../lib/session.svelte'
import { side } from '../../lib/tokens'
import type { AttentionInfo, ModelInfo, TraceInfo } from '../../lib/types'
import { lastAttention, mean, sharesOf, type AttentionRow } from './attention'

export interface Hypothesis {
  /** The probability of each token that is among the likeliest. */
  shares: (number | null)[]
  /** The attention behind its last token, and behind the next one; null: there is none. */
  wrote: AttentionRow | null
  next: AttentionRow | null
}

const known = lru<Hypothesis>(300, () => 1)
let runs = 0

export function hypothesis(model: ModelInfo, text: string, ids: number[], signal?: AbortSignal): Promise<Hypothesis> {
  return known(JSON.stringify([model.name, text, ids]), async () => {
    const trace = await source.run({ model: model.name, text, prefix: ids }, signal)
    // The server drops the least recently used traces: the one that all views share must not be among them.
    if (++runs % 12 === 0 && session.trace) void source.trace(session.trace.id).catch(() => {})
    const attention = lastAttention(model)
    const last = trace.tokens.target.length - 1
    const at = (row: number): Promise<AttentionRow> | null =>
      attention && row >= 0 ? attentionRow(trace, attention, row, signal) : null
    const [wrote, next] = await Promise.all([ids.length > 0 ? at(last - 1) : null, at(last)])
    return { shares: sharesOf(trace.places, ids), wrote, next }
  })
}

async function attentionRow(trace: TraceInfo, attention: AttentionInfo, row: number, signal?: AbortSignal): Promise<AttentionRow> {
  const name = `${attention.name}.weights`
  const axes = trace.values.find((value) => value.name === name)?.axes ?? 'BHTS'
  const at = [...axes].map((letter) => (letter === 'B' ? 0 : letter === 'T' ? row : null))
  const { values, shape } = await source.slice(trace.id, name, at, signal)
  const keys = shape.at(-1) ?? 0
  const heads = keys > 0 ? values.length / keys : 0
  const tokens = trace.tokens[side(trace, name, 'S') ?? 'source']
  const own = attention.kind === 'decoder'
  const visible = own ? row + 1 : keys // later tokens are masked
  return {
    trace: trace.id,
    name,
    row,
    tokens: tokens.slice(0, visible),
    weights: mean(values, heads, keys).slice(0, visible),
  }
}
