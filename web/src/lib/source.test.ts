import { expect, it } from 'vitest'
import { parsed, UserError } from './source'
import { bar, fixed } from './format'

it('reads what JSON has no numbers for, and leaves words as they are', () => {
  expect(parsed('{"logprob": "-inf", "top": [{"text": "inf", "p": "nan"}, {"text": "p", "p": 0.5}]}')).toEqual({
    logprob: -Infinity,
    top: [{ text: 'inf', p: NaN }, { text: 'p', p: 0.5 }],
  })
})

it('tells of an answer that is no JSON', () => {
  expect(() => parsed('{"p": NaN}')).toThrow(UserError)
})

it('writes and draws numbers that broke', () => {
  expect([NaN, -Infinity, Infinity, -0.125].map((p) => fixed(p, 2))).toEqual(['nan', '−∞', '∞', '−0.13'])
  expect([NaN, -Infinity, null, undefined, 0.25].map(bar)).toEqual([0, 0, 0, 0, 0.25])
})
