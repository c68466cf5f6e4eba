import { expect, it } from 'vitest'
import { kept } from './kept'

it('keeps what was used last, within its room', async () => {
  const made: string[] = []
  const get = kept<string>(2, () => 1)
  const ask = (key: string): Promise<string> => get(key, async () => (made.push(key), key))
  for (const key of ['a', 'b', 'a', 'c', 'a', 'b']) expect(await ask(key)).toBe(key)
  expect(made).toEqual(['a', 'b', 'c', 'b'])
})

it('does not keep a failure', async () => {
  const get = kept<number>(2, () => 1)
  await expect(get('x', () => Promise.reject(new Error('no')))).rejects.toThrow('no')
  expect(await get('x', async () => 1)).toBe(1)
})
