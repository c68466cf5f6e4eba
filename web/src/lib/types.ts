/** What the server says: the shapes of its JSON. */

export interface ModelInfo {
  name: string
  family: 'encoder-decoder' | 'encoder-only' | 'decoder-only'
  kind: 'transformer' | 'recurrent'
  reads: 'text' | 'image'
  tasks: string[]
  prefixes: Record<string, string>
  head: string | null
  generates: boolean
  parameters: number
  max_tokens: number
  beams: number
  encoder: StackInfo | null
  decoder: StackInfo | null
  image: { size: number; patch: number; channels: number } | null
  example: string
  example_pair: string
  switches: string[]
  attentions: AttentionInfo[]
}

export interface AttentionInfo {
  /** Where its values are: "encoder.blocks.0.self_attention". */
  name: string
  kind: 'encoder' | 'decoder' | 'cross'
  block: number
  heads: number
}

/** A transformer has the first group of fields, a recurrent model the second. */
export interface StackInfo {
  d_model: number
  blocks?: number
  heads?: number
  kv_heads?: number
  d_head?: number
  d_ff?: number
  norm?: string
  norm_place?: 'pre' | 'post'
  norm_epsilon?: number
  positions?: string
  gated?: boolean
  activation?: string
  scaled_scores?: boolean
  layers?: number
  d_hidden?: number
  cell?: string
  bidirectional?: boolean
  attention?: string | null
}

export interface Tok {
  id: number
  /** "▁" where a word begins. */
  text: string
  /** The number of the word it is a piece of. */
  word: number
}

export interface Choice {
  id: number
  text: string
  p: number
}

/** What the head says at one place: the next word, a hidden word, a class. */
export interface Place {
  label: string
  side: 'source' | 'target' | null
  top: Choice[]
}

export interface ValueInfo {
  name: string
  /** One letter an axis: "BHTS". */
  axes: string
  shape: number[]
  formula: string
  /** A recurrent layer that reads the text from its end. */
  last_first?: boolean
}

export type Edit =
  | { kind: 'zero'; value: string; head?: number }
  | { kind: 'scale'; value: string; by: number; head?: number }
  | { kind: 'set'; value: string; at: number[]; to: number; renormalise?: boolean }
  | { kind: 'off'; what: string; where?: string }
  | { kind: 'patch'; value: string; trace: string }

export interface RunRequest {
  model: string
  text?: string
  /** A file, base64. */
  image?: string
  target?: string
  pair?: string
  /** Tokens that it has written, in place of a target. */
  prefix?: number[]
  generate?: { max_new_tokens?: number; beams?: number }
  edits?: Edit[]
}

/** Of the numbers that a network computed with: what the last bit of 1 is worth, and the number next to 0. */
export interface Precision {
  epsilon: number
  smallest: number
}

export interface TraceInfo {
  id: string
  model: string
  text: string | null
  tokens: { source: Tok[]; target: Tok[] }
  image: { rows: number; columns: number; pixels: string } | null
  written: string | null
  /** It had no room to end what it wrote. */
  cut: boolean
  places: Place[]
  /** In the order in which they were computed. */
  values: ValueInfo[]
  precision: Precision
  edits: Edit[]
  seconds: number
}

/** An example of the notes with other numbers. */
export interface OtherNote {
  number: number
  inputs: NoteInputs
}

/** A part of a value: `at` has a number for each fixed axis, null for each that runs. */
export interface Slice {
  values: Float32Array
  /** Of the running axes. */
  shape: number[]
}

export type At = (number | null)[]

export interface Explanation {
  name: string
  at: number[]
  formula: string
  value: number
  /** How far from it the sum may be, because the network rounds. */
  tolerance: number
  expression: Expression
  /** The place in words, those of the vocabulary among them; a page on disk does not know these. */
  where?: string
}

export type Num = number | 'inf' | '-inf' | 'nan'

export type Vector = { op: 'vector'; values: Num[]; of: string | null; at: At | null }

export type Expression =
  | { op: 'number'; value: Num; of: string | null; at: number[] | null }
  | Vector
  | { op: 'sum'; terms: Expression[] }
  | { op: 'product'; factors: Expression[] }
  | { op: 'quotient'; over: Expression; under: Expression }
  | { op: 'dot'; a: Vector; b: Vector }
  | { op: 'softmax'; scores: Vector; place: number }
  | { op: 'mean'; x: Vector }
  | { op: 'mean_square'; x: Vector }
  | { op: 'variance'; x: Vector; mean: Expression }
  | { op: 'call'; function: string; x: Expression }

export interface Lens {
  layers: { name: string; places: Place[] }[]
}

export type Rollout = Partial<Record<'source' | 'target', { shape: number[]; values: number[][] }>>

export interface NextRequest {
  model: string
  text: string
  prefix: number[]
  temperature?: number
  top_k?: number
  top_p?: number
  min_p?: number
  n?: number
}

export interface Next {
  /** What is written so far, as text and by token. */
  written: string
  tokens: { id: number; text: string }[]
  plain: Choice[]
  /** As temperature, top-k, top-p and min-p leave it: only words that are still possible. */
  warped: Choice[]
  /** How many those are. */
  left: number
  /** The tokens that end a text. */
  end: number[]
}

export interface BeamsRequest {
  model: string
  text: string
  beams?: number
  max_new_tokens?: number
  length_penalty?: number
  prefix?: number[]
}

export interface Candidate {
  number: number
  /** The candidate that it continues; null: it is of the first step. */
  parent: number | null
  token: { id: number; text: string }
  logprob: number
  score: number
  kept: boolean
  ended: boolean
}

export interface Beams {
  steps: Candidate[][]
  texts: FoundText[]
}

export interface FoundText {
  text: string
  score: number
  ids: number[]
  /** "end": it ended itself; "length": it was cut. */
  ended: string
  tokens: { id: number; text: string; logprob: number }[]
}

export interface GenerateRequest {
  model: string
  text: string
  [option: string]: unknown
}

export interface Written {
  id: number
  text: string
  logprob: number
  top: Choice[]
}

/** A number of the notes; JSON has no infinities. */
export type Figure = number | 'inf' | '-inf'
/** A number, a vector or a table, of numbers or as the notes print them. */
export type Figures<F = Figure> = F | F[] | F[][]

/** An example's numbers: single ones, vectors, tables and words with their vectors; switches and names. */
export type NoteInput = number | boolean | string | NoteInput[] | { [label: string]: NoteInput }
export type NoteInputs = Record<string, NoteInput>

/** One value on the way. Without `rows` or `columns` it has no labels there. */
export interface NoteStep {
  name: string
  formula: string
  value: Figures
  rows: string[]
  columns: string[]
  /** Its sums written out; `of` is whose: "The → CAT", "The, 2", "CAT", or "" for a word on all of it. */
  lines: { of: string; text: string }[]
}

/** What one place of the notes prints of a step, or of one row of it. */
export interface Printing {
  note: string
  of: string
  value: Figures<string>
  row: string | null
  differs: boolean
}

/** A printed number that is not the true one. */
export interface Difference {
  note: string
  of: string
  where: string
  printed: string
  true: string
}

/** A worked example. With other inputs than the notes' nothing is printed of it. */
export interface Worked {
  number: number
  title: string
  topic: string
  inputs: NoteInputs
  steps: NoteStep[]
  printed: Printing[]
  true: Figures | Record<string, Figures>
  differs: boolean
  differences: Difference[]
  reason: string | null
  remark: string | null
}

export interface Note extends Worked {
  /** How its steps are computed: "attention", "position", … */
  compute: string
}

export interface Question {
  number: number
  text: string
  options: Record<string, string>
  /** Several may be right. */
  answers: string[]
  explanation: string
  demonstration: string[]
}

export interface Notes {
  examples: Note[]
  quiz: Question[]
}
