import { expect, test } from 'vitest'
import { split } from './token'

test('the token leaves the address, and nothing else does', () => {
  expect(split('?token=a-B_9')).toEqual({ rest: '', token: 'a-B_9' })
  expect(split('?a=1&token=x&b=2')).toEqual({ rest: '?a=1&b=2', token: 'x' })
  expect(split('')).toEqual({ rest: '', token: null })
})
