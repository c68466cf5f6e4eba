/** Where the numbers come from: the studio's server, or the file the page itself is in. */

import { number } from './expression'
import type * as T from './types'

export interface Source {
  /** Whether new text can be run: false in a file opened from disk. */
  readonly live: boolean
  models(signal?: AbortSignal): Promise<T.ModelInfo[]>
  run(request: T.RunRequest, signal?: AbortSignal): Promise<T.TraceInfo>
  trace(id: string, signal?: AbortSignal): Promise<T.TraceInfo>
  slice(id: string, name: string, at: T.At, signal?: AbortSignal): Promise<T.Slice>
  explain(id: string, name: string, at: number[], signal?: AbortSignal): Promise<T.Explanation>
  lens(id: string, signal?: AbortSignal): Promise<T.Lens>
  rollout(id: string, signal?: AbortSignal): Promise<T.Rollout>
  next(request: T.NextRequest, signal?: AbortSignal): Promise<T.Next>
  beams(request: T.BeamsRequest, signal?: AbortSignal): Promise<T.Beams>
  /** Calls back with each token; the promise ends with the whole text. */
  generate(
    request: T.GenerateRequest,
    each: (token: T.Written) => void,
    signal?: AbortSignal,
  ): Promise<{ text: string; tokens: number; ended: boolean }>
  notes(signal?: AbortSignal): Promise<T.Notes>
  note(number: number, inputs: T.NoteInputs, signal?: AbortSignal): Promise<T.Worked>
  /** A trace as one offline page, which opens this address. */
  page(id: string, view: string): Promise<Blob>
  /** The same for the notes, and for an example with other numbers. */
  notesPage(view: string, other: T.OtherNote | null): Promise<Blob>
}

/** An error with one sentence for the user. */
export class UserError extends Error {
  /** `status` is the answer's: 400 and 422 blame the request, 0: there was no answer. */
  constructor(message: string, readonly status = 0) {
    super(message)
  }
}

/** Fields of answers that are numbers. A word may well be called "inf": it stays text. */
const NUMBERS = new Set(['p', 'logprob', 'score'])

/** JSON has no infinities: "inf", "-inf" and "nan" become numbers again here, once for all views. */
export function parsed<R>(said: string): R {
  try {
    return JSON.parse(said, (key, value: unknown) =>
      NUMBERS.has(key) && typeof value === 'string' ? number(value as T.Num) : value,
    ) as R
  } catch {
    throw new UserError('The studio’s answer is not valid JSON; reload the page, and report it if it happens again.')
  }
}

/** The sentence for any error; null for a cancelled request. */
export function sentence(error: unknown): string | null {
  if (error instanceof DOMException && error.name === 'AbortError') return null
  if (error instanceof UserError) return error.message
  console.error(error)
  return 'An error in this page; reload it, and report it if it happens again.'
}
