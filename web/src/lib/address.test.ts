import { describe, expect, it } from 'vitest'
import { flag, format, json, names, oneOf, parse, readField, real, text, whole, wholes, writeField, type Field } from './address'

describe('addresses', () => {
  it('are read', () => {
    expect(parse('#/run?model=en-fr&text=The+cat%3F')).toEqual({ view: 'run', query: { model: 'en-fr', text: 'The cat?' } })
    expect(parse('')).toEqual({ view: 'run', query: {} })
    expect(parse('#/heads')).toEqual({ view: 'heads', query: {} })
  })

  it('come back as they were, whatever was typed', () => {
    for (const text of ['a&b=c#d', 'où ça ? 50%', 'x?y?z', '日本 😀', 'a+b, c:d/e', '"\\n\n']) {
      const address = { view: 'run', query: { text, model: 'm' } }
      expect(parse(format(address))).toEqual(address)
    }
  })

  it('leave out what is empty', () => {
    expect(format({ view: 'run', query: { a: '', b: '1' } })).toBe('#/run?b=1')
  })
})

describe('fields', () => {
  const trip = <V>(field: Field<V>, value: V): V => {
    const said = writeField(field, value)
    return readField(field, said === '' ? {} : { x: said }, 'x')
  }

  it('come back as they were', () => {
    expect(trip(text(), 'a,b')).toBe('a,b')
    expect(trip(whole(3), 0)).toBe(0)
    expect(trip(real(0.1), 1e-3)).toBe(1e-3)
    expect(trip(flag(true), false)).toBe(false)
    expect(trip(oneOf(['a', 'b'], 'a'), 'b')).toBe('b')
    expect(trip(names(['x']), [])).toEqual([])
    expect(trip(names(), ['a.b', 'c'])).toEqual(['a.b', 'c'])
    expect(trip(wholes([1, 2]), [])).toEqual([])
    expect(trip(wholes(), [0, 5])).toEqual([0, 5])
    expect(trip(json<unknown>(null), [{ kind: 'off' }])).toEqual([{ kind: 'off' }])
  })

  it('are left out at their default', () => {
    expect(writeField(whole(3), 3)).toBe('')
    expect(writeField(names(['a']), ['a'])).toBe('')
  })

  it('take nonsense for nothing', () => {
    expect(readField(whole(3), { x: 'three' }, 'x')).toBe(3)
    expect(readField(oneOf(['a', 'b'], 'a'), { x: 'c' }, 'x')).toBe('a')
    expect(readField(json<number[]>([]), { x: '[1' }, 'x')).toEqual([])
    expect(readField(real(1), { x: 'NaN' }, 'x')).toBe(1)
    expect(readField(wholes(), { x: '1,-2,x' }, 'x')).toEqual([1])
  })
})
