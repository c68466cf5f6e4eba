/** The Run view as files: tokens, predictions, and the open stages; as a table the value that is pointed at. */

import { source } from '../../lib/api'
import { scaleOf } from '../../lib/colour'
import { bitmap } from '../../lib/draw'
import type { Exportable, Table } from '../../lib/export'
import { face, placeOf } from '../../lib/grid'
import type { Piece } from '../../lib/path'
import { barsPicture, column, flow, matrixPicture, stripPicture, svg, textPicture, type Picture } from '../../lib/svg'
import { shade } from '../../lib/theme.svelte'
import { along, labels, shown } from '../../lib/tokens'
import type { Place, TraceInfo, ValueInfo } from '../../lib/types'

export function exported(
  trace: TraceInfo,
  path: Piece[],
  open: string[],
  head: number,
  spoken: Place | null,
  selected: ValueInfo | undefined,
): Exportable {
  const values = path
    .filter(({ id }) => open.includes(id))
    .flatMap((piece) => piece.sections.flatMap(({ rows }) => rows.flat()))
    .map((name) => trace.values.find((value) => value.name === name)!)
    .filter(({ axes }) => !axes.includes('V')) // a vocabulary is too wide for a picture
  return {
    title: `cutaway ${trace.model} ${trace.text ?? ''}`,
    svg: () => drawn(trace, path, values, head, spoken),
    table: () => {
      if (selected) return matrix(trace, selected, head)
      return values.length > 0 ? numbers(trace, values, head) : said(trace)
    },
    short: () => (selected ? matrix(trace, selected, head) : said(trace)),
    trace: trace.id,
  }
}

async function drawn(
  trace: TraceInfo,
  path: Piece[],
  values: ValueInfo[],
  head: number,
  spoken: Place | null,
): Promise<string> {
  const theme = shade.now
  const pictures: Picture[] = []
  for (const [side, tokens] of [['encoder', trace.tokens.source], ['decoder', trace.tokens.target]] as const) {
    if (tokens.length > 0) pictures.push(textPicture(labels(tokens).join(' '), theme))
    const strips: Picture[] = []
    for (const piece of path.filter((piece) => piece.side === side)) {
      const value = trace.values.find(({ name }) => name === piece.stream)!
      const { at, rows, columns } = face(value, head)
      const { values: cells } = await source.slice(trace.id, value.name, at)
      const image = bitmap(cells, rows, columns, scaleOf(value.name, cells), theme)
      strips.push(stripPicture(piece.title, image.toDataURL(), theme))
    }
    pictures.push(column(strips, 6))
  }
  const stages: Picture[] = []
  for (const value of values) {
    const shown = face(value, head)
    const { values: cells } = await source.slice(trace.id, value.name, shown.at)
    stages.push(
      matrixPicture(
        {
          values: cells,
          rows: shown.rows,
          columns: shown.columns,
          rowLabels: shown.rowAxis === null ? null : along(trace, value, shown.rowAxis),
          columnLabels: along(trace, value, shown.columnAxis),
          scale: scaleOf(value.name, cells),
          title: value.name,
        },
        theme,
      ),
    )
  }
  if (spoken) {
    const bars = spoken.top.map(({ text, p }) => ({ label: shown(text), share: p }))
    pictures.push(barsPicture(bars, theme, spoken.side === null ? '' : `after “${shown(spoken.label)}”`))
  }
  if (stages.length > 0) pictures.push(flow(stages))
  return svg(column(pictures), theme)
}

/** The selected stage, as it stands on the page. */
async function matrix(trace: TraceInfo, value: ValueInfo, head: number): Promise<Table> {
  const shown = face(value, head)
  const { values: cells } = await source.slice(trace.id, value.name, shown.at)
  const columns = along(trace, value, shown.columnAxis) ?? Array.from({ length: shown.columns }, (_, i) => String(i))
  const rows = shown.rowAxis === null ? null : along(trace, value, shown.rowAxis)
  return {
    title: `${value.name} of ${trace.model}${value.axes.includes('H') ? `, head ${head}` : ''}`,
    columns: ['', ...columns],
    rows: Array.from({ length: shown.rows }, (_, r) => [
      rows?.[r] ?? String(r),
      ...cells.subarray(r * shown.columns, (r + 1) * shown.columns),
    ]),
  }
}

/** One line for each number, with its place. */
async function numbers(trace: TraceInfo, values: ValueInfo[], head: number): Promise<Table> {
  const rows: (string | number)[][] = []
  for (const value of values) {
    const shown = face(value, head)
    const { values: cells } = await source.slice(trace.id, value.name, shown.at)
    cells.forEach((cell, i) => {
      const at = placeOf(shown, { row: Math.floor(i / shown.columns), column: i % shown.columns })
      rows.push([value.name, at.join(' '), cell])
    })
  }
  return { title: `Values of ${trace.model}`, columns: ['value', 'at', 'number'], rows }
}

function said(trace: TraceInfo): Table {
  const rows = trace.places.flatMap(({ label, top }, i) => top.map(({ text, p }) => [i, shown(label), shown(text), p]))
  return { title: `Predictions of ${trace.model}`, columns: ['position', 'after', 'token', 'probability'], rows }
}
