/** Matrices on canvases. Only what is in view is drawn, so a large one costs no more than a small one. */

import { css, ink, PAGE, paint, type Scale, type Theme } from './colour'
import type { Cell, Layout, Lit } from './grid'
import { brief } from './format'

export interface View {
  /** What is scrolled away, and what is in view. */
  x: number
  y: number
  width: number
  height: number
}

export interface Drawn {
  values: ArrayLike<number>
  rows: number
  columns: number
  rowLabels: string[] | null
  columnLabels: string[] | null
  scale: Scale
  layout: Layout
  theme: Theme
}

const MONO = 'ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace'
const SANS = 'system-ui, -apple-system, "Segoe UI", sans-serif'

/** A canvas as large as its view, in the screen's own pixels. */
export function prepare(canvas: HTMLCanvasElement, view: View): CanvasRenderingContext2D {
  const ratio = window.devicePixelRatio || 1
  const [width, height] = [Math.round(view.width * ratio), Math.round(view.height * ratio)]
  if (canvas.width !== width || canvas.height !== height) {
    canvas.width = width
    canvas.height = height
    canvas.style.width = `${view.width}px`
    canvas.style.height = `${view.height}px`
  }
  const pen = canvas.getContext('2d')!
  pen.setTransform(ratio, 0, 0, ratio, 0, 0)
  pen.clearRect(0, 0, view.width, view.height)
  return pen
}

/** Which rows and columns are in view. */
function range(view: View, { rows, columns, layout }: Drawn): [number, number, number, number] {
  const { left, top, width, height } = layout
  return [
    Math.max(0, Math.floor(view.y / height)),
    Math.min(rows, Math.ceil((view.y + view.height - top) / height)),
    Math.max(0, Math.floor(view.x / width)),
    Math.min(columns, Math.ceil((view.x + view.width - left) / width)),
  ]
}

export function draw(pen: CanvasRenderingContext2D, view: View, drawn: Drawn): void {
  const { layout, values, columns, scale, theme } = drawn
  const { width, height, left, top } = layout
  const [firstRow, endRow, firstColumn, endColumn] = range(view, drawn)
  const [x0, y0] = [left - view.x, top - view.y]
  pen.save()
  pen.beginPath()
  pen.rect(left, top, view.width - left, view.height - top)
  pen.clip()
  if (width < 5 || height < 5) {
    stretched(pen, drawn, firstRow, endRow, firstColumn, endColumn, x0, y0)
  } else {
    const gap = width >= 8 ? 1 : 0.5
    for (let r = firstRow; r < endRow; r++) {
      for (let c = firstColumn; c < endColumn; c++) {
        const value = values[r * columns + c]!
        const [x, y] = [x0 + c * width, y0 + r * height]
        pen.fillStyle = css(value, scale, theme)
        pen.fillRect(x, y, width - gap, height - gap)
        if (value === -Infinity && width >= 8) crossed(pen, x, y, width - gap, height - gap, theme)
      }
    }
    if (width >= 34 && height >= 14) {
      pen.font = `11px ${MONO}`
      pen.textAlign = 'center'
      pen.textBaseline = 'middle'
      for (let r = firstRow; r < endRow; r++) {
        for (let c = firstColumn; c < endColumn; c++) {
          const value = values[r * columns + c]!
          pen.fillStyle = ink(value, scale, theme)
          pen.fillText(brief(value), x0 + (c + 0.5) * width - 0.5, y0 + (r + 0.5) * height)
        }
      }
    }
  }
  pen.restore()
  labels(pen, view, drawn, [firstRow, endRow, firstColumn, endColumn])
}

/** A masked cell is struck through: it is not small, it is not there. */
function crossed(pen: CanvasRenderingContext2D, x: number, y: number, w: number, h: number, theme: Theme): void {
  pen.strokeStyle = PAGE[theme].line
  pen.lineWidth = 1
  pen.beginPath()
  pen.moveTo(x + 2, y + h - 2)
  pen.lineTo(x + w - 2, y + 2)
  pen.stroke()
}

/** Small cells: an image with one pixel each, stretched. */
function stretched(
  pen: CanvasRenderingContext2D,
  { values, columns, scale, layout, theme }: Drawn,
  firstRow: number, endRow: number, firstColumn: number, endColumn: number, x0: number, y0: number,
): void {
  const [rows, wide] = [endRow - firstRow, endColumn - firstColumn]
  if (rows <= 0 || wide <= 0) return
  const part = new Float32Array(rows * wide)
  for (let r = 0; r < rows; r++) {
    for (let c = 0; c < wide; c++) part[r * wide + c] = values[(firstRow + r) * columns + firstColumn + c]!
  }
  pen.imageSmoothingEnabled = false
  const x = x0 + firstColumn * layout.width
  const y = y0 + firstRow * layout.height
  pen.drawImage(bitmap(part, rows, wide, scale, theme), x, y, wide * layout.width, rows * layout.height)
  // Rows are tokens: a hairline between them.
  if (layout.height >= 8) {
    pen.fillStyle = PAGE[theme].paper
    for (let r = 1; r < rows; r++) pen.fillRect(x, y + r * layout.height - 0.5, wide * layout.width, 0.75)
  }
}

/** One pixel for each number. */
export function bitmap(values: ArrayLike<number>, rows: number, columns: number, scale: Scale, theme: Theme): HTMLCanvasElement {
  const canvas = document.createElement('canvas')
  canvas.width = columns
  canvas.height = rows
  const pen = canvas.getContext('2d')!
  const image = pen.createImageData(columns, rows)
  paint(values, scale, theme, image.data)
  pen.putImageData(image, 0, 0)
  return canvas
}

function labels(pen: CanvasRenderingContext2D, view: View, drawn: Drawn, [r0, r1, c0, c1]: number[]): void {
  const { rowLabels, columnLabels, layout, columns, theme } = drawn
  const { width, height, left, top } = layout
  pen.fillStyle = PAGE[theme].ink
  pen.textBaseline = 'middle'
  if (rowLabels) {
    pen.font = labelFont(height)
    pen.textAlign = 'right'
    const each = Math.max(1, Math.ceil(8 / height))
    pen.save()
    pen.beginPath()
    pen.rect(0, top - 4, left, view.height - top + 4) // small rows are lower than their labels
    pen.clip()
    for (let r = r0!; r < r1!; r++) {
      if (r % each === 0) pen.fillText(short(pen, rowLabels[r] ?? '', left - 8), left - 6, top - view.y + (r + 0.5) * height)
    }
    pen.restore()
  }
  pen.save()
  pen.beginPath()
  pen.rect(left, 0, view.width - left, top)
  pen.clip()
  if (columnLabels) {
    pen.font = labelFont(width)
    pen.textAlign = 'left'
    const each = Math.max(1, Math.ceil(9 / width))
    for (let c = c0!; c < c1!; c++) {
      if (c % each !== 0) continue
      pen.save()
      pen.translate(left - view.x + (c + 0.5) * width + 1, top - 5)
      pen.rotate(-Math.PI / 3)
      pen.fillText(short(pen, columnLabels[c] ?? '', longest(top)), 0, 0)
      pen.restore()
    }
  } else if (top > 0) {
    ruler(pen, view, layout, columns)
  }
  pen.restore()
}

/** Labels of small cells are small, as far as they can be read. */
const labelFont = (cell: number): string => `${Math.min(12, Math.max(8.5, cell - 2))}px ${SANS}`

/** Of a slanted label; a longer one is cut short. */
const longest = (top: number): number => (top - 8) / 0.87

/** Ticks along an axis that has only numbers. */
function ruler(pen: CanvasRenderingContext2D, view: View, { width, left, top }: Layout, columns: number): void {
  const each = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096].find((n) => n * width >= 34) ?? 8192
  pen.font = `9px ${MONO}`
  pen.textAlign = 'left'
  pen.globalAlpha = 0.75
  for (let c = Math.floor(view.x / width / each) * each; c < columns; c += each) {
    const x = left - view.x + c * width
    if (x > view.width) break
    pen.fillRect(x, top - 5, 1, 4)
    pen.fillText(String(c), x + 3, top - 7)
  }
  pen.globalAlpha = 1
}

function short(pen: CanvasRenderingContext2D, text: string, room: number): string {
  if (pen.measureText(text).width <= room) return text
  let n = text.length
  while (n > 1 && pen.measureText(`${text.slice(0, n)}…`).width > room) n--
  return `${text.slice(0, n)}…`
}

export interface Marks {
  lit: Lit[]
  cursor: Cell | null
  pinned: Cell | null
}

/** What lies over the numbers: a veil with holes where cells are lit, and the cursor. */
export function mark(pen: CanvasRenderingContext2D, view: View, drawn: Drawn, { lit, cursor, pinned }: Marks): void {
  const { layout, rows, columns, theme } = drawn
  const { width, height, left, top } = layout
  const [x0, y0] = [left - view.x, top - view.y]
  const box = (row: number | null, column: number | null): [number, number, number, number] => [
    x0 + (column ?? 0) * width,
    y0 + (row ?? 0) * height,
    column === null ? columns * width : width,
    row === null ? rows * height : height,
  ]
  pen.save()
  pen.beginPath()
  pen.rect(left - 1, top - 1, view.width - left + 1, view.height - top + 1)
  pen.clip()
  if (lit.length > 0) {
    pen.globalAlpha = 0.62
    pen.fillStyle = PAGE[theme].paper
    pen.fillRect(x0, y0, columns * width, rows * height)
    for (const { row, column } of lit) pen.clearRect(...box(row, column))
    pen.globalAlpha = 1
    pen.strokeStyle = PAGE[theme].ink
    pen.lineWidth = 1.25
    for (const { row, column } of lit) {
      const [x, y, w, h] = box(row, column)
      // A cell thinner than a line is pointed at by a larger frame.
      const grow = Math.max(0, (5 - w) / 2)
      pen.strokeRect(x - grow - 0.5, y - 0.5, w + 2 * grow, h)
    }
  }
  for (const [cell, colour] of [[pinned, PAGE[theme].accent], [cursor, PAGE[theme].ink]] as const) {
    if (!cell) continue
    const [x, y, w, h] = box(cell.row, cell.column)
    const grow = Math.max(0, (7 - w) / 2)
    pen.lineWidth = 4
    pen.strokeStyle = PAGE[theme].paper
    pen.strokeRect(x - grow - 0.5, y - 0.5, w + 2 * grow, h)
    pen.lineWidth = 2
    pen.strokeStyle = colour
    pen.strokeRect(x - grow - 0.5, y - 0.5, w + 2 * grow, h)
  }
  pen.restore()
}

/** How wide the widest of these labels is. */
export function widest(texts: string[], font = `12px ${SANS}`): number {
  return Math.max(0, ...widths(texts, font))
}

/** How far slanted labels reach beyond the last column, not only the last one's. */
export function reach(texts: string[], { width, top }: Layout): number {
  const ends = widths(texts, labelFont(width)).map((wide, c) => Math.min(wide, longest(top)) / 2 - (texts.length - c - 0.5) * width)
  return Math.max(0, Math.ceil(Math.max(...ends) + 8)) // and half a line's height
}

function widths(texts: string[], font: string): number[] {
  const pen = (ruled ??= document.createElement('canvas').getContext('2d')!)
  pen.font = font
  return texts.map((text) => pen.measureText(text).width)
}

let ruled: CanvasRenderingContext2D | null = null
