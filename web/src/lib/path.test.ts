import { describe, expect, it } from 'vitest'
import { pathOf } from './path'

const value = (name: string) => ({ name, axes: '', shape: [], formula: '' })
const attention = (at: string, more: string[] = []): string[] =>
  ['queries', 'keys', 'values', ...more, 'scores', 'scaled_scores', 'masked_scores', 'weights', 'heads', 'concatenated', 'output'].map((name) => `${at}.${name}`)
const norm = (at: string): string[] => ['mean', 'variance', 'normalized', 'output'].map((name) => `${at}.${name}`)
const feedforward = (at: string): string[] => ['hidden', 'activated', 'output'].map((name) => `${at}.${name}`)

function block(at: string, place: 'pre' | 'post', more: string[] = []): string[] {
  const sublayer = (name: string, inside: string[]): string[] =>
    place === 'pre' ? [...norm(`${at}.${name}_norm`), ...inside, `${at}.${name}_add`] : [...inside, `${at}.${name}_add`, ...norm(`${at}.${name}_norm`)]
  return [
    `${at}.input`,
    ...sublayer('self_attention', attention(`${at}.self_attention`, more)),
    ...sublayer('feedforward', feedforward(`${at}.feedforward`)),
    `${at}.output`,
  ]
}

describe('pathOf', () => {
  it('puts the encoder before the decoder before the head', () => {
    const names = ['decoder.embedding.output', 'head.logits', 'encoder.embedding.output', ...block('encoder.blocks.0', 'pre'), 'encoder.final_norm.output']
    expect(pathOf(names.map(value)).map(({ id }) => id)).toEqual([
      'encoder.embedding', 'encoder.blocks.0', 'encoder.final_norm', 'decoder.embedding', 'head',
    ])
  })

  it('keeps the order in which this model computes', () => {
    const rows = (place: 'pre' | 'post'): string[] => pathOf(block('encoder.blocks.0', place).map(value))[0]!.sections.flatMap(({ rows }) => rows.flat())
    expect(rows('pre')).toEqual(block('encoder.blocks.0', 'pre'))
    expect(rows('post')).toEqual(block('encoder.blocks.0', 'post'))
  })

  it('leaves out nothing', () => {
    const names = [...block('decoder.blocks.0', 'pre', ['rotated_queries', 'rotated_keys']), 'decoder.bridge.0.output', 'decoder.layers.0.hidden', 'decoder.attention.keys', 'decoder.output', 'encoder.relative_bias.output', 'head.pool.pooled']
    const shown = pathOf(names.map(value)).flatMap(({ sections }) => sections.flatMap(({ rows }) => rows.flat()))
    expect(shown.toSorted()).toEqual(names.toSorted())
  })

  it('knows what feeds what', () => {
    const at = 'decoder.blocks.0'
    const edges = (place: 'pre' | 'post', more: string[] = []): string[] =>
      pathOf(block(at, place, more).map(value))[0]!.edges.map(({ from, to }) => `${from.slice(at.length + 1)} > ${to.slice(at.length + 1)}`)
    expect(edges('pre')).toContain('self_attention_norm.output > self_attention.queries')
    expect(edges('pre')).toContain('input > self_attention_norm.mean')
    expect(edges('pre')).toContain('self_attention_add > feedforward_add')
    expect(edges('post')).toContain('input > self_attention.queries')
    expect(edges('post')).toContain('self_attention_add > self_attention_norm.mean')
    expect(edges('post')).toContain('self_attention_norm.output > feedforward_add')
    expect(edges('pre', ['rotated_queries', 'rotated_keys'])).toContain('self_attention.rotated_keys > self_attention.scores')
    expect(edges('pre')).toContain('self_attention.values > self_attention.heads')
  })
})
