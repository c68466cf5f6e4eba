/** The server's calls. `source` is what views use. */

import { embedded, Offline } from './offline'
import { lru } from './lru'
import { number } from './expression'
import { parsed, sentence, UserError, type Source } from './source'
import { token } from './token'
import type * as T from './types'

export { UserError, sentence, type Source } from './source'

export class Server implements Source {
  readonly live = true
  #values = lru<T.Slice>(64e6, (slice) => slice.values.byteLength)
  #explanations = lru<T.Explanation>(600, () => 1)

  constructor(
    private readonly token: string,
    private readonly base = './api',
  ) {}

  async models(signal?: AbortSignal): Promise<T.ModelInfo[]> {
    return (await this.#get<{ models: T.ModelInfo[] }>('/models', signal)).models
  }

  run(request: T.RunRequest, signal?: AbortSignal): Promise<T.TraceInfo> {
    return this.#post('/run', request, signal)
  }

  trace(id: string, signal?: AbortSignal): Promise<T.TraceInfo> {
    return this.#get(`/traces/${id}`, signal)
  }

  slice(id: string, name: string, at: T.At, signal?: AbortSignal): Promise<T.Slice> {
    const where = `/traces/${id}/values/${name}?at=${written(at)}&format=binary`
    return this.#values(where, async () => {
      const response = await this.#ask(where, { signal })
      const shape = (response.headers.get('X-Shape') ?? '').split(',').filter(Boolean).map(Number)
      return { values: new Float32Array(await response.arrayBuffer()), shape }
    })
  }

  explain(id: string, name: string, at: number[], signal?: AbortSignal): Promise<T.Explanation> {
    const where = `/traces/${id}/explain/${name}?at=${at.join(',')}`
    return this.#explanations(where, async () => {
      const { value, tolerance, ...rest } = await this.#get<T.Explanation & Record<'value' | 'tolerance', T.Num>>(where, signal)
      return { ...rest, value: number(value), tolerance: number(tolerance) }
    })
  }

  lens(id: string, signal?: AbortSignal): Promise<T.Lens> {
    return this.#get(`/traces/${id}/lens`, signal)
  }

  rollout(id: string, signal?: AbortSignal): Promise<T.Rollout> {
    return this.#get(`/traces/${id}/rollout`, signal)
  }

  next(request: T.NextRequest, signal?: AbortSignal): Promise<T.Next> {
    return this.#post('/next', request, signal)
  }

  beams(request: T.BeamsRequest, signal?: AbortSignal): Promise<T.Beams> {
    return this.#post('/beams', request, signal)
  }

  async generate(
    request: T.GenerateRequest,
    each: (token: T.Written) => void,
    signal?: AbortSignal,
  ): Promise<{ text: string; tokens: number; ended: boolean }> {
    const response = await this.#ask('/generate', posted(request, signal))
    for await (const { event, data } of events(response)) {
      if (event === 'token') each(data as T.Written)
      if (event === 'done') return data as { text: string; tokens: number; ended: boolean }
      if (event === 'error') throw new UserError(capital((data as { error: string }).error))
    }
    throw new UserError('The connection ended before the text was complete; try again.')
  }

  notes(signal?: AbortSignal): Promise<T.Notes> {
    return this.#get('/notes', signal)
  }

  note(number: number, inputs: T.NoteInputs, signal?: AbortSignal): Promise<T.Worked> {
    return this.#post(`/notes/${number}`, { inputs }, signal)
  }

  async page(id: string, view: string): Promise<Blob> {
    return (await this.#ask(`/traces/${id}/html?view=${encodeURIComponent(view)}`, {})).blob()
  }

  async notesPage(view: string, other: T.OtherNote | null): Promise<Blob> {
    return (await this.#ask('/notes/html', posted({ view, other }))).blob()
  }

  async #get<R>(path: string, signal?: AbortSignal): Promise<R> {
    return parsed(await (await this.#ask(path, { signal })).text())
  }

  async #post<R>(path: string, body: unknown, signal?: AbortSignal): Promise<R> {
    return parsed(await (await this.#ask(path, posted(body, signal))).text())
  }

  async #ask(path: string, options: RequestInit): Promise<Response> {
    let response: Response
    try {
      response = await fetch(this.base + path, { ...options, headers: { ...options.headers, Authorization: `Bearer ${this.token}` } })
    } catch (error) {
      if (options.signal?.aborted) throw error
      throw new UserError('The studio does not answer; is it still running in its terminal?')
    }
    if (!response.ok) throw new UserError(await reason(response), response.status)
    return response
  }
}

function posted(body: unknown, signal?: AbortSignal): RequestInit {
  return { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify(body), signal }
}

function written(at: T.At): string {
  return at.map((place) => (place === null ? ':' : place)).join(',')
}

async function reason(response: Response): Promise<string> {
  const said: unknown = await response.json().catch(() => null)
  if (said !== null && typeof said === 'object' && 'error' in said && typeof said.error === 'string') return capital(said.error)
  return `The studio answered with status ${response.status}.`
}

/** The server's sentences begin in lower case, as in a terminal. */
function capital(sentence: string): string {
  const whole = sentence.charAt(0).toUpperCase() + sentence.slice(1)
  return /[.!?…]$/.test(whole) ? whole : `${whole}.`
}

/** Server-sent events, as they come. */
async function* events(response: Response): AsyncGenerator<{ event: string; data: unknown }> {
  const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader()
  let rest = ''
  for (;;) {
    const { value, done } = await reader.read()
    if (done) return
    rest = (rest + value).replaceAll('\r\n', '\n')
    const whole = rest.split('\n\n')
    rest = whole.pop()!
    for (const block of whole) {
      let event = 'message'
      let data = ''
      for (const line of block.split('\n')) {
        if (line.startsWith('event:')) event = line.slice(6).trim()
        if (line.startsWith('data:')) data += line.slice(5)
      }
      if (data) yield { event, data: parsed(data) }
    }
  }
}

/** Fetches for an effect, and returns its cleanup: a cancelled request calls back with neither result nor error. */
export function load<R>(ask: (signal: AbortSignal) => Promise<R>, then: (got: R) => void, failed: (problem: string | null) => void): () => void {
  const stop = new AbortController()
  ask(stop.signal).then(
    (got) => {
      if (!stop.signal.aborted) then(got)
    },
    (error: unknown) => {
      if (!stop.signal.aborted) failed(sentence(error))
    },
  )
  return () => stop.abort()
}

/** Cancels the request before when the next one is made: `latest.signal()` for each. */
export class Latest {
  #now: AbortController | null = null

  signal(): AbortSignal {
    this.stop()
    this.#now = new AbortController()
    return this.#now.signal
  }

  stop(): void {
    this.#now?.abort()
    this.#now = null
  }
}

const inside = embedded()
export const source: Source = inside === null ? new Server(token()) : new Offline(inside)
/** The page with the data in it, if this is one. */
export const file = inside
