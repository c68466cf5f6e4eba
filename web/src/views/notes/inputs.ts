/** The inputs of an example, and other numbers in their place. */

import type { NoteInput, NoteInputs } from '../../lib/types'

/** One input as a table: rows with labels, if it has any, of numbers that can be changed. */
export interface InputTable {
  name: string
  title: string
  /** Words that the rows or, of single numbers, the columns belong to. */
  rowLabels: string[]
  columnLabels: string[]
  rows: number[][]
}

/** One input that is no number. */
export interface InputWord {
  name: string
  title: string
  value: boolean | string
}

const TITLES: Record<string, string> = {
  x: 'x',
  memory: 'memory (keys and values)',
  weights: 'weights, given',
  visible: 'visible: 1, or 0 for padding',
  causal: 'each token sees only itself and earlier tokens',
  scale_scores: 'scores are divided by √d_k',
  position: 'position',
  d_model: 'd_model',
  word: 'word',
  table: 'table of word vectors',
  gamma: 'γ, scale',
  beta: 'β, shift',
  epsilon: 'ε',
  tokens: 'token ids',
  pad: 'id of padding',
  hide: 'padding is hidden as',
  n_heads: 'heads',
  n_tokens: 'tokens',
  preset: 'model',
  vocabulary: 'vocabulary',
}

const isNumbers = (value: NoteInput): value is number[] => Array.isArray(value) && value.every((each) => typeof each === 'number')

export function tablesOf(inputs: NoteInputs): (InputTable | InputWord)[] {
  return Object.entries(inputs).map(([name, value]) => {
    const title = TITLES[name] ?? name
    const table = { name, title, rowLabels: [] as string[], columnLabels: [] as string[] }
    if (typeof value === 'boolean' || typeof value === 'string') return { name, title, value }
    if (typeof value === 'number') return { ...table, rows: [[value]] }
    if (Array.isArray(value)) {
      if (isNumbers(value)) return { ...table, rows: [value] }
      if (value.every(isNumbers)) return { ...table, rows: value }
      return { name, title, value: value.join(', ') }
    }
    const [labels, items] = [Object.keys(value), Object.values(value)]
    if (items.every(isNumbers)) return { ...table, rowLabels: labels, rows: items }
    return { ...table, columnLabels: labels, rows: [items as number[]] }
  })
}

/** The inputs with another number, or another side of a switch. */
export function withInput(inputs: NoteInputs, name: string, row: number, column: number, to: number | boolean): NoteInputs {
  return { ...inputs, [name]: put(inputs[name]!, row, column, to) }
}

function put(value: NoteInput, row: number, column: number, to: number | boolean): NoteInput {
  if (Array.isArray(value)) {
    return isNumbers(value) ? value.with(column, to as number) : value.map((each, i) => (i === row ? put(each, 0, column, to) : each))
  }
  if (typeof value !== 'object') return to
  const labels = Object.keys(value)
  const [first] = Object.values(value)
  const label = labels[Array.isArray(first) ? row : column]!
  return { ...value, [label]: put(value[label]!, 0, column, to) }
}

/** Whether these are the same inputs but for their numbers and switches: an address may say anything. */
export function fits(old: NoteInput, said: unknown): said is NoteInput {
  if (Array.isArray(old)) return Array.isArray(said) && said.length === old.length && old.every((each, i) => fits(each, said[i]))
  if (typeof old === 'object') {
    if (said === null || typeof said !== 'object' || Array.isArray(said)) return false
    const keys = Object.keys(old)
    return Object.keys(said).length === keys.length && keys.every((key) => fits(old[key]!, (said as Record<string, unknown>)[key]))
  }
  return typeof old === 'string' ? said === old : typeof said === typeof old
}

/** Other inputs than the notes', from the address; null if there are none, or they do not fit. */
export function edited(inputs: NoteInputs, said: string): NoteInputs | null {
  try {
    const read: unknown = JSON.parse(said)
    if (fits(inputs, read) && JSON.stringify(read) !== JSON.stringify(inputs)) return read as NoteInputs
  } catch {
    // no JSON: as if there were none
  }
  return null
}
