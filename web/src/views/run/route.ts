/** The way of a line between two boxes: straight to a neighbour, else down through the gaps between the rows. */

export interface Box {
  x: number
  y: number
  width: number
  height: number
}

const GAP = 13

export function route(from: Box, to: Box, around: boolean): { path: string; tip: string } {
  if (around) return besides(from, to)
  const beside = from.y < to.y + to.height && to.y < from.y + from.height
  return beside ? across(from, to) : below(from, to)
}

/** To the right neighbour, at the height of the captions. */
function across(from: Box, to: Box): { path: string; tip: string } {
  const y = Math.max(from.y, to.y) + 15
  const [start, end] = to.x >= from.x ? [from.x + from.width, to.x] : [from.x, to.x + to.width]
  const direction = to.x >= from.x ? 1 : -1
  return { path: `M${start} ${y}H${end}`, tip: `M${end} ${y}l${-5 * direction} -3v6z` }
}

function below(from: Box, to: Box): { path: string; tip: string } {
  const [x0, y0] = [from.x + Math.min(from.width / 2, 110), from.y + from.height]
  const [x1, y1] = [to.x + Math.min(to.width / 2, 110) + (x0 < to.x ? -12 : x0 > to.x + to.width ? 12 : 0), to.y]
  const turn = y1 - GAP
  return { path: `M${x0} ${y0}V${rounded(x0, turn, x1)}V${y1}`, tip: `M${x1} ${y1}l-3 -5h6z` }
}

/** Down along the left edge: the residual connection. */
function besides(from: Box, to: Box): { path: string; tip: string } {
  const edge = -9
  const [y0, y1] = [from.y + 15, to.y + 15]
  return {
    path: `M${from.x} ${y0}H${edge + 6}Q${edge} ${y0} ${edge} ${y0 + 6}V${y1 - 6}Q${edge} ${y1} ${edge + 6} ${y1}H${to.x}`,
    tip: `M${to.x} ${y1}l-5 -3v6z`,
  }
}

/** From the left, where the encoder's output comes down, into the gap above. */
export function fromMemory(to: Box): { path: string; tip: string } {
  const [x, y] = [to.x + Math.min(to.width / 2, 110) + 12, to.y - GAP + 4]
  return { path: `M-38 ${y}H${x - 5}Q${x} ${y} ${x} ${y + 5}V${to.y}`, tip: `M${x} ${to.y}l-3 -5h6z` }
}

/** A corner, a way across, a corner; nothing where there is no way to go. */
function rounded(x0: number, y: number, x1: number): string {
  const [way, r] = [Math.abs(x1 - x0), 6]
  if (way < 2 * r) return `${y}L${x1} ${y}`
  const side = Math.sign(x1 - x0)
  return `${y - r}Q${x0} ${y} ${x0 + side * r} ${y}H${x1 - side * r}Q${x1} ${y} ${x1} ${y + r}`
}
