/** Views as files: pictures, tables, one page. */

import type { OtherNote } from './types'

export interface Table {
  title: string
  columns: string[]
  rows: (string | number)[][]
}

/** What a view gives: a picture and its numbers. Made when asked for. */
export interface Exportable {
  /** For the file's name. */
  title: string
  svg?: () => string | Promise<string>
  table?: () => Table | Promise<Table>
  /** For LaTeX, if the other has more rows than a page of paper. */
  short?: () => Table | Promise<Table>
  /** The trace whose offline page is wanted, or how it is made. */
  trace?: string | (() => Promise<string>)
  /** The notes' offline page, instead: as they are, or with one example's other numbers. */
  notes?: OtherNote | 'as they are'
}

export function csv({ columns, rows }: Table): string {
  const cell = (value: string | number): string => {
    const said = String(value)
    return /[",\n\r]/.test(said) ? `"${said.replaceAll('"', '""')}"` : said
  }
  return [columns, ...rows].map((row) => row.map(cell).join(',')).join('\r\n') + '\r\n'
}

const TEX: Record<string, string> = {
  '\\': '\\textbackslash{}', '{': '\\{', '}': '\\}', $: '\\$', '&': '\\&', '#': '\\#', '%': '\\%', _: '\\_',
  '^': '\\textasciicircum{}', '~': '\\textasciitilde{}', '<': '\\textless{}', '>': '\\textgreater{}',
  '▁': '\\textvisiblespace{}', '␣': '\\textvisiblespace{}', '−': '$-$', '∞': '$\\infty$', '…': '\\dots{}', '·': '$\\cdot$',
}

function tex(value: string | number): string {
  if (Number.isNaN(value)) return 'nan'
  if (typeof value === 'number') return Number.isFinite(value) ? `$${Number(value.toPrecision(5))}$` : value < 0 ? '$-\\infty$' : '$\\infty$'
  return value.replace(/[\\{}$&#%_^~<>▁␣−∞…·]/g, (letter) => TEX[letter]!)
}

export function latex({ title, columns, rows }: Table): string {
  const line = (row: (string | number)[]): string => `  ${row.map(tex).join(' & ')} \\\\`
  const numeric = columns.map((_, i) => rows.length > 0 && rows.every((row) => typeof row[i] === 'number'))
  return [
    '\\begin{table}',
    '  \\centering',
    `  \\caption{${tex(title)}}`,
    `  \\begin{tabular}{${numeric.map((each) => (each ? 'r' : 'l')).join('')}}`,
    '  \\hline',
    line(columns),
    '  \\hline',
    ...rows.map(line),
    '  \\hline',
    '  \\end{tabular}',
    '\\end{table}',
    '',
  ].join('\n')
}

/** A picture as pixels, twice as many as it says. */
export async function png(svg: string, scale = 2): Promise<Blob> {
  const image = new Image()
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg)}`
  await image.decode()
  // Browsers draw nothing on a canvas that is too large.
  const fit = Math.min(scale, 16000 / image.width, 16000 / image.height)
  const canvas = document.createElement('canvas')
  canvas.width = Math.ceil(image.width * fit)
  canvas.height = Math.ceil(image.height * fit)
  canvas.getContext('2d')!.drawImage(image, 0, 0, canvas.width, canvas.height)
  return new Promise((done, failed) => {
    canvas.toBlob((blob) => (blob ? done(blob) : failed(new Error('the picture is too large'))), 'image/png')
  })
}

export function save(name: string, content: Blob | string, type = 'text/plain'): void {
  const blob = typeof content === 'string' ? new Blob([content], { type: `${type};charset=utf-8` }) : content
  const link = document.createElement('a')
  link.href = URL.createObjectURL(blob)
  link.download = name
  link.click()
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000)
}

export function fileName(title: string, ending: string): string {
  const bare = title.toLowerCase().normalize('NFKD').replace(/[^a-z0-9]+/g, '-').replace(/^-|-$/g, '')
  return `${(bare || 'cutaway').slice(0, 60)}.${ending}`
}
