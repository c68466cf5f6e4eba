/** How a matrix lies on its canvas: sizes of cells and margins, and which cell is where. */

import type { At, ValueInfo } from './types'
import type { Cells } from './expression'

export interface Cell {
  row: number
  column: number
}

/** Cells that light up; null: all along that axis. */
export interface Lit {
  row: number | null
  column: number | null
}

export interface Layout {
  /** Of one cell. */
  width: number
  height: number
  /** Margins for the labels. */
  left: number
  top: number
}

export interface Wanted {
  rows: number
  columns: number
  /** The room there is. */
  room: number
  left: number
  top: number
  /** Large enough to print numbers in. */
  numbers: boolean
  /** As wide as high, at most this. */
  square: number | null
}

export function layout({ rows, columns, room, left, top, numbers, square }: Wanted): Layout {
  if (numbers) return { width: 52, height: 22, left, top }
  const fits = (room - left) / Math.max(columns, 1)
  if (square !== null) {
    const side = Math.max(5, Math.min(square, fits))
    return { width: side, height: side, left, top }
  }
  const height = rows <= 20 ? 15 : rows <= 40 ? 12 : 10
  return { width: Math.max(1, Math.min(28, fits)), height, left, top }
}

export function cellAt(x: number, y: number, { width, height, left, top }: Layout, rows: number, columns: number): Cell | null {
  const [row, column] = [Math.floor((y - top) / height), Math.floor((x - left) / width)]
  return row >= 0 && row < rows && column >= 0 && column < columns ? { row, column } : null
}

/** Where an arrow key leads; null: the key means nothing here. */
export function moved({ row, column }: Cell, key: string, rows: number, columns: number): Cell | null {
  const to: Record<string, Cell> = {
    ArrowUp: { row: row - 1, column },
    ArrowDown: { row: row + 1, column },
    ArrowLeft: { row, column: column - 1 },
    ArrowRight: { row, column: column + 1 },
    PageUp: { row: row - 10, column },
    PageDown: { row: row + 10, column },
    Home: { row, column: 0 },
    End: { row, column: columns - 1 },
  }
  const next = to[key]
  if (!next) return null
  const within = (n: number, size: number): number => Math.max(0, Math.min(size - 1, n))
  return { row: within(next.row, rows), column: within(next.column, columns) }
}

/** A value as a matrix: the last two axes that are longer than one run; `at` fixes the others. */
export interface Face {
  at: At
  /** Which axes of the value are the rows and the columns; null: there is one row. */
  rowAxis: number | null
  columnAxis: number
  rows: number
  columns: number
}

export function face(value: ValueInfo, head: number): Face {
  const { axes, shape } = value
  const n = shape.length
  const columnAxis = n - 1
  const rowAxis = n >= 2 && axes[n - 2] !== 'B' ? n - 2 : null
  const at: At = shape.map((size, axis) => {
    if (axis === columnAxis || axis === rowAxis) return null
    return axes[axis] === 'H' || axes[axis] === 'G' ? Math.min(head, size - 1) : 0
  })
  return { at, rowAxis, columnAxis, rows: rowAxis === null ? 1 : shape[rowAxis]!, columns: shape[columnAxis]! }
}

/** The full place of one cell of a face. */
export function placeOf({ at, rowAxis, columnAxis }: Face, { row, column }: Cell): number[] {
  return at.map((place, axis) => (axis === columnAxis ? column : axis === rowAxis ? row : (place ?? 0)))
}

/** Always the same one, so that matrices in which nothing is lit need not be drawn again. */
const NONE: Lit[] = []

/** Which cells of a face are among these. */
export function litOn(name: string, { at, rowAxis, columnAxis }: Face, cells: Cells[]): Lit[] {
  const lit = cells
    .filter((cell) => cell.of === name && cell.at.length === at.length)
    .filter((cell) => cell.at.every((place, axis) => at[axis] === null || place === null || place === at[axis]))
    .map((cell) => ({ row: rowAxis === null ? null : cell.at[rowAxis]!, column: cell.at[columnAxis]! }))
  return lit.length > 0 ? lit : NONE
}
