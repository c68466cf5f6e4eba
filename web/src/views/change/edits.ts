/** The edits of a run, as data: the server's, and words that are replaced. */

import type { Field } from '../../lib/address'
import type { Edit, ModelInfo } from '../../lib/types'

/** A replaced word: the page's own edit, since the server only sees the other text. */
export interface Swap {
  kind: 'swap'
  /** As the tokenizer counts them. */
  word: number
  from: string
  to: string
}

export type Change = Edit | Swap

export const isEdit = (change: Change): change is Edit => change.kind !== 'swap'

/** All edits in one field of the address; anything but a list of edits is dropped. */
export const changesField: Field<Change[]> = {
  absent: [],
  read: (said) => {
    try {
      const list: unknown = JSON.parse(said)
      return Array.isArray(list) ? list.filter(sound) : []
    } catch {
      return []
    }
  },
  write: (changes) => (changes.length > 0 ? JSON.stringify(changes) : ''),
}

/** An address may say anything: what the page shows is checked here, the rest by the server. */
function sound(item: unknown): item is Change {
  if (item === null || typeof item !== 'object' || !('kind' in item)) return false
  const said = item as Record<string, unknown>
  const text = (name: string): boolean => typeof said[name] === 'string'
  switch (said['kind']) {
    case 'zero':
    case 'patch':
      return text('value')
    case 'scale':
      return text('value') && typeof said['by'] === 'number'
    case 'set':
      return text('value') && Array.isArray(said['at']) && (typeof said['to'] === 'number' || said['to'] === '-inf')
    case 'off':
      return text('what')
    case 'swap':
      return text('from') && text('to') && Number.isInteger(said['word'])
    default:
      return false
  }
}

/** Whether a head is zeroed. */
export function headOff(changes: Change[], attention: string, head: number): boolean {
  return changes.some((each) => each.kind === 'zero' && each.value === `${attention}.heads` && (each.head ?? head) === head)
}

export function toggleHead(changes: Change[], attention: string, head: number, heads: number): Change[] {
  const value = `${attention}.heads`
  const zero = (n: number): Change => ({ kind: 'zero', value, head: n })
  const whole = changes.findIndex((each) => each.kind === 'zero' && each.value === value && each.head === undefined)
  if (whole >= 0) {
    // All are off by one edit: now all but this one are, each by its own.
    const others = Array.from({ length: heads }, (_, n) => n).filter((n) => n !== head)
    return [...changes.slice(0, whole), ...others.map(zero), ...changes.slice(whole + 1)]
  }
  const rest = changes.filter((each) => !(each.kind === 'zero' && each.value === value && each.head === head))
  return rest.length < changes.length ? rest : [...changes, zero(head)]
}

/** All heads of an attention at once, in one edit. */
export function toggleHeads(changes: Change[], attention: string, heads: number): Change[] {
  const value = `${attention}.heads`
  const all = Array.from({ length: heads }, (_, n) => n).every((n) => headOff(changes, attention, n))
  const rest = changes.filter((each) => !(each.kind === 'zero' && each.value === value))
  return all ? rest : [...rest, { kind: 'zero', value }]
}

/** Where a switch is off. */
export function offAt(changes: Change[], what: string): string[] {
  return changes.flatMap((each) => (each.kind === 'off' && each.what === what ? [each.where ?? '*'] : []))
}

/** "Everywhere" and single places exclude each other: the newer one counts. */
export function toggleOff(changes: Change[], what: string, where: string): Change[] {
  const rest = changes.filter((each) => !(each.kind === 'off' && each.what === what && drops(each.where ?? '*', where)))
  if (offAt(changes, what).includes(where)) return rest
  return [...rest, where === '*' ? { kind: 'off', what } : { kind: 'off', what, where }]
}

const drops = (old: string, now: string): boolean => old === now || old === '*' || now === '*'

/** One cell has one weight: the newest. */
export function setCell(changes: Change[], edit: Extract<Edit, { kind: 'set' }>): Change[] {
  const same = (each: Change): boolean =>
    each.kind === 'set' && each.value === edit.value && each.at.join() === edit.at.join()
  return [...changes.filter((each) => !same(each)), edit]
}

/** A word swapped twice has the last word; swapped back, it is as it was. */
export function swapWord(changes: Change[], swap: Swap): Change[] {
  const rest = changes.filter((each) => !(each.kind === 'swap' && each.word === swap.word))
  return swap.from === swap.to ? rest : [...rest, swap]
}

/** Places of a switch, one row for each kind. */
export interface Places {
  label: string
  places: { label: string; where: string }[]
}

/** Where each switch of a model can be turned off by itself. */
export function placesOf(model: ModelInfo, what: string): Places[] {
  const attentions = (kind: string, label: string): Places => ({
    label,
    places: model.attentions.filter((each) => each.kind === kind).map(({ name, block }) => ({ label: String(block), where: name })),
  })
  const blocks = (side: 'encoder' | 'decoder', part = ''): Places['places'] =>
    Array.from({ length: model[side]?.blocks ?? 0 }, (_, n) => ({ label: String(n), where: `${side}.blocks.${n}${part}` }))
  const rows = (): Places[] => {
    switch (what) {
      case 'scaling':
        return [attentions('encoder', 'encoder'), attentions('decoder', 'decoder'), attentions('cross', 'cross-attention')]
      case 'mask':
        return [attentions('decoder', 'decoder')]
      case 'positions':
        // Rotations are made in each attention, the other kinds once in each half.
        return (['encoder', 'decoder'] as const).map((side) =>
          model[side]?.positions === 'rotary' ? attentions(side, side) : { label: side, places: model[side] ? [{ label: 'all', where: side }] : [] },
        )
      case 'residual':
        return (['encoder', 'decoder'] as const).flatMap((side) => [
          { label: `${side}, attention`, places: blocks(side, '.self_attention') },
          { label: 'cross-attention', places: side === 'decoder' && model.encoder ? blocks(side, '.cross_attention') : [] },
          { label: `${side}, feed-forward`, places: blocks(side, '.feedforward') },
        ])
      default:
        return [{ label: 'encoder', places: blocks('encoder') }, { label: 'decoder', places: blocks('decoder') }]
    }
  }
  return rows().filter(({ places }) => places.length > 0)
}
