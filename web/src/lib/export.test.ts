import { expect, it } from 'vitest'
import { csv, fileName, latex } from './export'
import { column, flow, matrixPicture, svg } from './svg'

const table = { title: '50% of "it"', columns: ['word', 'p'], rows: [['a,b', 0.5], ['l’été_1', -Infinity]] as (string | number)[][] }

it('writes CSV', () => {
  expect(csv(table)).toBe('word,p\r\n"a,b",0.5\r\nl’été_1,-Infinity\r\n')
})

it('writes LaTeX that compiles', () => {
  const written = latex(table)
  expect(written).toContain('\\caption{50\\% of "it"}')
  expect(written).toContain('\\begin{tabular}{lr}')
  expect(written).toContain('l’été\\_1 & $-\\infty$ \\\\')
})

it('draws SVG that is well formed', () => {
  const picture = matrixPicture(
    { values: [0, 0.5, 1, -Infinity], rows: 2, columns: 2, rowLabels: ['<s>', '&'], columnLabels: ['"a"', 'b'], scale: { kind: 'share' }, title: 'x' },
    'light',
  )
  const drawn = svg(column([picture, flow([picture, picture], 10)]), 'dark')
  expect(drawn.match(/<rect/g)).toHaveLength(13)
  expect(drawn).not.toMatch(/NaN|undefined/)
  expect(drawn).not.toContain('<s>')
})

it('names files', () => {
  expect(fileName('Où est-il ?', 'svg')).toBe('ou-est-il.svg')
  expect(fileName('日本', 'csv')).toBe('cutaway.csv')
})
