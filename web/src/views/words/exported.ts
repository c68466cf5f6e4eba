/** The next token and the tree of beam search, as pictures and tables. */

import { PAGE, type Theme } from '../../lib/colour'
import type { Table } from '../../lib/export'
import { barsPicture, column, flow, svg, textPicture, words, type Picture } from '../../lib/svg'
import { distinct } from '../../lib/tokens'
import type { Next } from '../../lib/types'
import { fixed } from '../../lib/format'
import type { Tree } from './tree'

export function choicesSvg(next: Next, about: string, warping: string, theme: Theme): string {
  const named = distinct(next.plain.map(({ text }) => text))
  const bars = (choices: Next['plain'], title: string): Picture =>
    barsPicture(
      choices.map(({ text, p }) => ({ label: named(text), share: p })),
      theme,
      title,
    )
  const pictures = [bars(next.plain, 'model')]
  if (warping) pictures.push(bars(next.warped, `sampled from: ${warping}`))
  return svg(column([textPicture(about, theme), textPicture(`${next.written} …`, theme), flow(pictures)]), theme)
}

export function choicesTable(next: Next, title: string): Table {
  const named = distinct(next.plain.map(({ text }) => text))
  const left = new Map(next.warped.map(({ id, p }) => [id, p]))
  return {
    title,
    columns: ['id', 'token', 'probability', 'sampled from'],
    rows: next.plain.map(({ id, text, p }) => [id, named(text), p, left.get(id) ?? 0]),
  }
}

export function treeSvg(tree: Tree, about: string, theme: Theme): string {
  return svg(column([textPicture(about, theme), treePicture(tree, theme)]), theme)
}

function treePicture(tree: Tree, theme: Theme): Picture {
  const page = PAGE[theme]
  const [high, pitch, gap] = [32, 40, 28]
  const widths = tree.steps.map((step) => 20 + 7.6 * Math.max(4, ...step.map(({ label }) => label.length)))
  const lefts = widths.reduce<number[]>((all, width, i) => [...all, all[i]! + width + gap], [gap])
  const middle = (rank: number): number => rank * pitch + high / 2
  const parts: string[] = []
  for (const node of [...tree.nodes].sort((a, b) => Number(a.best) - Number(b.best))) {
    const parent = node.parent === null ? null : tree.byNumber.get(node.parent)!
    const x0 = parent ? lefts[parent.step]! + widths[parent.step]! : 0
    const [x1, y0, y1] = [lefts[node.step]!, parent ? middle(parent.rank) : middle(0), middle(node.rank)]
    const half = (x0 + x1) / 2
    const dash = node.fate === 'dropped' ? ' stroke-dasharray="3 3"' : ''
    parts.push(
      `<path d="M${x0} ${y0}C${half} ${y0} ${half} ${y1} ${x1} ${y1}" fill="none" ` +
        `stroke="${node.best ? page.accent : page.line}" stroke-width="${node.best ? 2.5 : 1.25}"${dash}/>`,
    )
  }
  for (const node of tree.nodes) {
    const [x, y, wide] = [lefts[node.step]!, node.rank * pitch, widths[node.step]!]
    const edge = node.best
      ? page.accent
      : node.fate === 'ended'
        ? page.ink
        : node.fate === 'kept'
          ? page.faint
          : page.line
    parts.push(
      `<rect x="${x}" y="${y}" width="${wide}" height="${high}" rx="3" fill="${page.paper}" stroke="${edge}"/>`,
    )
    if (node.fate === 'ended')
      parts.push(`<rect x="${x + wide - 4}" y="${y}" width="4" height="${high}" fill="${edge}"/>`)
    const ink = node.fate === 'dropped' ? page.faint : page.ink
    const middleStyle = 'text-anchor="middle"'
    parts.push(
      words(
        x + wide / 2,
        y + 15,
        node.label,
        ink,
        `${middleStyle} font-size="13"${node.best ? ' font-weight="600"' : ''}`,
      ),
    )
    parts.push(words(x + wide / 2, y + 27, fixed(node.score, 2), page.faint, `${middleStyle} font-size="10"`))
  }
  return { width: lefts.at(-1) ?? 0, height: tree.ranks * pitch, body: parts.join('') }
}

export function beamsTable(tree: Tree, title: string): Table {
  return {
    title,
    columns: ['step', 'rank', 'number', 'parent', 'token', 'log-probability', 'score', 'fate', 'best'],
    rows: tree.nodes.map(({ step, rank, number, parent, label, logprob, score, fate, best }) => [
      step + 1,
      rank + 1,
      number,
      parent ?? '',
      label,
      logprob,
      score,
      fate,
      best ? 'yes' : '',
    ]),
  }
}
