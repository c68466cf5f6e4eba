/** Examples and quiz as files. */

import type { Theme } from '../../lib/colour'
import { scaleOf } from '../../lib/colour'
import type { Exportable, Table } from '../../lib/export'
import { column, listPicture, matrixPicture, svg, textPicture } from '../../lib/svg'
import type { Note, Question, Worked } from '../../lib/types'
import { lineOf, MARKS, markOf, numberOf, rowsOf } from './figures'
import { isRight, type Answers } from './quiz'

export function exportedExample(worked: Worked, theme: Theme): Exportable {
  const title = `example ${worked.number}: ${worked.title}`
  return { title, table: () => sums(worked, title), svg: () => drawn(worked, title, theme) }
}

function sums(worked: Worked, title: string): Table {
  const rows = worked.steps.flatMap((step) =>
    rowsOf(step.value).flatMap((values, row) =>
      values.map((value, c) => [
        step.name, step.rows[row] ?? '', step.columns[c] ?? String(c + 1), numberOf(value), step.lines[lineOf(step, { row, column: c })]?.text ?? '',
      ]),
    ),
  )
  return { title, columns: ['step', 'row', 'column', 'value', 'sum'], rows }
}

function drawn(worked: Worked, title: string, theme: Theme): string {
  const steps = worked.steps.map((step) => {
    const rows = rowsOf(step.value).map((row) => row.map(numberOf))
    return matrixPicture(
      {
        values: rows.flat(), rows: rows.length, columns: rows[0]!.length, scale: scaleOf('', rows.flat()), title: `${step.name} = ${step.formula}`,
        rowLabels: step.rows.length > 0 ? step.rows : null, columnLabels: step.columns.length > 0 ? step.columns : null,
      },
      theme,
    )
  })
  return svg(column([textPicture(title, theme), ...steps]), theme)
}

export function exportedOverview(examples: Note[], theme: Theme): Exportable {
  const title = 'the lecture notes, recomputed'
  const wrong = (note: Note): string => note.differences.map((each) => `${each.where} ${each.printed} → ${each.true}`.trim()).join('; ')
  const rows = examples.map((note) => [note.number, note.topic, note.title, MARKS[markOf(note)].said, wrong(note)])
  const listed = (topic: string): string[] =>
    examples
      .filter((note) => note.topic === topic)
      .map((note) => [`${MARKS[markOf(note)].sign} ${note.number} ${note.title}`, wrong(note)].filter(Boolean).join(': '))
  const topics = [...new Set(examples.map(({ topic }) => topic))]
  const key = Object.values(MARKS).map(({ sign, said }) => `${sign} ${said}`).join(', ')
  return {
    title,
    svg: () =>
      svg(
        column([
          textPicture(title, theme, 18),
          ...topics.map((topic) => column([textPicture(topic, theme), listPicture(listed(topic), theme)], 4)),
          listPicture([key], theme),
        ]),
        theme,
      ),
    table: () => ({ title, columns: ['number', 'topic', 'title', 'verdict', 'printed → true'], rows }),
  }
}

/** Only answers that were asked for. */
export function exportedQuiz(questions: Question[], answers: Answers, checked: number[], theme: Theme): Exportable {
  const rows = questions.map((question) => {
    const open = checked.includes(question.number)
    const mine = (answers[question.number] ?? []).join(' ')
    return [question.number, question.text, mine, open ? question.answers.join(' ') : '', open ? (isRight(question, answers) ? 'right' : 'wrong') : '']
  })
  const asked = (question: Question): string[] => {
    const { number, text, options, answers: good, explanation } = question
    const [open, mine] = [checked.includes(number), answers[number] ?? []]
    const lines = Object.entries(options).map(([letter, option]) => {
      const verdict = open && good.includes(letter) ? ' ✓' : open && mine.includes(letter) ? ' ✗' : ''
      return `${mine.includes(letter) ? '☒' : '☐'} ${letter} ${option}${verdict}`
    })
    return [`${number}. ${text}`, ...lines, ...(open ? [explanation] : [])]
  }
  const drawn = (): string =>
    svg(column([textPicture('quiz', theme, 18), ...questions.map((each) => listPicture(asked(each), theme))]), theme)
  return { title: 'quiz', svg: drawn, table: () => ({ title: 'quiz', columns: ['number', 'question', 'answered', 'right answers', 'verdict'], rows }) }
}
