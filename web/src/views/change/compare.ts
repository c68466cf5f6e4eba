/** How far two runs are apart. */

import type { Choice, Place, TraceInfo, ValueInfo } from '../../lib/types'
import { align, type Pair } from './align'

/** Half of Σ |p − q|: 0 for the same distribution, 1 for two that have nothing in common. */
export function apart(p: ArrayLike<number>, q: ArrayLike<number>, from = 0, to = 0, n = p.length): number {
  let sum = 0
  for (let i = 0; i < n; i++) sum += Math.abs(p[from + i]! - q[to + i]!)
  return sum / 2
}

/** |after − before| / |before| of one row of each, and the two squares that a sum over rows needs. */
export function moved(before: ArrayLike<number>, after: ArrayLike<number>, width: number, a: number, b: number): [number, number] {
  let [moved2, was2] = [0, 0]
  for (let i = 0; i < width; i++) {
    const was = before[a * width + i]!
    const now = after[b * width + i]!
    if (!Number.isFinite(was) || !Number.isFinite(now)) continue
    moved2 += (now - was) ** 2
    was2 += was ** 2
  }
  return [moved2, was2]
}

export const share = (moved2: number, was2: number): number => (moved2 === 0 ? 0 : Math.sqrt(moved2 / (was2 || 1)))

/** Which tokens of the two runs belong together. */
export function tokenPairs(before: TraceInfo, after: TraceInfo, side: 'source' | 'target'): Pair[] {
  return align(before.tokens[side], after.tokens[side], (a, b) => a.id === b.id)
}

export function placePairs(before: TraceInfo, after: TraceInfo): Pair[] {
  const side = before.places[0]?.side
  if (side) return tokenPairs(before, after, side)
  return before.places.map((_, i) => ({ a: i, b: i < after.places.length ? i : null, same: true }))
}

/** The value with the probability of every token, if there is one. */
export function probabilities(trace: TraceInfo): ValueInfo | undefined {
  return trace.values.find(({ name }) => /^head\..*probabilities$/.test(name))
}

/** One word in both runs; null: it is not among the likeliest, and all that is known are those. */
export interface BeforeAfter {
  id: number
  text: string
  before: number | null
  after: number | null
}

/** The likeliest tokens of either run, by their larger probability. */
export function likeliest(
  before: Place | null, after: Place | null, n: number, exact?: { before?: ArrayLike<number>; after?: ArrayLike<number> },
): BeforeAfter[] {
  const found = new Map<number, BeforeAfter>()
  const put = (choices: Choice[], which: 'before' | 'after'): void => {
    for (const { id, text, p } of choices) {
      const both = found.get(id) ?? { id, text, before: null, after: null }
      both[which] = p
      found.set(id, both)
    }
  }
  put(before?.top ?? [], 'before')
  put(after?.top ?? [], 'after')
  for (const both of found.values()) {
    if (before) both.before ??= exact?.before?.[both.id] ?? null
    if (after) both.after ??= exact?.after?.[both.id] ?? null
  }
  const most = ({ before: p, after: q }: BeforeAfter): number => Math.max(p ?? 0, q ?? 0)
  return [...found.values()].sort((x, y) => most(y) - most(x)).slice(0, n)
}

const STAGES: [RegExp, (found: string[]) => string][] = [
  [/^\w+\.embedding\.output$/, () => 'embedding'],
  [/^\w+\.blocks\.(\d+)\.output$/, ([, n]) => `block ${n}`],
  [/^\w+\.layers\.(\d+)\.hidden$/, ([, n]) => `layer ${n}`],
  [/^\w+\.forwards\.(\d+)\.hidden$/, ([, n]) => `layer ${n}, forward`],
  [/^\w+\.backwards\.(\d+)\.hidden$/, ([, n]) => `layer ${n}, backward`],
  [/^\w+\.final_norm\.output$/, () => 'final norm'],
  [/^\w+\.output$/, () => 'output'],
]

/** The values that are handed on from block to block. */
export function stages(trace: TraceInfo, side: 'encoder' | 'decoder'): { value: ValueInfo; label: string }[] {
  return trace.values.flatMap((value) => {
    if (!value.name.startsWith(`${side}.`)) return []
    for (const [pattern, label] of STAGES) {
      const found = pattern.exec(value.name)
      if (found) return [{ value, label: label(found) }]
    }
    return []
  })
}
