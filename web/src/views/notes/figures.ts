/** Numbers of the notes as tables, and as the notes write them. */

import type { Difference, Figure, Figures, NoteStep, Printing } from '../../lib/types'

/** A number, a vector or a table: always as rows. */
export function rowsOf<F>(value: Figures<F>): F[][] {
  if (!Array.isArray(value)) return [[value]]
  return Array.isArray(value[0]) ? (value as F[][]) : [value as F[]]
}

export function numberOf(figure: Figure): number {
  if (typeof figure === 'number') return figure
  return figure === 'inf' ? Infinity : -Infinity
}

/** A float32's last bit near 1: what differs by less is the same number. */
const NOISE = 1.2e-7

/** `2`, `0.3` or `0.99995` where that is all of it, else rounded: `0.7311`. The server's sums are written so too. */
export function figure(given: Figure): string {
  const value = numberOf(given)
  if (!Number.isFinite(value)) return value > 0 ? '∞' : '−∞'
  for (let digits = 0; digits < 6; digits++) {
    const said = value.toFixed(digits)
    if (Math.abs(Number(said) - value) < NOISE && (digits < 5 || said.endsWith('5'))) return grouped(said)
  }
  return grouped(value.toFixed(4))
}

function grouped(said: string): string {
  const [, sign, whole, rest = ''] = /^(-?)(\d+)(\.\d+)?$/.exec(said)!
  const zero = Number(said) === 0
  return (sign && !zero ? '−' : '') + whole!.replace(/\B(?=(\d{3})+$)/g, ',') + rest
}

/** Which number of a step: the row and the column of its table. */
export interface At {
  row: number
  column: number
}

/** The sum that belongs to one number; -1: none does. Some sums are of a whole row, some of all numbers. */
export function lineOf({ value, rows, columns, lines }: NoteStep, { row, column }: At): number {
  const name = rows[row] ?? ''
  const single = !Array.isArray(value)
  const wanted = [
    columns.length > 0 ? (name ? `${name} → ${columns[column]}` : columns[column]!) : name ? `${name}, ${column + 1}` : `${column + 1}`,
    name,
  ]
  for (const of of wanted) {
    const found = lines.findIndex((line) => line.of !== '' && line.of === of)
    if (found >= 0) return found
  }
  // "The, 1" for a vector that has no name of its own.
  if (!single && rows.length === 0) {
    const found = lines.findIndex((line) => line.of.endsWith(`, ${column + 1}`))
    if (found >= 0) return found
  }
  return single && lines.length === 1 && lines[0]!.of !== '' ? 0 : -1
}

/** How the server says where a printed number stands. */
export function whereOf(step: NoteStep, printing: Printing, { row, column }: At): string {
  if (!Array.isArray(printing.value)) return ''
  const name = printing.row ?? step.rows[row] ?? ''
  const key = step.columns[column]
  if (step.columns.length > 0) return name ? `${name} → ${key}` : key!
  return name ? `${name}, number ${column + 1}` : `number ${column + 1}`
}

/** A printed number, and what it should be, if it is wrong. */
export interface Print {
  text: string
  true: string | null
}

/** What a printing says, number by number; `shape`: it has too many numbers, or too few. */
export function printsOf(step: NoteStep, printing: Printing, differences: Difference[]): { rows: Print[][]; shape: Difference | null } {
  const wrong = differences.filter(({ note, of }) => note === printing.note && of === printing.of)
  const shape = wrong.find(({ where }) => where === 'how many') ?? null
  const rows = rowsOf(printing.value).map((texts, row) =>
    texts.map((text, column) => {
      const found = shape ? undefined : wrong.find(({ where }) => where === whereOf(step, printing, { row, column }))
      return { text: text.replace('-', '−'), true: found ? found.true.replace('-', '−') : null }
    }),
  )
  return { rows, shape }
}

/** Right, wrong, or not printed at all. */
export type Mark = 'right' | 'wrong' | 'absent'

export function markOf({ printed, differs }: { printed: Printing[]; differs: boolean }): Mark {
  return printed.length === 0 ? 'absent' : differs ? 'wrong' : 'right'
}

export const MARKS: Record<Mark, { sign: string; said: string; colour: string }> = {
  right: { sign: '✓', said: 'right in the notes', colour: 'var(--good)' },
  wrong: { sign: '✗', said: 'wrong in the notes', colour: 'var(--accent)' },
  absent: { sign: '+', said: 'not printed in the notes', colour: 'var(--faint)' },
}

/** A stretch of a written sum: exponents are raised. */
export interface Stretch {
  text: string
  raised: boolean
}

/** "e^3 / (e^3 + e^2)" and "10000^(2/4)", in stretches. */
export function raised(line: string): Stretch[] {
  const minus = line.replace(/(^|[\s(^·[])-(?=[\d∞])/g, '$1−').replaceAll(' - ', ' − ')
  const found: Stretch[] = []
  let from = 0
  for (const power of minus.matchAll(/\^(?:\(([^()]*)\)|(−?[\d.,]*\d|−?∞))/g)) {
    if (power.index > from) found.push({ text: minus.slice(from, power.index), raised: false })
    found.push({ text: power[1] ?? power[2]!, raised: true })
    from = power.index + power[0].length
  }
  if (from < minus.length) found.push({ text: minus.slice(from), raised: false })
  return found
}
