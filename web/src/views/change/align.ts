/** Two lists side by side: what both have in the same order, and what stands between. */

export interface Pair {
  /** Places in the first and the second list; null: it has none here. */
  a: number | null
  b: number | null
  same: boolean
}

/** By the longest common subsequence; what lies between two common items is paired one by one. */
export function align<T>(first: T[], second: T[], alike: (a: T, b: T) => boolean = (a, b) => a === b): Pair[] {
  const [n, m] = [first.length, second.length]
  const longest = new Uint16Array((n + 1) * (m + 1))
  for (let i = n - 1; i >= 0; i--) {
    for (let j = m - 1; j >= 0; j--) {
      longest[i * (m + 1) + j] = alike(first[i]!, second[j]!)
        ? longest[(i + 1) * (m + 1) + j + 1]! + 1
        : Math.max(longest[(i + 1) * (m + 1) + j]!, longest[i * (m + 1) + j + 1]!)
    }
  }
  const pairs: Pair[] = []
  const between = (a0: number, a1: number, b0: number, b1: number): void => {
    for (let k = 0; k < Math.max(a1 - a0, b1 - b0); k++) {
      pairs.push({ a: a0 + k < a1 ? a0 + k : null, b: b0 + k < b1 ? b0 + k : null, same: false })
    }
  }
  let [i, j, a0, b0] = [0, 0, 0, 0]
  while (i < n && j < m) {
    if (alike(first[i]!, second[j]!)) {
      between(a0, i, b0, j)
      pairs.push({ a: i, b: j, same: true })
      ;[i, j] = [i + 1, j + 1]
      ;[a0, b0] = [i, j]
    } else if (longest[(i + 1) * (m + 1) + j]! >= longest[i * (m + 1) + j + 1]!) i++
    else j++
  }
  between(a0, n, b0, m)
  return pairs
}

/** One stretch of a text; `other`: the other text has something else there. */
export interface Stretch {
  text: string
  other: boolean
}

/** Two texts word by word. */
export function differences(before: string, after: string): { before: Stretch[]; after: Stretch[] } {
  const [a, b] = [wordsOf(before), wordsOf(after)]
  return stretches(a, b, align(a, b, (x, y) => x.trim() === y.trim()))
}

export function stretches(a: string[], b: string[], pairs: Pair[]): { before: Stretch[]; after: Stretch[] } {
  const before: Stretch[] = []
  const after: Stretch[] = []
  for (const pair of pairs) {
    if (pair.a !== null) before.push({ text: a[pair.a]!, other: !pair.same })
    if (pair.b !== null) after.push({ text: b[pair.b]!, other: !pair.same })
  }
  return { before, after }
}

/** With the blanks before them; what ends in an apostrophe is a word: l' animal. */
function wordsOf(text: string): string[] {
  return text.match(/\s*(?:[^\s'’]+['’]*|['’]+)/g) ?? []
}
