/** Finds the edits that the server refuses: its error does not say which of several it means. */

import { UserError } from '../../lib/source'

export interface Bisection<R> {
  /** The run with all edits that were accepted; null: there is none. */
  result: R | null
  /** By its index: the sentence that refused it. */
  refused: Map<number, string>
}

/** Runs with all edits; refused ones are found by bisection and left out. Other errors are thrown on. */
export async function bisect<C, R>(changes: C[], attempt: (changes: C[]) => Promise<R>): Promise<Bisection<R>> {
  const refused = new Map<number, string>()
  for (;;) {
    const left = changes.map((_, i) => i).filter((i) => !refused.has(i))
    if (left.length === 0) return { result: null, refused }
    const tried = async (n: number): Promise<R | UserError> => {
      try {
        return await attempt(left.slice(0, n).map((i) => changes[i]!))
      } catch (error) {
        if (error instanceof UserError && (error.status === 400 || error.status === 422)) return error
        throw error
      }
    }
    let found = await tried(left.length)
    if (!(found instanceof UserError)) return { result: found, refused }
    // The first `good` are accepted, the first `bad` are not.
    let [good, bad] = [0, left.length]
    while (bad - good > 1) {
      const middle = (good + bad) >> 1
      const said = await tried(middle)
      if (said instanceof UserError) [bad, found] = [middle, said]
      else good = middle
    }
    refused.set(left[bad - 1]!, (found as UserError).message)
  }
}
