import { expect, it } from 'vitest'
import { cellAt, face, layout, litOn, moved, placeOf } from './grid'

const weights = { name: 'w', axes: 'BHTS', shape: [1, 6, 14, 12], formula: '' }

it('lays a value out as a matrix of its last two axes', () => {
  const shown = face(weights, 2)
  expect(shown).toEqual({ at: [0, 2, null, null], rowAxis: 2, columnAxis: 3, rows: 14, columns: 12 })
  expect(placeOf(shown, { row: 3, column: 5 })).toEqual([0, 2, 3, 5])
  expect(face({ ...weights, axes: 'BD', shape: [1, 24] }, 0)).toMatchObject({ at: [0, null], rowAxis: null, rows: 1, columns: 24 })
  // fewer key/value heads than heads
  expect(face({ ...weights, axes: 'BGSK', shape: [1, 2, 7, 6] }, 5).at).toEqual([0, 1, null, null])
})

it('lights the cells that are on this face', () => {
  const shown = face(weights, 2)
  const cells = [
    { of: 'w', at: [0, 2, 3, null] },
    { of: 'w', at: [0, 1, 3, null] },
    { of: 'v', at: [0, 2, 3, null] },
  ]
  expect(litOn('w', shown, cells)).toEqual([{ row: 3, column: null }])
})

it('finds the cell under the pointer', () => {
  const placed = layout({ rows: 3, columns: 4, room: 140, left: 40, top: 20, numbers: false, square: 25 })
  expect(placed.width).toBe(25)
  expect(cellAt(40, 20, placed, 3, 4)).toEqual({ row: 0, column: 0 })
  expect(cellAt(139, 94, placed, 3, 4)).toEqual({ row: 2, column: 3 })
  expect(cellAt(39, 20, placed, 3, 4)).toBeNull()
  expect(cellAt(60, 96, placed, 3, 4)).toBeNull()
})

it('walks with the arrow keys, and stops at the edges', () => {
  expect(moved({ row: 0, column: 0 }, 'ArrowRight', 3, 4)).toEqual({ row: 0, column: 1 })
  expect(moved({ row: 0, column: 0 }, 'ArrowUp', 3, 4)).toEqual({ row: 0, column: 0 })
  expect(moved({ row: 1, column: 1 }, 'End', 3, 4)).toEqual({ row: 1, column: 3 })
  expect(moved({ row: 1, column: 1 }, 'PageDown', 3, 4)).toEqual({ row: 2, column: 1 })
  expect(moved({ row: 1, column: 1 }, 'a', 3, 4)).toBeNull()
})
