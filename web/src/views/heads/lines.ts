/** Links as curves between two columns of tokens: where they run, and which one is pointed at. */

import { headColour, PAGE, type Theme } from '../../lib/colour'
import { escape, words, type Picture } from '../../lib/svg'
import type { Focus, Link, AttentionWeights } from './weights'

export interface Place {
  width: number
  /** Of one token. */
  row: number
  /** What is scrolled away, and how much is in view. */
  scrolled: number
  height: number
  margin: number
}

const middle = (place: Place, n: number): number => (n + 0.5) * place.row - place.scrolled

/** Heads begin and end a little below each other, so that none hides another. */
export function offset(head: number, heads: number[], row: number): number {
  const step = Math.min(2.5, (row - 8) / Math.max(heads.length, 1))
  return (heads.indexOf(head) - (heads.length - 1) / 2) * step
}

/** Both ends leave level, so that a link is told from its neighbours. */
function trace(pen: CanvasRenderingContext2D, place: Place, { head, query, key }: Link, heads: number[]): void {
  const [x0, x1, down] = [place.margin, place.width - place.margin, offset(head, heads, place.row)]
  const [y0, y1, half] = [middle(place, query) + down, middle(place, key) + down, (x0 + x1) / 2]
  pen.moveTo(x0, y0)
  pen.bezierCurveTo(half, y0, half, y1, x1, y1)
}

export const opacity = (weight: number): number => Math.min(1, 0.06 + 0.94 * weight)
export const thickness = (weight: number): number => 0.75 + 2.25 * weight

/** Links of one head that look the same are drawn at once: thousands of them take a few milliseconds. */
const SHADES = 24

export interface Drawn {
  links: Link[]
  heads: number[]
  weights: AttentionWeights
  focus: Focus | null
  pinned: Link | null
  pointed: Link | null
  theme: Theme
}

export function drawLinks(pen: CanvasRenderingContext2D, place: Place, drawn: Drawn): void {
  const { links, theme, pinned, pointed, heads } = drawn
  const inView = ({ query, key }: Link): boolean => {
    const [a, b] = [middle(place, query), middle(place, key)]
    return Math.max(a, b) > -place.row && Math.min(a, b) < place.height + place.row
  }
  const batches = new Map<number, Link[]>()
  for (const link of links) {
    if (!inView(link)) continue
    const batch = Math.round(link.weight * SHADES) * 4096 + link.head
    const same = batches.get(batch)
    if (same) same.push(link)
    else batches.set(batch, [link])
  }
  pen.lineCap = 'butt'
  for (const batch of [...batches.keys()].sort((a, b) => a - b)) {
    const same = batches.get(batch)!
    const { head, weight } = same[0]!
    pen.beginPath()
    for (const link of same) trace(pen, place, link, heads)
    pen.strokeStyle = headColour(head, theme)
    pen.globalAlpha = opacity(weight)
    pen.lineWidth = thickness(weight)
    pen.stroke()
  }
  pen.globalAlpha = 1
  // Outlined, so that it is told from its neighbours and still shows its head's colour.
  for (const [link, edge] of [[pinned, PAGE[theme].ink], [pointed, PAGE[theme].faint]] as const) {
    if (!link) continue
    pen.beginPath()
    trace(pen, place, link, heads)
    for (const [width, colour] of [[7, edge], [5, PAGE[theme].paper], [3, headColour(link.head, theme)]] as const) {
      pen.lineWidth = width
      pen.strokeStyle = colour
      pen.stroke()
    }
  }
  if (drawn.focus) drawShares(pen, place, drawn, drawn.focus)
}

/** Beside each token how much each head gives it, or takes from it. */
function drawShares(
  pen: CanvasRenderingContext2D,
  place: Place,
  { weights, heads, theme }: Drawn,
  { side, place: n }: Focus,
): void {
  const across = side === 'query' ? weights.columns : weights.rows
  const wide = Math.min(7, 84 / Math.max(heads.length, 1))
  const x0 = side === 'query' ? place.width - wide * heads.length : 0
  pen.fillStyle = PAGE[theme].paper
  pen.fillRect(x0 - 2, 0, wide * heads.length + 4, Math.min(place.height, across * place.row))
  heads.forEach((head, i) => {
    pen.fillStyle = headColour(head, theme)
    for (let m = 0; m < across; m++) {
      const y = middle(place, m)
      if (y < -place.row || y > place.height + place.row) continue
      const [query, key] = side === 'query' ? [n, m] : [m, n]
      pen.globalAlpha = Math.min(1, weights.values[(head * weights.rows + query) * weights.columns + key]!)
      pen.fillRect(x0 + i * wide, y - place.row / 2 + 1, Math.max(1, wide - 1), place.row - 2)
    }
  })
  pen.globalAlpha = 1
}

/** How far along its way up or down a curve is at x, of 0..1: the same for all of them. */
export function along(x: number, place: Place): number {
  const share = (x - place.margin) / Math.max(1, place.width - 2 * place.margin)
  if (share <= 0 || share >= 1) return share <= 0 ? 0 : 1
  let [low, high] = [0, 1]
  for (let i = 0; i < 24; i++) {
    const t = (low + high) / 2
    if (1.5 * t - 1.5 * t * t + t * t * t < share) low = t
    else high = t
  }
  return 3 * low * low - 2 * low * low * low
}

/** The link at this place; of several the strongest. */
export function linkAt(links: Link[], heads: number[], x: number, y: number, place: Place, reach = 5): Link | null {
  if (x < place.margin || x > place.width - place.margin) return null
  const s = along(x, place)
  let found: Link | null = null
  let best = Infinity
  for (const link of links) {
    const [y0, y1] = [middle(place, link.query), middle(place, link.key)]
    const far = Math.abs(y0 + (y1 - y0) * s + offset(link.head, heads, place.row) - y)
    const cost = far - 2 * link.weight
    if (far <= reach && cost < best) [found, best] = [link, cost]
  }
  return found
}

/** The same picture in vectors. */
export function linesPicture(weights: AttentionWeights, links: Link[], heads: number[], theme: Theme, title: string): Picture {
  const [row, top, gap] = [20, 30, 360]
  const wide = (labels: string[]): number => 14 + 7.2 * Math.max(1, ...labels.map((label) => label.length))
  const [left, right] = [wide(weights.rowLabels), wide(weights.columnLabels)]
  const at = (n: number): number => top + (n + 0.5) * row
  const half = left + gap / 2
  const parts = [words(0, 13, title, PAGE[theme].faint, 'font-size="12"')]
  for (const { head, query, key, weight } of [...links].sort((a, b) => a.weight - b.weight)) {
    const down = offset(head, heads, row)
    const [y0, y1] = [(at(query) + down).toFixed(2), (at(key) + down).toFixed(2)]
    const said = `${weights.rowLabels[query]} → ${weights.columnLabels[key]} ${weight.toFixed(4)}, head ${head}`
    parts.push(
      `<path d="M${left} ${y0}C${half} ${y0} ${half} ${y1} ${left + gap} ${y1}" fill="none" ` +
        `stroke="${headColour(head, theme)}" stroke-opacity="${opacity(weight).toFixed(3)}" ` +
        `stroke-width="${thickness(weight).toFixed(2)}"><title>${escape(said)}</title></path>`,
    )
  }
  weights.rowLabels.forEach((label, i) =>
    parts.push(words(left - 8, at(i) + 4, label, PAGE[theme].ink, 'text-anchor="end" font-size="13"')),
  )
  weights.columnLabels.forEach((label, i) =>
    parts.push(words(left + gap + 8, at(i) + 4, label, PAGE[theme].ink, 'font-size="13"')),
  )
  return { width: left + gap + right, height: top + row * Math.max(weights.rows, weights.columns), body: parts.join('') }
}
