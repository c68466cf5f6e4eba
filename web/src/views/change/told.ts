/** Changes and places as a person says them. */

import type { Change } from './edits'

export const SWITCHES: Record<string, { title: string; means: string }> = {
  scaling: { title: 'Scaling', means: 'scores are not divided by √d' },
  mask: { title: 'Mask', means: 'the decoder may look ahead' },
  positions: { title: 'Positions', means: 'no token knows where it stands' },
  residual: { title: 'Residuals', means: 'what a sublayer gives is not added to what it read' },
  block: { title: 'Blocks', means: 'a block hands on what it got' },
}

const PARTS: Record<string, string> = {
  self_attention: 'self-attention',
  cross_attention: 'cross-attention',
  feedforward: 'feed-forward',
}

/** "decoder.blocks.0.cross_attention" is "decoder block 0, cross-attention"; null: it has no such name. */
export function placeName(where: string): string | null {
  if (where === '*') return 'everywhere'
  if (where === 'decoder.attention') return 'the attention over the source'
  const found = /^(encoder|decoder)(?:\.blocks\.(\d+)(?:\.(self_attention|cross_attention|feedforward))?)?$/.exec(where)
  if (!found) return null
  const [, side, block, part] = found
  return [side! + (block === undefined ? '' : ` block ${block}`), ...(part ? [PARTS[part]!] : [])].join(', ')
}

/** What a token of a value's axis is called, if it is known. */
export type Labelled = (value: string, at: number[]) => { query: string; key: string } | null

/** One change as one sentence. */
export function told(change: Change, labelled: Labelled = () => null): string {
  switch (change.kind) {
    case 'swap':
      return change.to === '' ? `“${change.from}” is left out.` : `“${change.from}” becomes “${change.to}”.`
    case 'off': {
      const means = SWITCHES[change.what]?.means ?? `${change.what} is off`
      return `${capital(means)}: ${placeName(change.where ?? '*') ?? change.where}.`
    }
    case 'zero': {
      const attention = /^(.*)\.heads$/.exec(change.value)?.[1]
      const place = attention ? placeName(attention) : null
      if (place) return `${change.head === undefined ? 'All heads are' : `Head ${change.head} is`} zero: ${place}.`
      return `${named(change.value, change.head)} is zero.`
    }
    case 'scale':
      return `${named(change.value, change.head)} is multiplied by ${number(change.by)}.`
    case 'set': {
      const labels = labelled(change.value, change.at)
      const place = placeName(change.value.replace(/\.weights$/, '')) ?? change.value
      const head = change.at.length === 4 ? `, head ${change.at[1]}` : ''
      const what = labels ? `“${labels.query}” gives “${labels.key}”` : `The cell ${change.at.join(', ')} is`
      const rest = change.renormalise ? '; the row still sums to 1' : ''
      return `${what} ${number(change.to)}${rest}: ${place}${head}.`
    }
    case 'patch':
      return `${change.value} is as it was in the run ${change.trace}.`
  }
}

function named(value: string, head: number | undefined): string {
  return head === undefined ? value : `Head ${head} of ${value}`
}

const number = (value: number | string): string => String(value).replace('-inf', '−∞').replace('-', '−')

const capital = (text: string): string => text.charAt(0).toUpperCase() + text.slice(1)
