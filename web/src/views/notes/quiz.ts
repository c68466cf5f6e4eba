/** Answers to the quiz, and how they stand in an address: "1ABC.2C". */

import type { Field } from '../../lib/address'
import type { Question } from '../../lib/types'

export type Answers = Record<number, string[]>

export const answersField: Field<Answers> = {
  absent: {},
  read: (said) => {
    const found: Answers = {}
    for (const [, number, letters] of said.matchAll(/(\d{1,3})([A-Z]+)/g)) found[Number(number)] = [...letters!].sort()
    return found
  },
  write: (answers) =>
    Object.entries(answers)
      .filter(([, letters]) => letters.length > 0)
      .map(([number, letters]) => number + letters.join(''))
      .join('.'),
}

/** One letter more or less; where one answer is right, another in its place. */
export function chosen({ number, answers: right }: Question, answers: Answers, letter: string): Answers {
  const now = answers[number] ?? []
  const one = right.length === 1
  const next = one ? [letter] : now.includes(letter) ? now.filter((each) => each !== letter) : [...now, letter].sort()
  return { ...answers, [number]: next }
}

export function isRight({ number, answers: right }: Question, answers: Answers): boolean {
  return [...right].sort().join('') === (answers[number] ?? []).join('')
}
