/** Rollout and lens as the pictures take them. */

import type { Lens, Place, Rollout, TraceInfo } from '../../lib/types'
import { weightsOf, type Level, type AttentionWeights } from './weights'

/** Of each side the matrix, by token or by word. Its name is the side's. */
export function rolled(trace: TraceInfo, rollout: Rollout, level: Level): AttentionWeights[] {
  return (['source', 'target'] as const).flatMap((side) => {
    const found = rollout[side]
    const tokens = trace.tokens[side]
    if (!found) return []
    const values = Float32Array.from((found.values as unknown[]).flat(Infinity) as number[])
    return values.length === tokens.length ** 2 ? [weightsOf(level, side, values, 1, tokens, tokens)] : []
  })
}

export interface Column {
  name: string
  title: string
  places: Place[]
}

/** "block 1" for "decoder.blocks.1.output". */
export function layerTitle(name: string): string {
  const block = /(?:blocks|layers)\.(\d+)/.exec(name)?.[1]
  if (block !== undefined) return `block ${block}`
  if (name.includes('embedding')) return 'embedding'
  if (/^(head|output|logits)|\.(output|final_norm)/.test(name)) return 'output'
  return name
}

export function lensColumns({ layers }: Lens): Column[] {
  return layers.map(({ name, places }) => ({ name, title: layerTitle(name), places }))
}
