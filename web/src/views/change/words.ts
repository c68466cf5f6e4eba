/** Words of a text and the tokens that are pieces of them. */

import type { Tok } from '../../lib/types'
import type { Change } from './edits'

/** Where a word stands in the text it came from; null for <s>, [CLS] and what else is not in it. */
export interface Span {
  word: number
  text: string
  start: number
  end: number
}

/** The words of a text, found by their tokens: each stands after the one before. Tokenizers may lower letters. */
export function spans(text: string, tokens: Tok[]): Map<number, Span> {
  const found = new Map<number, Span>()
  const low = text.toLowerCase()
  let from = 0
  for (const { text: token, word } of tokens) {
    const piece = token.replace(/^##/, '').replaceAll('▁', ' ').trim()
    if (piece === '') continue
    const at = low.length === text.length ? low.indexOf(piece.toLowerCase(), from) : text.indexOf(piece, from)
    // Beyond the blanks there would be other words: this token is not in the text.
    if (at < 0 || text.slice(from, at).trim() !== '') continue
    from = at + piece.length
    const start = found.get(word)?.start ?? at
    found.set(word, { word, text: text.slice(start, from), start, end: from })
  }
  for (const span of found.values()) {
    // A full stop is a piece of the word before it, and stays when that word goes.
    const bare = span.text.replace(/[.,;:!?…]+$/, '')
    if (bare !== '') found.set(span.word, { ...span, text: bare, end: span.start + bare.length })
  }
  return found
}

/** The text of the edited run, and the edits whose word is no longer there. */
export function swapped(text: string, tokens: Tok[], changes: Change[]): { text: string; lost: number[] } {
  const known = spans(text, tokens)
  const lost: number[] = []
  const at: { start: number; end: number; to: string }[] = []
  changes.forEach((change, i) => {
    if (change.kind !== 'swap') return
    const span = known.get(change.word)
    if (span?.text === change.from) at.push({ ...span, to: change.to })
    else lost.push(i)
  })
  at.sort((a, b) => b.start - a.start)
  for (const { start, end, to } of at) {
    const after = to === '' ? text.slice(end).replace(/^\s/, '') : text.slice(end)
    text = text.slice(0, start) + to + after
  }
  return { text, lost }
}
