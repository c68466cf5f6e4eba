/** Answers that are kept: up to `room` in all, the ones unused longest go first. */
export function lru<V>(room: number, size: (value: V) => number): (key: string, make: () => Promise<V>) => Promise<V> {
  const values = new Map<string, V>()
  let used = 0

  function keep(key: string, value: V): void {
    values.set(key, value)
    used += size(value)
    for (const [old, gone] of values) {
      if (used <= room || old === key) break
      values.delete(old)
      used -= size(gone)
    }
  }

  return async (key, make) => {
    const known = values.get(key)
    if (known !== undefined) {
      values.delete(key) // to the end: used last
      values.set(key, known)
      return known
    }
    const value = await make()
    if (!values.has(key)) keep(key, value)
    return value
  }
}
