/** The comparison as files. */

import type { Theme } from '../../lib/colour'
import type { Exportable, Table } from '../../lib/export'
import { PAGE } from '../../lib/colour'
import { column, matrixPicture, svg, textPicture, words, type Picture } from '../../lib/svg'
import { source } from '../../lib/api'
import { face } from '../../lib/grid'
import { along, shown } from '../../lib/tokens'
import type { Place, TraceInfo } from '../../lib/types'
import { bar, fixed } from '../../lib/format'
import type { Pair } from './align'
import { likeliest, probabilities, type BeforeAfter } from './compare'

export interface Compared {
  original: TraceInfo
  changed: TraceInfo | null
  sentences: string[]
  before: string
  after: string | null
  pairs: Pair[]
  chosen: number
  attention: string | null
  head: number
  theme: Theme
}

export function exported(compared: Compared): Exportable {
  const { original, changed } = compared
  return { title: `${original.model}, edited`, svg: () => drawn(compared), table: () => table(compared), trace: (changed ?? original).id }
}

function table({ original, changed, pairs }: Compared): Table {
  const rows = pairs.map(({ a, b }) => {
    const [was, now] = [a === null ? undefined : original.places[a], b === null ? undefined : changed?.places[b]]
    const said = (place: typeof was): (string | number)[] => (place?.top[0] ? [shown(place.top[0].text), place.top[0].p] : ['', ''])
    const at = (place: typeof was): string => (place ? shown(place.label) : '')
    return [at(was), ...said(was), at(now), ...said(now)]
  })
  const columns = ['original position', 'original', 'p original', 'edited position', 'edited', 'p edited']
  return { title: 'Predictions at each position, original and edited', columns, rows }
}

async function drawn(compared: Compared): Promise<string> {
  const { original, changed, sentences, before, after, pairs, chosen, theme } = compared
  const parts: Picture[] = sentences.map((sentence) => textPicture(sentence, theme, 12))
  if (before) parts.push(textPicture(`original: ${before}`, theme))
  if (after !== null) parts.push(textPicture(`edited: ${after}`, theme))
  const pair = pairs[Math.min(chosen, pairs.length - 1)]
  if (pair) {
    const [was, now] = [pair.a === null ? null : original.places[pair.a]!, pair.b === null || !changed ? null : changed.places[pair.b]!]
    parts.push(bars(likeliest(was, now, 8, await exact(compared, pair)), placed(was ?? now), theme))
  }
  for (const [trace, label] of [[original, 'original'], [changed, 'edited']] as const) {
    const name = `${compared.attention}.weights`
    const value = trace?.values.find((each) => each.name === name)
    if (!trace || !value) continue
    const { at, rows, columns, rowAxis, columnAxis } = face(value, compared.head)
    const { values } = await source.slice(trace.id, name, at)
    parts.push(
      matrixPicture(
        {
          values, rows, columns, scale: { kind: 'share' }, title: `${label}: ${name}, head ${compared.head}`,
          rowLabels: rowAxis === null ? null : along(trace, value, rowAxis), columnLabels: along(trace, value, columnAxis),
        },
        theme,
      ),
    )
  }
  return svg(column(parts), theme)
}

/** An encoder predicts the token at a position, a decoder the one after it; a class has no position. */
function placed(place: Place | null): string {
  const label = shown(place?.label ?? '')
  return place?.side ? `${place.side === 'source' ? 'at' : 'after'} “${label}”` : label
}

/** The probability of every token at a position. */
async function exact({ original, changed }: Compared, { a, b }: Pair): Promise<{ before?: Float32Array; after?: Float32Array }> {
  const name = probabilities(original)?.name
  const get = async (trace: TraceInfo | null, at: number | null): Promise<Float32Array | undefined> =>
    trace && name && at !== null ? (await source.slice(trace.id, name, [0, at, null])).values : undefined
  return { before: await get(original, a), after: await get(changed, b) }
}

function bars(both: BeforeAfter[], title: string, theme: Theme): Picture {
  const page = PAGE[theme]
  const parts = [words(0, 13, title, page.faint, 'font-size="12"')]
  both.forEach(({ text, before, after }, i) => {
    const y = 22 + i * 24
    parts.push(words(110, y + 13, shown(text), page.ink, 'text-anchor="end" font-size="12"'))
    parts.push(`<rect x="118" y="${y + 1}" width="${220 * bar(before)}" height="8" fill="${page.faint}"/>`)
    parts.push(`<rect x="118" y="${y + 10}" width="${220 * bar(after)}" height="8" fill="${page.accent}"/>`)
    const said = [before, after].map((p) => (p === null ? '–' : fixed(p, 4))).join('  ')
    parts.push(words(348, y + 13, said, page.faint, 'font-family="ui-monospace, monospace" font-size="11"'))
  })
  return { width: 470, height: 22 + both.length * 24, body: parts.join('') }
}
