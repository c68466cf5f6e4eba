/** The pictures of this view in vectors, and their numbers. */

import { css, headColour, ink, PAGE, type Theme } from '../../lib/colour'
import type { Exportable, Table } from '../../lib/export'
import { column, flow, matrixPicture, svg, textPicture, words, type Picture } from '../../lib/svg'
import { shown } from '../../lib/tokens'
import type { Lens, Rollout, TraceInfo } from '../../lib/types'
import { fixed } from '../../lib/format'
import { lensColumns, rolled } from './analysis'
import { linesPicture } from './lines'
import { links, ofHead, type Focus, type Level, type Link, type AttentionWeights } from './weights'

export interface Shown {
  trace: TraceInfo
  picture: 'lines' | 'image' | 'matrices' | 'grid' | 'rollout' | 'lens'
  /** What the picture shows: "en-fr, encoder, block 0", "en-fr, logit lens of the decoder". */
  title: string
  weights: AttentionWeights | null
  heads: number[]
  least: number
  focus: Focus | null
  level: Level
  theme: Theme
  /** All attentions of the grid, by block. */
  all: () => Promise<{ block: number; weights: AttentionWeights }[]>
  rollout: Rollout | null
  lens: Lens | null
}

export function exported(what: Shown): Exportable {
  const { trace, picture, title } = what
  const about = ['lines', 'image', 'matrices'].includes(picture) ? `${title}, ${picture}` : title
  if (picture === 'lens' && !what.lens) return { title: about, trace: trace.id }
  if (picture === 'rollout' && !what.rollout) return { title: about, trace: trace.id }
  if (picture !== 'lens' && picture !== 'rollout' && !what.weights) return { title: about, trace: trace.id }
  return { title: about, svg: () => drawn(what), table: () => tabled(what), trace: trace.id }
}

async function drawn(what: Shown): Promise<string> {
  const { picture, title, theme, heads, least } = what
  const head = [textPicture(what.trace.text ?? title, theme)]
  if (what.trace.text && (picture === 'grid' || picture === 'lens')) head.push(textPicture(title, theme, 12))
  const body = async (): Promise<Picture> => {
    switch (picture) {
      case 'lines':
        return column([linesPicture(what.weights!, shownLinks(what), heads, theme, title), legend(heads, theme)])
      case 'image':
        return flow(
          heads.map((each) =>
            imagePicture(what.trace.image!, imageRow(what.weights!, each, what.focus), least, theme, `head ${each}`),
          ),
        )
      case 'matrices':
        return flow(heads.map((each) => matrix(what.weights!, each, least, theme, `${title}, head ${each}`)))
      case 'grid': {
        const all = await what.all()
        return column(
          all.map(({ block, weights }) =>
            flow(
              headsOf(weights).map((each) => small(weights, each, least, theme, `block ${block}, head ${each}`)),
              Infinity,
              12,
            ),
          ),
        )
      }
      case 'rollout':
        return flow(
          rolled(what.trace, what.rollout!, what.level).map((weights) =>
            what.trace.image
              ? imagePicture(what.trace.image, imageRow(weights, 0, what.focus), least, theme, 'attention rollout')
              : matrix(weights, 0, least, theme, `attention rollout, ${weights.name === 'source' ? 'encoder' : 'decoder'}`),
          ),
        )
      case 'lens':
        return lensPicture(what.lens!, theme)
    }
  }
  return svg(column([...head, await body()]), theme)
}

const shownLinks = ({ weights, heads, least, focus }: Shown): Link[] => links(weights!, heads, least, focus)

function imageRow(weights: AttentionWeights, head: number, focus: Focus | null): Float32Array {
  const query = focus?.side === 'query' ? focus.place : 0
  return ofHead(weights, head).subarray(query * weights.columns + 1, (query + 1) * weights.columns)
}

function matrix(weights: AttentionWeights, head: number, least: number, theme: Theme, title: string): Picture {
  const { rows, columns, rowLabels, columnLabels } = weights
  return matrixPicture(
    { values: ofHead(weights, head), rows, columns, rowLabels, columnLabels, scale: { kind: 'share', least }, title },
    theme,
  )
}

function small(weights: AttentionWeights, head: number, least: number, theme: Theme, title: string): Picture {
  const [cell, top] = [Math.max(2, Math.min(8, 120 / weights.columns)), 18]
  const values = ofHead(weights, head)
  const parts = [words(0, 11, title, PAGE[theme].faint, 'font-size="10"')]
  for (let r = 0; r < weights.rows; r++) {
    for (let c = 0; c < weights.columns; c++) {
      const colour = css(values[r * weights.columns + c]!, { kind: 'share', least }, theme)
      parts.push(rect(c * cell, top + r * cell, cell, cell, colour))
    }
  }
  return { width: Math.max(84, weights.columns * cell), height: top + weights.rows * cell, body: parts.join('') }
}

function imagePicture(
  image: NonNullable<TraceInfo['image']>,
  weights: Float32Array,
  least: number,
  theme: Theme,
  title: string,
): Picture {
  const [wide, top] = [220, 20]
  const [w, h] = [wide / image.columns, wide / image.columns]
  const high = h * image.rows
  const most = Math.max(1e-9, ...weights)
  const parts = [
    words(0, 12, title, PAGE[theme].faint, 'font-size="12"'),
    `<image href="${image.pixels}" x="0" y="${top}" width="${wide}" height="${high}" preserveAspectRatio="none"/>`,
  ]
  weights.forEach((weight, i) => {
    const clear = weight < least ? 0 : Math.sqrt(weight / most)
    const [x, y] = [(i % image.columns) * w, top + Math.floor(i / image.columns) * h]
    parts.push(rect(x, y, w, h, `${PAGE[theme].paper}" fill-opacity="${(0.94 * (1 - clear)).toFixed(3)}`))
  })
  return { width: wide, height: top + high, body: parts.join('') }
}

function rect(x: number, y: number, width: number, height: number, fill: string): string {
  const [left, top, wide, high] = [x, y, width, height].map((n) => Number(n.toFixed(2)))
  return `<rect x="${left}" y="${top}" width="${wide}" height="${high}" fill="${fill}"/>`
}

function lensPicture(lens: Lens, theme: Theme): Picture {
  const columns = lensColumns(lens)
  const places = columns[0]?.places ?? []
  const [left, wide, high, top] = [120, 120, 22, 26]
  const parts: string[] = columns.map(({ title }, c) =>
    words(left + c * wide + 6, 14, title, PAGE[theme].faint, 'font-size="12"'),
  )
  places.forEach(({ label }, r) => {
    const y = top + r * high
    parts.push(words(left - 8, y + 15, shown(label), PAGE[theme].ink, 'text-anchor="end" font-size="12"'))
    columns.forEach(({ places: said }, c) => {
      const best = said[r]?.top[0]
      if (!best) return
      const [x, colour] = [left + c * wide, ink(best.p, { kind: 'share' }, theme)]
      parts.push(rect(x, y, wide - 2, high - 2, css(best.p, { kind: 'share' }, theme)))
      parts.push(words(x + 6, y + 14, shown(best.text).slice(0, 12), colour, 'font-size="12"'))
      parts.push(words(x + wide - 8, y + 14, fixed(best.p, 2), colour, 'text-anchor="end" font-size="10"'))
    })
  })
  return { width: left + columns.length * wide, height: top + places.length * high, body: parts.join('') }
}

function legend(heads: number[], theme: Theme): Picture {
  const parts = heads.map(
    (head, i) =>
      `<rect x="${i * 72}" y="0" width="12" height="12" fill="${headColour(head, theme)}"/>` +
      words(i * 72 + 17, 11, `head ${head}`, PAGE[theme].ink, 'font-size="12"'),
  )
  return { width: 72 * heads.length, height: 14, body: parts.join('') }
}

async function tabled(what: Shown): Promise<Table> {
  const { picture, title } = what
  if (picture === 'lens') {
    const columns = ['place', 'token', 'layer', 'word', 'probability']
    const rows = lensColumns(what.lens!).flatMap(({ name, places }) =>
      places.flatMap(({ label, top }, place) =>
        top[0] ? [[place, shown(label), name, shown(top[0].text), top[0].p]] : [],
      ),
    )
    return { title, columns, rows }
  }
  const columns = ['block', 'head', 'query', 'query token', 'key', 'key token', 'weight']
  const cells = (block: number, weights: AttentionWeights, found: Link[]): (string | number)[][] =>
    found.map(({ head, query, key, weight }) => [
      block,
      head,
      query,
      weights.rowLabels[query]!,
      key,
      weights.columnLabels[key]!,
      weight,
    ])
  if (picture === 'rollout') {
    const rows = rolled(what.trace, what.rollout!, what.level).flatMap((weights) =>
      every(weights, [0], null).map(({ query, key, weight }) => [
        weights.name,
        query,
        weights.rowLabels[query]!,
        key,
        weights.columnLabels[key]!,
        weight,
      ]),
    )
    return { title, columns: ['side', 'place', 'place token', 'from', 'from token', 'share'], rows }
  }
  if (picture === 'grid') {
    const all = await what.all()
    const rows = all.flatMap(({ block, weights }) => cells(block, weights, every(weights, headsOf(weights), null)))
    return { title, columns, rows }
  }
  const weights = what.weights!
  const block = Number(/blocks\.(\d+)/.exec(weights.name)?.[1] ?? 0)
  if (picture === 'lines') return { title, columns, rows: cells(block, weights, shownLinks(what)) }
  const focus: Focus | null =
    picture === 'image' ? { side: 'query', place: what.focus?.side === 'query' ? what.focus.place : 0 } : null
  return { title, columns, rows: cells(block, weights, every(weights, what.heads, focus)) }
}

const headsOf = ({ heads }: AttentionWeights): number[] => Array.from({ length: heads }, (_, head) => head)

/** Zeros too: a matrix has them. */
function every(weights: AttentionWeights, heads: number[], focus: Focus | null): Link[] {
  const found: Link[] = []
  for (const head of heads) {
    const values = ofHead(weights, head)
    for (let query = 0; query < weights.rows; query++) {
      if (focus && focus.place !== query) continue
      for (let key = 0; key < weights.columns; key++)
        found.push({ head, query, key, weight: values[query * weights.columns + key]! })
    }
  }
  return found
}
