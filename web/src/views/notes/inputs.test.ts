import { expect, it } from 'vitest'
import type { NoteInputs, Question } from '../../lib/types'
import { edited, tablesOf, withInput } from './inputs'
import { isLit, origins } from './origins'
import { answersField, chosen, isRight } from './quiz'

const inputs: NoteInputs = {
  x: { The: [1, 0], CAT: [0, 1] }, weights: [[0.4, 0.6], [0.5, 0.5]], visible: [1, 0], causal: true, epsilon: 1e-5, tokens: { a: 4, pad: 0 },
  vocabulary: ['a', 'am'],
}

it('shows inputs as tables', () => {
  const tables = new Map(tablesOf(inputs).map((table) => [table.name, table]))
  expect(tables.get('x')).toMatchObject({ rowLabels: ['The', 'CAT'], rows: [[1, 0], [0, 1]] })
  expect(tables.get('tokens')).toMatchObject({ columnLabels: ['a', 'pad'], rows: [[4, 0]] })
  expect(tables.get('weights')).toMatchObject({ rows: [[0.4, 0.6], [0.5, 0.5]] })
  expect(tables.get('epsilon')).toMatchObject({ rows: [[1e-5]] })
  expect(tables.get('causal')).toMatchObject({ value: true })
  expect(tables.get('vocabulary')).toMatchObject({ value: 'a, am' })
})

it('puts other numbers in their place, and leaves the old ones', () => {
  expect(withInput(inputs, 'x', 1, 0, 7)['x']).toEqual({ The: [1, 0], CAT: [7, 1] })
  expect(withInput(inputs, 'weights', 1, 1, 7)['weights']).toEqual([[0.4, 0.6], [0.5, 7]])
  expect(withInput(inputs, 'visible', 0, 1, 1)['visible']).toEqual([1, 1])
  expect(withInput(inputs, 'tokens', 0, 1, 9)['tokens']).toEqual({ a: 4, pad: 9 })
  expect(withInput(inputs, 'epsilon', 0, 0, 1)['epsilon']).toBe(1)
  expect(withInput(inputs, 'causal', 0, 0, false)['causal']).toBe(false)
  expect(inputs['x']).toEqual({ The: [1, 0], CAT: [0, 1] })
})

it('takes from an address only what fits', () => {
  const other = withInput(inputs, 'x', 0, 0, 2)
  expect(edited(inputs, JSON.stringify(other))).toEqual(other)
  expect(edited(inputs, JSON.stringify(inputs))).toBeNull()
  for (const said of ['', '{', 'null', '{"x": 1}', JSON.stringify({ ...inputs, x: { The: [1, 0] } })]) expect(edited(inputs, said)).toBeNull()
})

it('says where numbers come from', () => {
  const note = { compute: 'attention', inputs: { x: { q: [1] }, memory: { k1: [1], k2: [2] } } }
  const lit = origins(note, 'scores', { row: 0, column: 1 })
  expect(isLit(lit, 'step', 'keys', 1, 0)).toBe(true)
  expect(isLit(lit, 'step', 'keys', 0, 0)).toBe(false)
  expect(isLit(lit, 'input', 'memory', 1, 3)).toBe(true)
  const mixed = origins(note, 'heads', { row: 0, column: 2 })
  expect(isLit(mixed, 'step', 'values', 1, 2)).toBe(true)
  expect(isLit(mixed, 'step', 'values', 1, 1)).toBe(false)
  expect(origins({ compute: 'unheard of', inputs: {} }, 'x', { row: 0, column: 0 })).toEqual([])
})

it('keeps and judges answers', () => {
  const several = { number: 1, answers: ['A', 'B'] } as Question
  const one = { number: 2, answers: ['C'] } as Question
  let answers = chosen(several, chosen(several, {}, 'B'), 'A')
  expect(isRight(several, answers)).toBe(true)
  answers = chosen(one, chosen(one, answers, 'A'), 'C')
  expect(answersField.write(answers)).toBe('1AB.2C')
  expect(answersField.read('1AB.2C')).toEqual(answers)
  expect(isRight(one, answers)).toBe(true)
  expect(isRight(several, chosen(several, answers, 'D'))).toBe(false)
  expect(isRight(one, {})).toBe(false)
})
