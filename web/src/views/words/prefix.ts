/** The generated tokens, in the address. They belong to one input: with another they are dropped. */

import type { Field } from '../../lib/address'

export interface Prefix {
  /** A short hash of the text; empty: any text, as in a link written by hand. */
  of: string
  ids: number[]
}

export function mark(text: string): string {
  let hash = 0x811c9dc5
  for (let i = 0; i < text.length; i++) hash = Math.imul(hash ^ text.charCodeAt(i), 0x01000193)
  return (hash >>> 0).toString(36).slice(-4)
}

/** "k3f0:313,461" */
export const prefixField: Field<Prefix> = {
  absent: { of: '', ids: [] },
  read: (said) => {
    const [before, after] = said.includes(':') ? (said.split(':', 2) as [string, string]) : ['', said]
    return {
      of: before,
      ids: after
        .split(',')
        .filter((each) => /^\d{1,9}$/.test(each))
        .map(Number),
    }
  },
  write: ({ of, ids }) => (ids.length === 0 ? '' : `${of}${of ? ':' : ''}${ids.join(',')}`),
}

/** The tokens, if they are of this text. */
export function idsOf({ of, ids }: Prefix, text: string): number[] {
  return of === '' || of === mark(text) ? ids : []
}

export const startsWith = (ids: number[], start: number[]): boolean => start.every((id, i) => ids[i] === id)
export const same = (a: number[], b: number[]): boolean => a.length === b.length && startsWith(a, b)
