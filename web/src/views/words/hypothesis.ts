/** One text so far, run: how probable its words were, and what the decoder looked at. */

import { source } from '../../lib/api'
import { kept } from '../../lib/kept'
import { session } from '../../lib/session.svelte'
import { side } from '../../lib/tokens'
import type { AttentionInfo, ModelInfo, TraceInfo } from '../../lib/types'
import { lastAttention, mean, sharesOf, type Looked } from './looked'

export interface Hypothesis {
  /** Of each of its tokens the probability, where it is among the likeliest. */
  shares: (number | null)[]
  /** While its newest word was written, and for the word that comes next; null: there is no attention. */
  wrote: Looked | null
  next: Looked | null
}

const known = kept<Hypothesis>(300, () => 1)
let runs = 0

export function hypothesis(model: ModelInfo, text: string, ids: number[], signal?: AbortSignal): Promise<Hypothesis> {
  return known(JSON.stringify([model.name, text, ids]), async () => {
    const trace = await source.run({ model: model.name, text, prefix: ids }, signal)
    // The server forgets the traces that are used least: the one all views share must not be among them.
    if (++runs % 12 === 0 && session.trace) void source.trace(session.trace.id).catch(() => {})
    const attention = lastAttention(model)
    const last = trace.tokens.target.length - 1
    const at = (row: number): Promise<Looked> | null =>
      attention && row >= 0 ? looked(trace, attention, row, signal) : null
    const [wrote, next] = await Promise.all([ids.length > 0 ? at(last - 1) : null, at(last)])
    return { shares: sharesOf(trace.places, ids), wrote, next }
  })
}

async function looked(trace: TraceInfo, attention: AttentionInfo, row: number, signal?: AbortSignal): Promise<Looked> {
  const name = `${attention.name}.weights`
  const axes = trace.values.find((value) => value.name === name)?.axes ?? 'BHTS'
  const at = [...axes].map((letter) => (letter === 'B' ? 0 : letter === 'T' ? row : null))
  const { values, shape } = await source.slice(trace.id, name, at, signal)
  const keys = shape.at(-1) ?? 0
  const heads = keys > 0 ? values.length / keys : 0
  const tokens = trace.tokens[side(trace, name, 'S') ?? 'source']
  const own = attention.kind === 'decoder'
  const seen = own ? row + 1 : keys // the words after it are hidden from it
  return {
    trace: trace.id,
    name,
    row,
    tokens: tokens.slice(0, seen),
    weights: mean(values, heads, keys).slice(0, seen),
  }
}
