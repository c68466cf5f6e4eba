/** The studio's models, and the run that all views share. */

import { file, Latest, sentence, source, UserError } from './api'
import { router } from './router.svelte'
import { recall, remembers } from './image'
import type { ModelInfo, RunRequest, TraceInfo, ValueInfo } from './types'

class Session {
  models = $state.raw<ModelInfo[]>([])
  trace = $state.raw<TraceInfo | null>(null)
  busy = $state(false)
  error = $state<string | null>(null)
  /** What the studio says to a page that has not got its token. */
  locked = $state<string | null>(null)

  /** The chosen model. */
  model = $derived(this.models.find(({ name }) => name === router.query['model']) ?? this.models[0] ?? null)
  /** The one that the address asks for, if it is not here. */
  missing = $derived(
    this.model && router.query['model'] && router.query['model'] !== this.model.name ? router.query['model'] : null,
  )
  task = $derived(this.#task())
  /** What is typed, without the task's prefix. */
  text = $derived(typed('text', this.model?.example))
  /** What an encoder reads after it: the text in which a question is answered. */
  pair = $derived(typed('pair', this.model?.example_pair))
  target = $derived(router.query['target'] ?? '')
  /** What the model is given. */
  given = $derived((this.model?.prefixes[this.task] ?? '') + this.text)

  /** There is nothing to run: the field was emptied. */
  empty = $derived(source.live && this.model?.reads === 'text' && this.given.trim() === '')
  /** The image that the address asks for is not known to this tab. */
  lost = $derived(this.model?.reads === 'image' && !!router.query['image'] && !remembers(router.query['image']))

  /** The run is of the model and the text that are chosen, not of those before. */
  fresh = $derived(
    !!this.model && this.trace?.model === this.model.name && (this.model.reads === 'image' || this.trace.text === this.given),
  )

  /** The run was changed by hand: a page on disk may hold one. */
  edited = $derived((this.trace?.edits.length ?? 0) > 0)

  #byName = $derived(new Map(this.trace?.values.map((value) => [value.name, value])))
  #latest = new Latest()
  #seen = ''

  #task(): string {
    const tasks = this.model?.tasks ?? []
    return tasks.find((task) => task === router.query['task']) ?? tasks[0] ?? ''
  }

  /** Axes, shape and formula of a value of this run. */
  value(name: string): ValueInfo | undefined {
    return this.#byName.get(name)
  }

  async start(): Promise<void> {
    try {
      this.models = await source.models()
      if (file) this.trace = file.traces[0]?.info ?? null
    } catch (error) {
      this.#failed(error)
    }
  }

  /** What to run, from the address. */
  get request(): RunRequest | null {
    if (!this.model) return null
    const { name, reads, family } = this.model
    if (reads === 'image') return { model: name, image: recall(router.query['image'] ?? '') }
    if (this.empty) return null
    const target = family === 'encoder-decoder' && this.target ? { target: this.target } : {}
    const pair = family === 'encoder-only' && this.pair ? { pair: this.pair } : {}
    return { model: name, text: this.given, ...target, ...pair }
  }

  /** Runs it, unless it is the last run's request, or `again` is asked for. */
  async look(request: RunRequest | null, { again = false } = {}): Promise<void> {
    if (!source.live) return
    if (request === null) {
      this.#latest.stop()
      this.#seen = ''
      this.trace = null
      this.busy = false
      return
    }
    const key = JSON.stringify(request)
    if (key === this.#seen && !again) return
    this.#seen = key
    this.busy = true
    const signal = this.#latest.signal()
    try {
      this.trace = await source.run(request, signal)
      this.error = null
    } catch (error) {
      if (signal.aborted) return
      this.#failed(error)
      this.#seen = ''
    }
    this.busy = false
  }

  #failed(error: unknown): void {
    if (error instanceof UserError && error.status === 401) this.locked = error.message
    else this.error = sentence(error)
  }
}

/** What stands in a field: of the address, where one blank is a field that was emptied, or else the example. */
function typed(name: string, example = ''): string {
  const said = router.query[name] ?? example
  return said.trim() === '' ? '' : said
}

export const session = new Session()
