/** The inputs and earlier numbers that a number of a step is computed from. */

import type { Note } from '../../lib/types'
import type { At } from './figures'

/** Numbers that light up; null: all along that way. */
export interface Origin {
  kind: 'input' | 'step'
  of: string
  row: number | null
  column: number | null
}

const input = (of: string, row: number | null = null, column: number | null = null): Origin => ({ kind: 'input', of, row, column })
const step = (of: string, row: number | null = null, column: number | null = null): Origin => ({ kind: 'step', of, row, column })

/** Empty for steps without a rule here. */
export function origins({ compute, inputs }: Pick<Note, 'compute' | 'inputs'>, of: string, at: At): Origin[] {
  const { row, column } = at
  switch (compute) {
    case 'attention':
      return attention(of, at, 'memory' in inputs ? 'memory' : 'x', 'weights' in inputs)
    case 'position':
      return [input('position'), input('d_model')]
    case 'embedding': {
      const word = Object.keys(inputs['table'] as object).indexOf(inputs['word'] as string)
      const [vector, place] = [input('table', word, column), input('position')]
      if (of === 'token_vectors') return [vector]
      if (of === 'position_vectors') return [place]
      return [vector, place, step('token_vectors', 0, column), step('position_vectors', 0, column)]
    }
    case 'layer_norm':
      return layerNorm(of, column)
    case 'masks': {
      if (of === 'padding') return [input('tokens', 0, column), input('pad')]
      if (of === 'pairs') return [step('padding', 0, row), step('padding', 0, column), input('tokens', 0, row), input('tokens', 0, column)]
      if (of === 'look_ahead') return []
      const padding = inputs['hide'] === 'keys' ? step('padding', 0, column) : step('pairs', row, column)
      return [step('look_ahead', row, column), padding, input('tokens', 0, column)]
    }
    case 'head_shapes':
      if (of === 'heads') return [[], [input('n_heads')], [input('n_tokens')], [input('d_model'), input('n_heads')]][column] ?? []
      if (of === 'concatenated') return [[], [input('n_tokens'), step('heads', 0, 2)], [step('heads', 0, 1), step('heads', 0, 3)]][column] ?? []
      return [step('heads', 0, 1), step('heads', 0, 3)]
    case 'one_hot':
      return of === 'one_hot' ? [step('table', (inputs['vocabulary'] as string[]).indexOf(inputs['word'] as string), column)] : []
    case 'model_sizes':
      return { d_head: [step('d_model'), step('n_heads')], root: [step('d_head')] }[of] ?? []
    default:
      return []
  }
}

function attention(of: string, { row, column }: At, memory: string, given: boolean): Origin[] {
  const words = [input('x', row), input(memory, column)]
  switch (of) {
    case 'queries':
      return [input('x', row, column)]
    case 'keys':
    case 'values':
      return [input(memory, row, column)]
    case 'scores':
      return [step('queries', row), step('keys', column), ...words]
    case 'scaled_scores':
      return [step('scores', row, column), input('scale_scores'), ...words]
    case 'masked_scores':
      return [step('scaled_scores', row, column), input('visible', 0, column), input('causal'), ...words]
    case 'weights':
      return given ? [input('weights', row, column)] : [step('masked_scores', row), input('x', row), input(memory)]
    case 'heads':
      return [step('weights', row), step('values', null, column), input(memory, null, column), ...(given ? [input('weights', row)] : [])]
    default:
      return []
  }
}

function layerNorm(of: string, column: number): Origin[] {
  switch (of) {
    case 'x':
      return [input('x', 0, column)]
    case 'mean':
      return [step('x'), input('x')]
    case 'variance':
      return [step('x'), step('mean'), input('x')]
    case 'normalized':
      return [step('x', 0, column), step('mean'), step('variance'), input('x', 0, column), input('epsilon')]
    default:
      return [step('normalized', 0, column), input('gamma', 0, column), input('beta', 0, column)]
  }
}

export function isLit(lit: Origin[], kind: Origin['kind'], of: string, row: number, column: number): boolean {
  return lit.some(
    (each) => each.kind === kind && each.of === of && (each.row === null || each.row === row) && (each.column === null || each.column === column),
  )
}
