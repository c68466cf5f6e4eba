import { expect, it } from 'vitest'
import type { Tok } from '../../lib/types'
import { spans, swapped } from './words'

const toks = (...pieces: [string, number][]): Tok[] => pieces.map(([text, word], id) => ({ id, text, word }))
const TEXT = "The animal didn't stop."
const TOKENS = toks(['<s>', 0], ['The', 1], ['▁animal', 2], ['▁didn', 3], ["'t", 3], ['▁', 4], ['stop', 4], ['.', 4], ['</s>', 5])

it('finds words by their pieces', () => {
  const found = spans(TEXT, TOKENS)
  expect([...found.values()].map(({ text }) => text)).toEqual(['The', 'animal', "didn't", 'stop'])
  expect(found.has(0)).toBe(false)
})

it('finds them in lowered letters and with BERT’s pieces', () => {
  const found = spans('The Cats [MASK].', toks(['[CLS]', 0], ['the', 1], ['cat', 2], ['##s', 2], ['[MASK]', 3], ['.', 4], ['[SEP]', 5]))
  expect([...found.values()].map(({ text }) => text)).toEqual(['The', 'Cats', '[MASK]', '.'])
})

it('puts other words in their place', () => {
  const swap = (word: number, from: string, to: string) => ({ kind: 'swap' as const, word, from, to })
  expect(swapped(TEXT, TOKENS, [swap(2, 'animal', 'old dog'), swap(4, 'stop', 'run')]).text).toBe("The old dog didn't run.")
  expect(swapped(TEXT, TOKENS, [swap(2, 'animal', '')]).text).toBe("The didn't stop.")
  expect(swapped(TEXT, TOKENS, [{ kind: 'off', what: 'mask' }, swap(2, 'cat', 'dog')])).toEqual({ text: TEXT, lost: [1] })
})
