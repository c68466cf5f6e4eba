/** Tokens as a person reads them. */

import type { AttentionInfo, TraceInfo, Tok, ValueInfo } from './types'

/** Without the mark of a word's beginning. What cannot be seen is named: blanks as ␣, zero-width signs as U+200B. */
export function shown(text: string): string {
  const bare = text.replace(/^▁/, '')
  if (bare === '') return '␣'
  const empty = !/[^\s▁\p{DI}]/u.test(bare)
  const named = bare
    .replaceAll('\n', '↵')
    .replace(/[\x00-\x1f]/g, (sign) => String.fromCharCode(0x2400 + sign.charCodeAt(0)))
    .replace(empty ? UNSEEN : UNSEEN_BY_ITSELF, (sign) => `U+${sign.codePointAt(0)!.toString(16).toUpperCase().padStart(4, '0')}`)
  return empty ? named.replace(/[\s▁]/g, '␣') : named.replaceAll('▁', ' ')
}

/** Joiners, variation selectors and tags shape the letters they stand among; only alone are they nothing to see. */
const UNSEEN = /[\p{DI}\x7f-\x9f\u2800]/gu
const UNSEEN_BY_ITSELF = /(?![\u200c\u200d\ufe00-\ufe0f\u{e0020}-\u{e007f}])[\p{DI}\x7f-\x9f\u2800]/gu

/** For tokens of one list: "l'" within a word and "▁l'" that begins one look alike; then the mark is shown. */
export function distinct(texts: string[]): (text: string) => string {
  const seen = [...new Set(texts)].map(shown)
  const alike = new Set(seen.filter((text, i) => seen.indexOf(text) !== i))
  return (text) => {
    const said = shown(text)
    if (!alike.has(said) || !text.startsWith('▁')) return said
    return text === '▁' ? text : `▁${said}`
  }
}

export const labels = (tokens: Tok[]): string[] => tokens.map(({ text }) => shown(text))

/** Whether a token goes on with the word of the one before: then they stand close together. */
export const joined = (tokens: Tok[], i: number): boolean => i > 0 && tokens[i - 1]!.word === tokens[i]!.word

/** Whose tokens an axis of a value counts. */
export function side(trace: TraceInfo, name: string, axis: string): 'source' | 'target' | null {
  if (axis === 'S') {
    const across = name.startsWith('encoder.') || name.startsWith('decoder.attention.') || name.includes('.cross_attention.')
    return across ? 'source' : 'target'
  }
  if (axis !== 'T' && axis !== 'P') return null
  return name.startsWith('encoder.') || (name.startsWith('head.') && trace.tokens.target.length === 0)
    ? 'source'
    : 'target'
}

/** The tokens along an axis; null: only numbers. */
export function along(trace: TraceInfo, value: ValueInfo, axis: number): string[] | null {
  const letter = value.axes[axis] ?? ''
  const whose = side(trace, value.name, letter)
  if (whose === null) return null
  const tokens = labels(trace.tokens[whose])
  const words = letter === 'P' ? tokens.slice(1) : tokens // the class token is no patch
  return words.length === value.shape[axis] ? words : null
}

const AXES: Record<string, string> = {
  B: 'batch row', H: 'head', G: 'key/value head', T: 'token', S: 'key', D: 'width', K: 'head width', E: 'width',
  F: 'hidden width', V: 'word', C: 'class', P: 'patch', '1': '', '2': 'start or end',
}

/** "query" rather than "token" where there are keys too. */
export function axisName(axes: string, axis: number): string {
  const letter = axes[axis] ?? ''
  return letter === 'T' && axes.includes('S') ? 'query' : (AXES[letter] ?? letter)
}

/** "8 heads × 7 queries × 12 keys", "7 tokens × width 128". */
export function dimensions({ axes, shape }: Pick<ValueInfo, 'axes' | 'shape'>): string {
  const said = [...axes].map((letter, axis) => {
    const [name, n] = [axisName(axes, axis), shape[axis]!]
    if (name === '' || (letter === 'B' && n === 1)) return ''
    if (name.endsWith('width')) return `${name} ${n}`
    if (letter === 'V') return `vocabulary ${n}`
    return letter === '2' ? name.replace('or', 'and') : `${n} ${n === 1 ? name : plural(name)}`
  })
  return said.filter(Boolean).join(' × ')
}

const plural = (name: string): string => name.replace(/([^e])y$/, '$1ie').replace(/(s|ch)$/, '$1e') + 's'

/** What the rows and columns of attention weights stand for. */
export const ROWS_AND_COLUMNS: Record<AttentionInfo['kind'], { rows: string; columns: string }> = {
  encoder: { rows: 'each token (query)', columns: 'all tokens (keys)' },
  decoder: { rows: 'each token (query)', columns: 'itself and earlier tokens (keys)' },
  cross: { rows: 'the token the decoder has just read, which chooses the next (query)', columns: 'source tokens (keys)' },
}

/** Which tokens of a side the place of a number names: its query, its key. */
export function tokensOf(trace: TraceInfo, value: ValueInfo, at: number[], whose: 'source' | 'target'): number[] {
  return at.flatMap((n, axis) => {
    const letter = value.axes[axis] ?? ''
    if (side(trace, value.name, letter) !== whose) return []
    return [letter === 'P' ? n + 1 : n]
  })
}
