import { expect, it } from 'vitest'
import { UserError } from '../../lib/source'
import { bisect } from './bisect'

const runs = (bad: string[], status = 400) => {
  const tried: string[][] = []
  const attempt = async (changes: string[]): Promise<string> => {
    tried.push(changes)
    const wrong = changes.find((each) => bad.includes(each))
    if (wrong) throw new UserError(`no ${wrong}`, status)
    return changes.join('')
  }
  return { tried, attempt }
}

it('runs once when all is well', async () => {
  const { tried, attempt } = runs([])
  expect(await bisect([...'abc'], attempt)).toEqual({ result: 'abc', refused: new Map() })
  expect(tried).toHaveLength(1)
})

it('finds those that are refused, and goes on without them', async () => {
  const { tried, attempt } = runs(['c', 'f'])
  const { result, refused } = await bisect([...'abcdefgh'], attempt)
  expect(result).toBe('abdegh')
  expect([...refused]).toEqual([[2, 'no c'], [5, 'no f']])
  expect(tried.length).toBeLessThan(12)
})

it('has no result when nothing is left, or nothing is asked', async () => {
  expect(await bisect(['x'], runs(['x']).attempt)).toEqual({ result: null, refused: new Map([[0, 'no x']]) })
  expect(await bisect([], runs([]).attempt)).toEqual({ result: null, refused: new Map() })
})

it('does not blame a change for a busy server', async () => {
  await expect(bisect(['a'], runs(['a'], 429).attempt)).rejects.toThrow('no a')
})
