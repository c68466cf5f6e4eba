/** Light or dark: the system's, unless a person chose. */

import type { Theme } from './colour'

const KEY = 'cutaway-theme'
const system = matchMedia('(prefers-color-scheme: dark)')

class Shade {
  #chosen = $state<Theme | null>(remembered())
  #dark = $state(system.matches)

  constructor() {
    system.addEventListener('change', () => (this.#dark = system.matches))
  }

  get now(): Theme {
    return this.#chosen ?? (this.#dark ? 'dark' : 'light')
  }

  toggle(): void {
    this.#chosen = this.now === 'dark' ? 'light' : 'dark'
    try {
      localStorage.setItem(KEY, this.#chosen)
    } catch {
      // a page on disk may not be allowed to remember
    }
  }
}

function remembered(): Theme | null {
  try {
    const said = localStorage.getItem(KEY)
    return said === 'light' || said === 'dark' ? said : null
  } catch {
    return null
  }
}

export const shade = new Shade()
