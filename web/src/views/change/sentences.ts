/** Edits and places as sentences. */

import type { Change } from './edits'

/** What holds while a switch is on, and while it is off. */
export const SWITCHES: Record<string, { title: string; on: string; off: string }> = {
  scaling: { title: 'Scaling', on: 'scores are divided by √d_k', off: 'scores are not divided by √d_k' },
  mask: { title: 'Mask', on: 'later tokens are masked', off: 'the decoder attends to later tokens' },
  positions: { title: 'Positions', on: 'tokens carry their positions', off: 'tokens carry no positions' },
  residual: { title: 'Residuals', on: 'a sublayer’s output is added to its input', off: 'a sublayer’s output replaces its input' },
  block: { title: 'Blocks', on: 'every block computes', off: 'a block passes its input on unchanged' },
}

const PARTS: Record<string, string> = {
  self_attention: 'self-attention',
  cross_attention: 'cross-attention',
  feedforward: 'feed-forward',
}

/** "decoder.blocks.0.cross_attention" is "decoder block 0, cross-attention"; null: it has no such name. */
export function placeName(where: string): string | null {
  if (where === '*') return 'everywhere'
  if (where === 'decoder.attention') return 'attention over the source'
  const found = /^(encoder|decoder)(?:\.blocks\.(\d+)(?:\.(self_attention|cross_attention|feedforward))?)?$/.exec(where)
  if (!found) return null
  const [, side, block, part] = found
  return [side! + (block === undefined ? '' : ` block ${block}`), ...(part ? [PARTS[part]!] : [])].join(', ')
}

/** The query and key of a weight, if they are known. */
export type Labelled = (value: string, at: number[]) => { query: string; key: string } | null

/** One edit as one sentence. */
export function changeSentence(change: Change, labelled: Labelled = () => null): string {
  switch (change.kind) {
    case 'swap':
      return change.to === '' ? `“${change.from}” is removed.` : `“${change.from}” becomes “${change.to}”.`
    case 'off': {
      const means = SWITCHES[change.what]?.off ?? `${change.what} is off`
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
      const what = labels ? `The weight of “${labels.key}” for “${labels.query}” is` : `The cell ${change.at.join(', ')} is`
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
