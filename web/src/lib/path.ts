/** The path through a network, from the names of its values: what follows what, and what feeds what.
 *
 * Nothing here asks which family a model is of. Values are listed in the order in which they were computed, so the
 * order of norm and attention, gates, rotations and biases are all there to be read.
 */

import type { ValueInfo } from './types'

export interface Piece {
  /** How the names of its values begin: "encoder.blocks.0". */
  id: string
  kind: 'embedding' | 'block' | 'norm' | 'layer' | 'bridge' | 'attention' | 'bias' | 'output' | 'head'
  side: 'encoder' | 'decoder' | 'head'
  title: string
  /** The value of its thumbnail. */
  stream: string
  sections: Section[]
  /** Which value feeds which. */
  edges: Edge[]
  /** It attends to the encoder's output. */
  readsMemory: boolean
}

export interface Section {
  title: string
  rows: string[][]
}

export interface Edge {
  /** Empty: the encoder's output. */
  from: string
  to: string
  /** Around what lies between: the residual connection. */
  around?: boolean
}

const PIECES: [RegExp, Piece['kind']][] = [
  [/^(encoder|decoder)\.embedding(?=\.)/, 'embedding'],
  [/^(encoder|decoder)\.relative_bias(?=\.)/, 'bias'],
  [/^(encoder|decoder)\.blocks\.\d+(?=\.)/, 'block'],
  [/^(encoder|decoder)\.(layers|forwards|backwards)\.\d+(?=\.)/, 'layer'],
  [/^decoder\.bridge(?=\.)/, 'bridge'],
  [/^(encoder|decoder)\.attention(?=\.)/, 'attention'],
  [/^(encoder|decoder)\.final_norm(?=\.)/, 'norm'],
  [/^(encoder|decoder)\.output$/, 'output'],
  [/^head(?=\.)/, 'head'],
]

export function pathOf(values: ValueInfo[]): Piece[] {
  const found = new Map<string, { kind: Piece['kind']; names: string[] }>()
  for (const { name } of values) {
    for (const [pattern, kind] of PIECES) {
      const id = pattern.exec(name)?.[0]
      if (id === undefined) continue
      const piece = found.get(id) ?? { kind, names: [] }
      piece.names.push(name)
      found.set(id, piece)
      break
    }
  }
  const order = { encoder: 0, decoder: 1, head: 2 }
  const bothWays = found.has('encoder.backwards.0')
  const pieces = [...found].map(([id, { kind, names }]) => made(id, kind, names, bothWays))
  return pieces.sort((a, b) => order[a.side] - order[b.side]) // the sort is stable: computed order within a side
}

function made(id: string, kind: Piece['kind'], names: string[], bothWays: boolean): Piece {
  const side = id.split('.')[0] as Piece['side']
  return {
    id, kind, side,
    title: titled(id, kind, bothWays && side === 'encoder'),
    stream: streamOf(kind, names),
    sections: sectionsOf(id, kind, names),
    edges: edgesOf(id, names),
    readsMemory: names.some((name) => name.includes('.cross_attention.')) || kind === 'bridge' || id === 'decoder.attention',
  }
}

function titled(id: string, kind: Piece['kind'], bothWays: boolean): string {
  const [side, part, number] = id.split('.')
  const whose = side === 'encoder' ? 'Encoder' : 'Decoder'
  switch (kind) {
    case 'embedding':
      return 'Embedding'
    case 'block':
      return `${whose} block ${number}`
    case 'layer':
      return `${whose} layer ${number}${bothWays ? (part === 'backwards' ? ', backward' : ', forward') : ''}`
    case 'bridge':
      return 'Initial state, from the encoder'
    case 'attention':
      return 'Attention over the source'
    case 'norm':
      return 'Final norm'
    case 'bias':
      return 'Relative position bias'
    case 'output':
      return side === 'encoder' ? 'Encoder output' : 'Output layer'
    case 'head':
      return 'Head'
  }
}

function streamOf(kind: Piece['kind'], names: string[]): string {
  const ending = { layer: '.hidden', attention: '.weights' }[kind as string] ?? '.output'
  return names.find((name) => name.endsWith(ending) && name.split('.').length <= 4) ?? names.at(-1)!
}

const SUBLAYERS: Record<string, string> = {
  self_attention: 'Self-attention',
  cross_attention: 'Cross-attention',
  feedforward: 'Feed-forward',
}

/** Values that stand side by side, by how their names end. */
const ROWS: RegExp[] = [
  /\.(token_vectors|segment_vectors|position_vectors|patch_vectors|pixels)$/,
  /norm\.(mean|variance|mean_square|normalized|output)$/,
  /\.(queries|keys|values)$/,
  /\.rotated_(queries|keys)$/,
  /\.(scores|scaled_scores|masked_scores|weights)$/,
  /\.(heads|concatenated)$/,
  /\.(hidden|gates|activated)$/,
  /_gate$|\.candidate$|\.cell_state$/,
  /(attention|feedforward)\.output$|_add$/,
]

function sectionsOf(id: string, kind: Piece['kind'], names: string[]): Section[] {
  const sections: Section[] = []
  let last = ''
  let row = -1
  for (const name of names) {
    const rest = name.slice(id.length + 1)
    const sublayer = /^(self_attention|cross_attention|feedforward)(?=[._])/.exec(rest)?.[0] ?? ''
    const title = kind === 'block' ? (SUBLAYERS[sublayer] ?? '') : ''
    if (sections.length === 0 || title !== last) {
      sections.push({ title, rows: [] })
      row = -1
    }
    const mine = kind === 'layer' && name.endsWith('.hidden') ? -1 : ROWS.findIndex((pattern) => pattern.test(name))
    const section = sections.at(-1)!
    if (mine === -1 || mine !== row) section.rows.push([])
    section.rows.at(-1)!.push(name)
    row = mine
    last = title
  }
  return sections
}

/** What each value of an attention or a feed-forward network is made of, beside it. */
const FEEDS: Record<string, string[]> = {
  rotated_queries: ['queries'],
  rotated_keys: ['keys'],
  scores: ['rotated_queries', 'rotated_keys'],
  scaled_scores: ['scores'],
  masked_scores: ['scaled_scores', 'scores'],
  weights: ['masked_scores'],
  heads: ['weights', 'values'],
  concatenated: ['heads'],
  activated: ['hidden', 'gates'],
  normalized: ['variance', 'mean_square'],
  variance: ['mean'],
  cell_state: ['input_gate', 'forget_gate', 'candidate'],
}

/** The state of a recurrent layer, by its kind of cell. */
const STATES: string[][] = [
  ['output_gate', 'cell_state'],
  ['update_gate', 'candidate'],
]

function edgesOf(id: string, names: string[]): Edge[] {
  const has = new Set(names)
  const edges: Edge[] = []
  const join = (from: string, to: string, around = false): boolean => {
    if ((from !== '' && !has.has(from)) || !has.has(to)) return false
    edges.push(around ? { from, to, around } : { from, to })
    return true
  }
  for (const name of names) {
    const [, prefix = '', ending = ''] = /^(.*\.)?([^.]+)$/.exec(name) ?? []
    if (ending === 'scores') {
      for (const what of ['queries', 'keys']) join(`${prefix}rotated_${what}`, name) || join(prefix + what, name)
    } else if (ending === 'masked_scores') {
      join(`${prefix}scaled_scores`, name) || join(`${prefix}scores`, name)
    } else if (ending === 'output' && /norm\.$/.test(prefix)) {
      join(`${prefix}normalized`, name)
    } else if (ending === 'output') {
      join(`${prefix}concatenated`, name) || join(`${prefix}activated`, name) || join(`${prefix}weights`, name)
    } else if (ending === 'hidden' && !prefix.includes('feedforward')) {
      for (const gates of STATES) if (gates.every((gate) => has.has(prefix + gate))) for (const gate of gates) join(prefix + gate, name)
    } else {
      for (const from of FEEDS[ending] ?? []) join(prefix + from, name)
    }
  }
  residual(id, names, join)
  return edges
}

/** The stream from sublayer to sublayer, and around each of them. */
function residual(id: string, names: string[], join: (from: string, to: string, around?: boolean) => boolean): void {
  let stream = `${id}.input`
  for (const sublayer of Object.keys(SUBLAYERS)) {
    const inside = `${id}.${sublayer}`
    const first = names.findIndex((name) => name.startsWith(`${inside}.`))
    if (first < 0) continue
    const norm = names.findIndex((name) => name.startsWith(`${inside}_norm.`))
    const pre = norm >= 0 && norm < first
    const x = pre ? `${inside}_norm.output` : stream
    const enters = (from: string): boolean =>
      join(from, `${inside}_norm.mean`) || join(from, `${inside}_norm.mean_square`)
    if (pre) enters(stream)
    for (const to of ['queries', 'hidden', 'gates']) join(x, `${inside}.${to}`)
    const source = sublayer === 'cross_attention' ? '' : x
    for (const to of ['keys', 'values']) join(source, `${inside}.${to}`)
    join(`${inside}.output`, `${inside}_add`)
    join(stream, `${inside}_add`, true)
    if (!pre) enters(`${inside}_add`)
    stream = pre ? `${inside}_add` : `${inside}_norm.output`
  }
  join(stream, `${id}.output`)
}
