/** Pictures as SVG text, for export: what the page draws on canvases, in vectors. */

import { css, ink, PAGE, type Scale, type Theme } from './colour'
import { bar, brief, fixed } from './format'

export interface Picture {
  width: number
  height: number
  body: string
}

const SANS = 'system-ui, sans-serif'
const MONO = 'ui-monospace, monospace'

export function escape(text: string): string {
  return text.replace(/[&<>"]/g, (letter) => `&#${letter.charCodeAt(0)};`)
}

export interface Grid {
  values: ArrayLike<number>
  rows: number
  columns: number
  rowLabels?: string[] | null
  columnLabels?: string[] | null
  scale: Scale
  title?: string
}

export function matrixPicture(grid: Grid, theme: Theme): Picture {
  const { rows, columns, rowLabels, columnLabels, scale, values } = grid
  // A page is about this wide.
  const cell = columns > 80 ? Math.max(1, Math.min(4, 900 / columns)) : columns > 30 ? 12 : 30
  const high = cell > 12 ? 22 : Math.max(cell, rowLabels ? 10 : cell)
  const left = rowLabels ? 8 + 6.2 * Math.max(...rowLabels.map((label) => label.length)) : 0
  const title = grid.title ? 20 : 0
  const top = title + (columnLabels && cell >= 12 ? 10 + 5 * Math.max(...columnLabels.map((label) => label.length)) : 0)
  const parts: string[] = []
  if (grid.title) parts.push(words(0, 13, grid.title, PAGE[theme].faint, `font-family="${MONO}" font-size="12"`))
  for (let r = 0; r < rows; r++) {
    if (rowLabels) {
      const style = `text-anchor="end" font-size="${Math.min(11, high)}"`
      parts.push(words(left - 6, top + (r + 0.5) * high + 4, rowLabels[r]!, PAGE[theme].ink, style))
    }
    for (let c = 0; c < columns; c++) {
      const value = values[r * columns + c]!
      const [x, y] = [left + c * cell, top + r * high]
      parts.push(`<rect x="${x}" y="${y}" width="${cell}" height="${high}" fill="${css(value, scale, theme)}"/>`)
      if (cell >= 30) {
        const style = `text-anchor="middle" font-family="${MONO}" font-size="9"`
        parts.push(words(x + cell / 2, y + high / 2 + 3, brief(value), ink(value, scale, theme), style))
      }
    }
  }
  if (columnLabels && cell >= 12) {
    for (let c = 0; c < columns; c++) {
      const [x, y] = [left + (c + 0.5) * cell + 3, top - 6]
      parts.push(words(x, y, columnLabels[c]!, PAGE[theme].ink, `transform="rotate(-50 ${x} ${y})" font-size="11"`))
    }
  }
  const over = columnLabels && cell >= 12 ? 4 * (columnLabels.at(-1)?.length ?? 0) : 0
  const width = Math.max(left + columns * cell + over, 7.3 * (grid.title?.length ?? 0))
  return { width, height: top + rows * high, body: parts.join('') }
}

/** A thumbnail with its name; `href` is an image of one pixel a number. */
export function stripPicture(title: string, href: string, theme: Theme): Picture {
  const image = `<image href="${href}" x="190" width="640" height="36" preserveAspectRatio="none" style="image-rendering:pixelated"/>`
  return { width: 830, height: 36, body: words(0, 22, title, PAGE[theme].ink, 'font-size="13"') + image }
}

export function barsPicture(bars: { label: string; share: number }[], theme: Theme, title = ''): Picture {
  const parts = title ? [words(0, 13, title, PAGE[theme].faint, 'font-size="12"')] : []
  const top = title ? 22 : 0
  bars.forEach(({ label, share }, i) => {
    const y = top + i * 20
    parts.push(words(110, y + 13, label, PAGE[theme].ink, 'text-anchor="end" font-size="12"'))
    parts.push(`<rect x="118" y="${y + 3}" width="${220 * bar(share)}" height="13" fill="${PAGE[theme].accent}"/>`)
    parts.push(words(124 + 220 * bar(share), y + 13, fixed(share, 4), PAGE[theme].faint, `font-family="${MONO}" font-size="11"`))
  })
  return { width: 400, height: top + bars.length * 20, body: parts.join('') }
}

export function textPicture(text: string, theme: Theme, size = 15): Picture {
  return { width: text.length * size * 0.6, height: size * 1.5, body: words(0, size, text, PAGE[theme].ink, `font-size="${size}"`) }
}

/** Paragraphs one below the other, in lines of at most `most` letters; those after the first are set in. */
export function listPicture(paragraphs: string[], theme: Theme, most = 110): Picture {
  const lines = paragraphs.flatMap((paragraph) => {
    const found: string[] = []
    for (const word of paragraph.split(' ')) {
      const longer = found.length > 0 ? `${found.at(-1)} ${word}` : word
      if (found.length > 0 && longer.length <= most) found[found.length - 1] = longer
      else found.push(found.length > 0 ? `\u00a0\u00a0\u00a0\u00a0${word}` : word)
    }
    return found
  })
  return column(lines.map((line) => textPicture(line, theme, 13)), 4)
}

export function words(x: number, y: number, text: string, fill: string, style = ''): string {
  return `<text x="${x}" y="${y}" fill="${fill}" ${style}>${escape(text)}</text>`
}

/** One below the other. */
export function column(pictures: Picture[], gap = 24): Picture {
  let y = 0
  const parts = pictures.map(({ body, height }) => {
    const part = `<g transform="translate(0 ${y})">${body}</g>`
    y += height + gap
    return part
  })
  return { width: Math.max(0, ...pictures.map(({ width }) => width)), height: Math.max(0, y - gap), body: parts.join('') }
}

/** Side by side, in lines of at most `room`. */
export function flow(pictures: Picture[], room = 1100, gap = 28): Picture {
  let [x, y, line, width] = [0, 0, 0, 0]
  const parts = pictures.map((picture) => {
    if (x > 0 && x + picture.width > room) [x, y, line] = [0, y + line + gap, 0]
    const part = `<g transform="translate(${x} ${y})">${picture.body}</g>`
    x += picture.width + gap
    width = Math.max(width, x - gap)
    line = Math.max(line, picture.height)
    return part
  })
  return { width, height: y + line, body: parts.join('') }
}

export function svg({ width, height, body }: Picture, theme: Theme, edge = 24): string {
  const [w, h] = [Math.ceil(width + 2 * edge), Math.ceil(height + 2 * edge)]
  return (
    `<svg xmlns="http://www.w3.org/2000/svg" width="${w}" height="${h}" viewBox="0 0 ${w} ${h}" font-family="${SANS}">` +
    `<rect width="${w}" height="${h}" fill="${PAGE[theme].paper}"/><g transform="translate(${edge} ${edge})">${body}</g></svg>`
  )
}
