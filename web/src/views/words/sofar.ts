/** What is written so far, in the address. It belongs to one text: with another text it is nothing. */

import type { Field } from '../../lib/address'

export interface SoFar {
  /** A short mark of the text; empty: any text, as in a link that a person wrote. */
  of: string
  ids: number[]
}

export function mark(text: string): string {
  let hash = 0x811c9dc5
  for (let i = 0; i < text.length; i++) hash = Math.imul(hash ^ text.charCodeAt(i), 0x01000193)
  return (hash >>> 0).toString(36).slice(-4)
}

/** "k3f0:313,461" */
export const soFar: Field<SoFar> = {
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
export function idsOf({ of, ids }: SoFar, text: string): number[] {
  return of === '' || of === mark(text) ? ids : []
}

export const startsWith = (ids: number[], start: number[]): boolean => start.every((id, i) => ids[i] === id)
export const same = (a: number[], b: number[]): boolean => a.length === b.length && startsWith(a, b)
