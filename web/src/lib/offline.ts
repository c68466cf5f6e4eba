/** A page that carries its numbers: `cutaway see --html` and exports. It needs no server. */

import { explainOffline } from './explain_offline'
import { parsed, UserError, type Source } from './source'
import type * as T from './types'

/** What Python writes into `<script id="cutaway-data">`. */
export interface Embedded {
  models: T.ModelInfo[]
  traces: EmbeddedTrace[]
  /** A page of the notes, instead of a run; `other`: an example with other numbers. */
  notes?: T.Notes & { other: (T.Worked & T.OtherNote) | null }
  /** Which view is opened first, e.g. "#/heads?layer=2". */
  address?: string
}

export interface EmbeddedTrace {
  info: T.TraceInfo
  /** name -> base64 of little-endian float32, in the order of `info.values`' shapes; large values may be left out. */
  values: Record<string, string>
  lens?: T.Lens
  rollout?: T.Rollout
}

export function embedded(): Embedded | null {
  const said = document.getElementById('cutaway-data')?.textContent?.trim()
  return said ? parsed(said) : null
}

const NOT_HERE = 'This file holds one saved run; start the studio (cutaway studio) for others.'

export class Offline implements Source {
  readonly live = false
  #decoded = new Map<string, Float32Array>()

  constructor(private readonly data: Embedded) {}

  async models(): Promise<T.ModelInfo[]> {
    return this.data.models
  }

  async run(): Promise<T.TraceInfo> {
    throw new UserError(NOT_HERE)
  }

  async trace(id: string): Promise<T.TraceInfo> {
    return this.#trace(id).info
  }

  async slice(id: string, name: string, at: T.At): Promise<T.Slice> {
    return cut(this.whole(id, name), this.#shape(id, name), at)
  }

  async explain(id: string, name: string, at: number[]): Promise<T.Explanation> {
    const { info } = this.#trace(id)
    const model = this.data.models.find(({ name }) => name === info.model)
    return explainOffline(info, model ?? null, name, at, (of, at) => {
      const shape = this.#shape(id, of)
      return Array.from(cut(this.whole(id, of), shape, at).values)
    })
  }

  async lens(id: string): Promise<T.Lens> {
    const { lens } = this.#trace(id)
    if (!lens) throw new UserError('The logit lens is not in this file.')
    return lens
  }

  async rollout(id: string): Promise<T.Rollout> {
    const { rollout } = this.#trace(id)
    if (!rollout) throw new UserError('The attention rollout is not in this file.')
    return rollout
  }

  async next(): Promise<T.Next> {
    throw new UserError(NOT_HERE)
  }

  async beams(): Promise<T.Beams> {
    throw new UserError(NOT_HERE)
  }

  async generate(): Promise<{ text: string; tokens: number; ended: boolean }> {
    throw new UserError(NOT_HERE)
  }

  async notes(): Promise<T.Notes> {
    if (!this.data.notes) throw new UserError(NOT_HERE)
    return this.data.notes
  }

  async note(number: number, inputs: T.NoteInputs): Promise<T.Worked> {
    const other = this.data.notes?.other
    if (other?.number === number && JSON.stringify(other.inputs) === JSON.stringify(inputs)) return other
    throw new UserError('This file holds the numbers it was saved with; start the studio (cutaway studio) to compute others.')
  }

  async page(): Promise<Blob> {
    throw new UserError(NOT_HERE)
  }

  async notesPage(): Promise<Blob> {
    throw new UserError(NOT_HERE)
  }

  whole(id: string, name: string): Float32Array {
    const key = `${id}/${name}`
    let values = this.#decoded.get(key)
    if (!values) {
      const said = this.#trace(id).values[name]
      if (said === undefined) throw new UserError(`${name} is too large for this file; open the studio to see it.`)
      values = floats(said)
      this.#decoded.set(key, values)
    }
    return values
  }

  #trace(id: string): EmbeddedTrace {
    const found = this.data.traces.find(({ info }) => info.id === id) ?? this.data.traces[0]
    if (!found) throw new UserError('There is no run in this file.')
    return found
  }

  #shape(id: string, name: string): number[] {
    const value = this.#trace(id).info.values.find((value) => value.name === name)
    if (!value) throw new UserError(`There is no value called ${name} in this file.`)
    return value.shape
  }
}

export function floats(base64: string): Float32Array {
  const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0))
  return new Float32Array(bytes.buffer)
}

/** The numbers at `at`: null runs along its axis. */
export function cut(values: Float32Array, shape: number[], at: T.At): T.Slice {
  const strides = shape.map((_, axis) => shape.slice(axis + 1).reduce((n, size) => n * size, 1))
  const running = at.flatMap((place, axis) => (place === null ? [axis] : []))
  const start = at.reduce<number>((offset, place, axis) => offset + (place ?? 0) * strides[axis]!, 0)
  const kept = running.map((axis) => shape[axis]!)
  const result = new Float32Array(kept.reduce((n, size) => n * size, 1))
  const place = kept.map(() => 0)
  for (let i = 0; i < result.length; i++) {
    let offset = start
    for (let axis = 0; axis < running.length; axis++) offset += place[axis]! * strides[running[axis]!]!
    result[i] = values[offset]!
    for (let axis = place.length - 1; axis >= 0; axis--) {
      if (++place[axis]! < kept[axis]!) break
      place[axis] = 0
    }
  }
  return { values: result, shape: kept }
}
