import { expect, it } from 'vitest'
import { lru } from './lru'

it('keeps what was used last, within its room', async () => {
  const made: string[] = []
  const get = lru<string>(2, () => 1)
  const ask = (key: string): Promise<string> => get(key, async () => (made.push(key), key))
  for (const key of ['a', 'b', 'a', 'c', 'a', 'b']) expect(await ask(key)).toBe(key)
  expect(made).toEqual(['a', 'b', 'c', 'b'])
})

it('does not keep a failure', async () => {
  const get = lru<number>(2, () => 1)
  await expect(get('x', () => Promise.reject(new Error('no')))).rejects.toThrow('no')
  expect(await get('x', async () => 1)).toBe(1)
})
