/** Where the page is. Views read and write their part of the address; back, forward and reload follow from that. */

import { file } from './api'
import { format, parse, readField, writeField, type Address, type Field } from './address'

/** What all views share, and what goes along from one to the next. */
export const SHARED = ['model', 'task', 'text', 'pair', 'target', 'image'] as const

class Router {
  #address = $state.raw<Address>(parse(location.hash || (file?.address ?? '')))

  constructor() {
    addEventListener('hashchange', () => (this.#address = parse(location.hash)))
    addEventListener('popstate', () => (this.#address = parse(location.hash)))
    addEventListener('click', (event) => this.#follow(event))
  }

  /** In a notebook's frame a link to "#…" leads to the notebook itself, so links are followed here. */
  #follow(event: MouseEvent): void {
    if (event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey) return
    const link = event.target instanceof Element ? event.target.closest('a[href^="#/"]') : null
    if (!link) return
    event.preventDefault()
    this.go(parse(link.getAttribute('href')!))
  }

  get view(): string {
    return this.#address.view
  }

  get query(): Record<string, string> {
    return this.#address.query
  }

  /** A link to another view, with what the views share. */
  link(view: string, more: Record<string, string> = {}): string {
    const query: Record<string, string> = {}
    for (const name of SHARED) if (this.query[name]) query[name] = this.query[name]
    return format({ view, query: { ...query, ...more } })
  }

  /** Small steps replace the entry in the history, so that "back" leads to where one came from; large ones `push`. */
  change(query: Record<string, string>, { push = false } = {}): void {
    this.go({ view: this.view, query: { ...this.query, ...query } }, { push })
  }

  go(address: Address, { push = true } = {}): void {
    const hash = format(address)
    if (hash === format(this.#address)) return
    this.#address = parse(hash)
    try {
      if (push) history.pushState(null, '', hash)
      else history.replaceState(null, '', hash)
    } catch {
      // a page in a notebook's frame has no history
    }
  }
}

export const router = new Router()

type Fields<F> = { [N in keyof F]: F[N] extends Field<infer V> ? V : never }

/**
 * The fields of a view's address as an object to read and to write; reading is reactive.
 *
 *     const at = fields({ layer: whole(0), heads: wholes() })
 *     at.layer = 2        // ...&layer=2
 */
export function fields<F extends Record<string, Field<any>>>(declared: F): Fields<F> {
  const object = {}
  for (const [name, field] of Object.entries(declared)) {
    const said = $derived(router.query[name])
    const value = $derived(said === undefined ? field.absent : readField(field, { [name]: said }, name))
    Object.defineProperty(object, name, {
      enumerable: true,
      get: () => value as unknown,
      set: (next: unknown) => router.change({ [name]: writeField(field, next) }),
    })
  }
  return object as Fields<F>
}
