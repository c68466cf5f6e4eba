/** The cell that the pointer or the arrow keys are on, of a matrix or an image. */

import { moved, type Cell } from './grid'

interface Wanted {
  size: () => { rows: number; columns: number }
  /** Where the arrow keys begin. */
  start: () => Cell
  /** The cell under the pointer. */
  at: (event: PointerEvent) => Cell | null
  /** The cursor is on this cell; null: it left. */
  onpoint: (cell: Cell | null) => void
  /** An arrow key led here. */
  onmove: (cell: Cell) => void
  /** A click, Enter or the space bar. */
  onpin: (cell: Cell) => void
}

export class Cursor {
  cell = $state.raw<Cell | null>(null)

  constructor(private readonly wanted: Wanted) {}

  /** Of the element: `<div {...cursor.events}>`. */
  readonly events = {
    onpointermove: (event: PointerEvent) => event.pointerType === 'mouse' && this.#point(this.wanted.at(event)),
    onpointerdown: (event: PointerEvent) => event.pointerType !== 'mouse' && this.#point(this.wanted.at(event)),
    onpointerleave: (event: PointerEvent) => event.pointerType === 'mouse' && this.#point(null),
    onclick: () => this.cell && this.wanted.onpin(this.cell),
    onkeydown: (event: KeyboardEvent) => this.#key(event),
    onblur: () => this.#point(null),
  }

  #point(cell: Cell | null): void {
    if (cell?.row === this.cell?.row && cell?.column === this.cell?.column) return
    this.cell = cell
    this.wanted.onpoint(cell)
  }

  #key(event: KeyboardEvent): void {
    const { rows, columns } = this.wanted.size()
    const now = this.cell ?? this.wanted.start()
    if (event.key === 'Enter' || event.key === ' ') {
      event.preventDefault()
      this.wanted.onpin(now)
      return
    }
    const next = this.cell === null ? (event.key.startsWith('Arrow') ? now : null) : moved(now, event.key, rows, columns)
    if (!next) return
    event.preventDefault()
    this.#point(next)
    this.wanted.onmove(next)
  }
}
