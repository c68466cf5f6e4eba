/** Colours of numbers, for light and dark. UserError apart by people with any of the usual colour blindnesses:
 * lightness alone carries the size, and signs are orange and blue. */

export type Theme = 'light' | 'dark'
type Rgb = readonly [number, number, number]

/** 0..1 from paper to ink, by way of the accent. */
const SEQUENTIAL: Record<Theme, Rgb[]> = {
  light: [[247, 246, 242], [253, 220, 188], [247, 165, 104], [220, 96, 36], [148, 46, 8], [74, 18, 2]],
  dark: [[27, 28, 31], [74, 38, 20], [138, 62, 22], [205, 98, 38], [247, 160, 96], [255, 226, 196]],
}

/** -1..1: blue, paper, orange. */
const DIVERGING: Record<Theme, Rgb[]> = {
  light: [[8, 48, 107], [44, 116, 178], [146, 190, 222], [247, 246, 242], [249, 184, 128], [214, 90, 28], [110, 32, 4]],
  dark: [[178, 218, 250], [84, 156, 214], [36, 84, 130], [27, 28, 31], [128, 58, 22], [222, 112, 46], [255, 208, 164]],
}

/** Okabe and Ito's eight, and lighter or darker ones of the same hues: one for each head. */
const HEADS: Record<Theme, string[]> = {
  light: [
    '#c2410c', '#0072b2', '#008060', '#b0478a', '#8a6d00', '#3a8fc4', '#7a3b00', '#5b4fb0',
    '#d0642f', '#005a8c', '#2a9d7c', '#8c2f6b', '#a58500', '#1f6f9f', '#9a5a1c', '#7c70cc',
  ],
  dark: [
    '#f28a4b', '#56b4e9', '#2fc79b', '#e38bc0', '#e6c229', '#8fd0f5', '#d99a5b', '#a89df2',
    '#ffb07c', '#3d9bd6', '#7fe0c3', '#f2b3d8', '#f5dc74', '#b5e1fa', '#e8bd92', '#c8c1f9',
  ],
}

export type Scale =
  /** 0..1; what is below `least` looks like nothing. */
  | { kind: 'share'; most?: number; least?: number }
  /** -most..most */
  | { kind: 'signed'; most: number }

function ramp(stops: Rgb[]): Uint8ClampedArray {
  const colours = new Uint8ClampedArray(256 * 3)
  for (let i = 0; i < 256; i++) {
    const where = (i / 255) * (stops.length - 1)
    const low = Math.min(Math.floor(where), stops.length - 2)
    for (let c = 0; c < 3; c++) {
      colours[3 * i + c] = stops[low]![c]! + (where - low) * (stops[low + 1]![c]! - stops[low]![c]!)
    }
  }
  return colours
}

const RAMPS = {
  share: { light: ramp(SEQUENTIAL.light), dark: ramp(SEQUENTIAL.dark) },
  signed: { light: ramp(DIVERGING.light), dark: ramp(DIVERGING.dark) },
}

/** -∞ and what is not a number: no colour, so that a masked cell cannot be taken for a small one. */
export const NOTHING: Record<Theme, Rgb> = { light: [226, 224, 217], dark: [46, 47, 51] }

/** 0..255 along the ramp; -1: nothing. Square roots lift the small numbers, which are most of them. */
function step(value: number, scale: Scale): number {
  if (!Number.isFinite(value)) return -1
  if (scale.kind === 'share' && value < (scale.least ?? 0)) return 0
  if (scale.kind === 'share') return Math.round(255 * Math.sqrt(Math.min(1, Math.max(0, value / (scale.most ?? 1)))))
  const share = Math.max(-1, Math.min(1, value / (scale.most || 1)))
  return Math.round(127.5 + 127.5 * Math.sign(share) * Math.sqrt(Math.abs(share)))
}

export function rgb(value: number, scale: Scale, theme: Theme): Rgb {
  const i = step(value, scale)
  if (i < 0) return NOTHING[theme]
  const colours = RAMPS[scale.kind][theme]
  return [colours[3 * i]!, colours[3 * i + 1]!, colours[3 * i + 2]!]
}

export function css(value: number, scale: Scale, theme: Theme): string {
  return `rgb(${rgb(value, scale, theme).join(' ')})`
}

/** Paints values into the pixels of an image, one each. */
export function paint(values: ArrayLike<number>, scale: Scale, theme: Theme, pixels: Uint8ClampedArray): void {
  const colours = RAMPS[scale.kind][theme]
  const nothing = NOTHING[theme]
  for (let n = 0; n < values.length; n++) {
    const i = step(values[n]!, scale)
    for (let c = 0; c < 3; c++) pixels[4 * n + c] = i < 0 ? nothing[c]! : colours[3 * i + c]!
    pixels[4 * n + 3] = 255
  }
}

/** Black or white, whichever is read better on that colour. */
export function ink(value: number, scale: Scale, theme: Theme): string {
  const [r, g, b] = rgb(value, scale, theme).map((c) => (c / 255) ** 2.2) as [number, number, number]
  // At this lightness both give 4.6:1; anything softer than black and white falls below 4.5 there.
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? '#000000' : '#ffffff'
}

export function headColour(head: number, theme: Theme): string {
  const colours = HEADS[theme]
  return colours[head % colours.length]!
}

/** A scale that fits: shares for values of 0..1 that are named so, else signed up to the largest. */
export function scaleOf(name: string, values: ArrayLike<number>): Scale {
  if (/\.(weights|probabilities)$/.test(name)) return { kind: 'share' }
  if (/_gate$/.test(name)) return { kind: 'share' }
  let most = 0
  for (let i = 0; i < values.length; i++) {
    const size = Math.abs(values[i]!)
    if (size > most && size < Infinity) most = size
  }
  return { kind: 'signed', most: most || 1 }
}

/** The page's own colours, for canvases and exports; app.css has the same. */
export const PAGE: Record<Theme, { paper: string; ink: string; faint: string; line: string; accent: string }> = {
  light: { paper: '#fbfaf7', ink: '#1a1916', faint: '#66635b', line: '#dcd9d0', accent: '#b93a0a' },
  dark: { paper: '#141517', ink: '#eceae4', faint: '#a09e97', line: '#33353a', accent: '#ff9a5c' },
}
