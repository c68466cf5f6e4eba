import { expect, it } from 'vitest'
import { align, differences } from './align'

it('pairs what is common and what stands between', () => {
  expect(align([...'abcd'], [...'abxd'])).toEqual([
    { a: 0, b: 0, same: true }, { a: 1, b: 1, same: true }, { a: 2, b: 2, same: false }, { a: 3, b: 3, same: true },
  ])
  expect(align([...'ab'], [...'ayyb']).map(({ a, b }) => [a, b])).toEqual([[0, 0], [null, 1], [null, 2], [1, 3]])
  expect(align([], [...'ab']).map(({ a, b }) => [a, b])).toEqual([[null, 0], [null, 1]])
  expect(align([], [])).toEqual([])
})

it('has every item once, in order', () => {
  const [first, second] = [[...'kitten sitting'], [...'sitting kitten on the mat']]
  const pairs = align(first, second)
  expect(pairs.flatMap(({ a }) => (a === null ? [] : [a]))).toEqual(first.map((_, i) => i))
  expect(pairs.flatMap(({ b }) => (b === null ? [] : [b]))).toEqual(second.map((_, i) => i))
  for (const { a, b, same } of pairs) if (same) expect(first[a!]).toBe(second[b!])
})

it('marks the words that differ, and loses no letter', () => {
  const [was, now] = ["L'animal n'a pas traversé la rue.", "L'animal ne traversait pas la rue."]
  const { before, after } = differences(was, now)
  expect(before.map(({ text }) => text).join('')).toBe(was)
  expect(after.map(({ text }) => text).join('')).toBe(now)
  expect(after.filter(({ other }) => other).map(({ text }) => text.trim())).toEqual(['ne', 'traversait'])
  expect(differences('', '')).toEqual({ before: [], after: [] })
})
