/** Which of several changes cannot be made. The server says what is wrong, not with which of them. */

import { Told } from '../../lib/source'

export interface Settled<R> {
  /** The run with all changes that could be made; null: there is none. */
  result: R | null
  /** By its number among the changes: the sentence that refused it. */
  refused: Map<number, string>
}

/** Runs with all changes; those that are refused are found by halves and left out. Other errors are thrown on. */
export async function settle<C, R>(changes: C[], attempt: (changes: C[]) => Promise<R>): Promise<Settled<R>> {
  const refused = new Map<number, string>()
  for (;;) {
    const left = changes.map((_, i) => i).filter((i) => !refused.has(i))
    if (left.length === 0) return { result: null, refused }
    const tried = async (n: number): Promise<R | Told> => {
      try {
        return await attempt(left.slice(0, n).map((i) => changes[i]!))
      } catch (error) {
        if (error instanceof Told && (error.status === 400 || error.status === 422)) return error
        throw error
      }
    }
    let found = await tried(left.length)
    if (!(found instanceof Told)) return { result: found, refused }
    // The first `good` are accepted, the first `bad` are not.
    let [good, bad] = [0, left.length]
    while (bad - good > 1) {
      const middle = (good + bad) >> 1
      const said = await tried(middle)
      if (said instanceof Told) [bad, found] = [middle, said]
      else good = middle
    }
    refused.set(left[bad - 1]!, (found as Told).message)
  }
}
