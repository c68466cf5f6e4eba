/** The selected number, the sum behind it, and the cells it is computed from. */

import { Latest, sentence, source } from '../../lib/api'
import { cells, type Cells } from '../../lib/expression'
import type { Explanation } from '../../lib/types'

export interface Target {
  name: string
  at: number[]
  value: number
}

interface Shown {
  target: Target
  explanation: Explanation | null
  problem: string | null
  cells: Cells[]
}

/** How long the sum before stays while the next one is on its way: too short to be seen. */
const PATIENCE = 120

export class Pointer {
  shown = $state.raw<Shown | null>(null)
  pinned = $state.raw<Target | null>(null)
  /** One operand, while the pointer is on it in the written sum. */
  part = $state.raw<Cells | null>(null)

  /** What lights up in every matrix. */
  lit = $derived<Cells[]>(this.part ? [this.part] : (this.shown?.cells ?? []))

  #latest = new Latest()
  #timer = 0
  #now = ''

  /** `choose`: a person pinned a number, or let go of it. */
  constructor(
    private readonly trace: () => string | null,
    readonly choose: (target: Target | null) => void,
  ) {}

  /** null: the pointer left. What it showed last stays, so that one can read it; a pinned number comes back. */
  point(target: Target | null): void {
    const next = target ?? this.pinned
    if (next) void this.#look(next)
  }

  /** What the address says is pinned. */
  pin(target: Target | null): void {
    this.pinned = target
    if (target) void this.#look(target)
  }

  clear(): void {
    this.#latest.stop()
    clearTimeout(this.#timer)
    this.#now = ''
    this.shown = this.pinned = this.part = null
  }

  async #look(target: Target): Promise<void> {
    const id = this.trace()
    const key = `${id}/${target.name}/${target.at.join()}`
    if (id === null || key === this.#now) return
    this.#now = key
    this.part = null
    clearTimeout(this.#timer)
    this.#timer = setTimeout(() => {
      if (!Number.isNaN(target.value)) this.shown = { target, explanation: null, problem: null, cells: [] }
    }, PATIENCE)
    const signal = this.#latest.signal()
    try {
      // From an address only the place is known.
      if (Number.isNaN(target.value)) {
        const { values } = await source.slice(id, target.name, target.at, signal)
        target = { ...target, value: values[0] ?? NaN }
      }
      const explanation = await source.explain(id, target.name, target.at, signal)
      if (signal.aborted) return
      this.shown = { target, explanation, problem: null, cells: cells(explanation.expression) }
    } catch (error) {
      if (signal.aborted) return
      this.shown = { target, explanation: null, problem: sentence(error), cells: [] }
    }
    clearTimeout(this.#timer)
  }
}
