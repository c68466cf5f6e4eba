/** The original run and the edited one. */

import { Latest, sentence, source } from '../../lib/api'
import type { RunRequest, TraceInfo } from '../../lib/types'
import { isEdit, type Change } from './edits'
import { bisect } from './bisect'
import { swapped } from './words'

export interface Wanted {
  /** The original's request. */
  request: RunRequest
  original: TraceInfo
  changes: Change[]
  /** The edited run reads the original's tokens, so that positions can be compared one to one. */
  kept: boolean
  /** Both runs continue the text, by these options. */
  on: RunRequest['generate'] | null
  /** The most tokens to generate under edits, where each is computed from the start. */
  most: number
}

const LOST = 'The text no longer has this word there.'

class Comparison {
  original = $state.raw<TraceInfo | null>(null)
  changed = $state.raw<TraceInfo | null>(null)
  /** By the number of the change: why it could not be made. */
  refused = $state.raw<Map<number, string>>(new Map())
  problem = $state<string | null>(null)
  busy = $state(false)

  #latest = new Latest()
  #written: { key: string; trace: TraceInfo } | null = null

  async run(wanted: Wanted): Promise<void> {
    const signal = this.#latest.signal()
    this.busy = true
    try {
      const original = await this.#first(wanted, signal)
      const { result, refused } = await this.#changed(wanted, original, signal)
      if (signal.aborted) return
      this.original = original
      this.changed = result
      this.refused = refused
      this.problem = null
    } catch (error) {
      if (signal.aborted) return
      this.problem = sentence(error)
      this.changed = null
      this.refused = new Map()
    }
    this.busy = false
  }

  stop(): void {
    this.#latest.stop()
    this.busy = false
    this.original = this.changed = this.problem = null
    this.refused = new Map()
  }

  async #first({ request, original, on }: Wanted, signal: AbortSignal): Promise<TraceInfo> {
    if (!on) return original
    const key = JSON.stringify([request, on])
    if (this.#written?.key !== key) this.#written = { key, trace: await source.run({ ...request, generate: on }, signal) }
    return this.#written.trace
  }

  async #changed(wanted: Wanted, original: TraceInfo, signal: AbortSignal) {
    const { request, changes, on } = wanted
    const words = wanted.original.tokens.source.length > 0 ? wanted.original.tokens.source : wanted.original.tokens.target
    const { lost } = swapped(request.text ?? '', words, changes)
    const possible = changes.map((_, i) => i).filter((i) => !lost.includes(i))
    const { result, refused } = await bisect(possible, (some) => {
      const these = some.map((i) => changes[i]!)
      const text = request.text === undefined ? {} : { text: swapped(request.text, words, these).text }
      return source.run({ ...request, ...text, ...writing(wanted, original), ...(on ? { generate: on } : {}), edits: these.filter(isEdit) }, signal)
    })
    const why = new Map([...refused].map(([i, said]) => [possible[i]!, said]))
    for (const i of lost) why.set(i, LOST)
    return { result, refused: why }
  }
}

function writing({ kept, request, most }: Wanted, original: TraceInfo): Partial<RunRequest> {
  const both = original.tokens.source.length > 0 && original.tokens.target.length > 0
  if (!both) return {}
  if (kept) return { target: undefined, prefix: original.tokens.target.slice(1).map(({ id }) => id) }
  return request.target === undefined ? { generate: { max_new_tokens: most } } : {}
}

export const comparison = new Comparison()
