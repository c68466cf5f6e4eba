import { describe, expect, it } from 'vitest'
import { dimensions, distinct, shown } from './tokens'

describe('a token', () => {
  it('is shown without the mark of its word', () => {
    expect(['▁cat', 's', '▁in▁the', '##ing'].map(shown)).toEqual(['cat', 's', 'in the', '##ing'])
  })

  it('that is white space of any kind can be seen', () => {
    expect(['', '▁', '▁▁▁', ' ', '\u00a0', '\u202f', '▁\u2009', '\u3000'].map(shown)).toEqual(['␣', '␣', '␣␣', '␣', '␣', '␣', '␣', '␣'])
    expect(['\n\n', '\t', '\x00'].map(shown)).toEqual(['↵↵', '␉', '␀'])
    expect(shown('12\u00a0000')).toBe('12\u00a0000')
  })

  it('that has no width, or signs in it that have none, is named by their codes', () => {
    expect(['\u200b', '▁\ufeff', '\u00ad', '\u200d', '\ufe0f', '\x85', '\u{e0001}'].map(shown)).toEqual(
      ['U+200B', 'U+FEFF', 'U+00AD', 'U+200D', 'U+FE0F', 'U+0085', 'U+E0001'],
    )
    expect(shown('co\u00adop')).toBe('coU+00ADop')
    expect(shown('\u200b\u00a0')).toBe('U+200B␣')
  })

  it('keeps the joiners of its letters', () => {
    expect(shown('👩\u200d🔬')).toBe('👩\u200d🔬')
    expect(shown('❤\ufe0f')).toBe('❤\ufe0f')
  })
})

it('two tokens of a list that look alike are told apart', () => {
  const named = distinct(["l'", "▁l'", '▁la', '▁', '\u00a0', '▁la'])
  expect(["l'", "▁l'", '▁la', '▁', '\u00a0'].map(named)).toEqual(["l'", "▁l'", 'la', '▁', '␣'])
})

it('axes are spelled out', () => {
  expect(dimensions({ axes: 'BHTS', shape: [1, 8, 7, 12] })).toBe('8 heads × 7 queries × 12 keys')
  expect(dimensions({ axes: 'BTD', shape: [1, 1, 128] })).toBe('1 token × width 128')
  expect(dimensions({ axes: 'BGSK', shape: [2, 2, 3, 16] })).toBe('2 batch rows × 2 key/value heads × 3 keys × head width 16')
  expect(dimensions({ axes: 'BTV', shape: [1, 3, 8000] })).toBe('3 tokens × vocabulary 8000')
  expect(dimensions({ axes: 'BC', shape: [1, 10] })).toBe('10 classes')
})
