import { expect, it } from 'vitest'
import { ink, NOTHING, paint, rgb, scaleOf } from './colour'

const light = ([r, g, b]: readonly number[]): number => 0.2126 * r! + 0.7152 * g! + 0.0722 * b!

it('gets darker with the number, on paper; lighter, in the dark', () => {
  const at = (value: number, theme: 'light' | 'dark'): number => light(rgb(value, { kind: 'share' }, theme))
  for (const value of [0, 0.1, 0.3, 0.6, 0.9]) {
    expect(at(value + 0.1, 'light')).toBeLessThan(at(value, 'light'))
    expect(at(value + 0.1, 'dark')).toBeGreaterThan(at(value, 'dark'))
  }
})

it('tells signs apart by hue', () => {
  const [up, down] = [rgb(1, { kind: 'signed', most: 2 }, 'light'), rgb(-1, { kind: 'signed', most: 2 }, 'light')]
  expect(up[0]).toBeGreaterThan(up[2])
  expect(down[2]).toBeGreaterThan(down[0])
})

it('has no colour for what is masked', () => {
  expect(rgb(-Infinity, { kind: 'share' }, 'light')).toEqual(NOTHING.light)
  const pixels = new Uint8ClampedArray(4)
  paint([-Infinity], { kind: 'signed', most: 1 }, 'dark', pixels)
  expect([...pixels]).toEqual([...NOTHING.dark, 255])
})

it('prints numbers in ink that can be read', () => {
  expect(ink(0, { kind: 'share' }, 'light')).not.toBe(ink(1, { kind: 'share' }, 'light'))
})

it('scales signed values to the largest finite one', () => {
  expect(scaleOf('x.masked_scores', [1, -3, -Infinity])).toEqual({ kind: 'signed', most: 3 })
  expect(scaleOf('x.weights', [0.1])).toEqual({ kind: 'share' })
})
