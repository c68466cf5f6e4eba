/** A slice of a value, fetched when the element that shows it comes near the screen. */

import { load, source } from './api'
import type { At, Slice } from './types'
import { whenVisible } from './visible'

export class LazySlice {
  slice = $state.raw<Slice | null>(null)
  problem = $state<string | null>(null)
  #near = $state(false)

  /** For the element: `{@attach lazy.attach}`. */
  readonly attach = whenVisible(() => (this.#near = true))

  /** `where`: null for nothing to fetch. The last slice stays until the next one is there. */
  constructor(where: () => { trace: string; name: string; at: At } | null) {
    $effect(() => {
      const asked = where()
      if (!this.#near || !asked) return
      return load(
        (signal) => source.slice(asked.trace, asked.name, asked.at, signal),
        (slice) => ((this.slice = slice), (this.problem = null)),
        (problem) => (this.problem = problem),
      )
    })
  }
}
