/** Beam search as a picture: steps from left to right, in each the candidates from the best to the worst. */

import { distinct } from '../../lib/tokens'
import type { Beams, Candidate } from '../../lib/types'

export type Fate = 'kept' | 'dropped' | 'ended'

export interface Node extends Candidate {
  step: number
  /** Among those of its step that are shown. */
  rank: number
  fate: Fate
  /** Its token as it is shown in its step. */
  label: string
  /** Of the whole text, with what the search began with. */
  ids: number[]
  /** The texts of its tokens, without what the search began with. */
  texts: string[]
  /** It is on the path to the best hypothesis. */
  best: boolean
}

export interface Tree {
  steps: Node[][]
  nodes: Node[]
  byNumber: Map<number, Node>
  /** The most candidates of a step. */
  ranks: number
}

/** One beam is greedy search, a chain: the server sends its tokens only. */
function chain({ texts }: Beams, prefix: number[]): Candidate[][] {
  let score = 0
  const tokens = texts[0]?.tokens ?? []
  for (const { logprob } of tokens.slice(0, prefix.length)) score += logprob
  return tokens.slice(prefix.length).map(({ id, text, logprob }, i) => {
    score += logprob
    return [
      { number: i, parent: i === 0 ? null : i - 1, token: { id, text }, logprob, score, kept: true, ended: false },
    ]
  })
}

export function treeOf(beams: Beams, prefix: number[], all = true): Tree {
  const byNumber = new Map<number, Node>()
  const steps = (beams.steps.length > 0 ? beams.steps : chain(beams, prefix)).map((candidates, step) => {
    const label = distinct(candidates.map(({ token }) => token.text))
    return candidates
      .map((candidate): Node => {
        const parent = candidate.parent === null ? undefined : byNumber.get(candidate.parent)
        const node: Node = {
          ...candidate,
          step,
          rank: 0,
          fate: candidate.ended ? 'ended' : candidate.kept ? 'kept' : 'dropped',
          label: label(candidate.token.text),
          ids: [...(parent?.ids ?? prefix), candidate.token.id],
          texts: [...(parent?.texts ?? []), candidate.token.text],
          best: false,
        }
        byNumber.set(node.number, node)
        return node
      })
      .filter(({ fate }) => all || fate !== 'dropped')
      .sort((a, b) => b.score - a.score || a.number - b.number)
      .map((node, rank) => Object.assign(node, { rank }))
  })
  emphasise(beams, [...byNumber.values()], byNumber)
  const nodes = steps.flat()
  return { steps, nodes, byNumber, ranks: Math.max(1, ...steps.map(({ length }) => length)) }
}

/** From the end of the best text back to where it began. */
function emphasise({ texts }: Beams, nodes: Node[], byNumber: Map<number, Node>): void {
  const ids = texts[0]?.ids.join() ?? ''
  const is = (found: number[]): boolean => found.join() === ids
  // A text that ended itself has its end as a last token, which is not among its ids.
  let node = nodes.find(({ ended, ids }) => ended && is(ids.slice(0, -1))) ?? nodes.findLast(({ ids }) => is(ids))
  for (; node; node = node.parent === null ? undefined : byNumber.get(node.parent)) node.best = true
}

/** Where an arrow key leads: left to the parent, right to the best that follows, up and down within a step. */
export function neighbour(tree: Tree, node: Node, key: string): Node | null {
  switch (key) {
    case 'ArrowLeft':
      return (node.parent === null ? undefined : tree.byNumber.get(node.parent)) ?? null
    case 'ArrowRight':
      return tree.steps[node.step + 1]?.find(({ parent }) => parent === node.number) ?? null
    case 'ArrowUp':
      return tree.steps[node.step]?.[node.rank - 1] ?? null
    case 'ArrowDown':
      return tree.steps[node.step]?.[node.rank + 1] ?? null
    default:
      return null
  }
}
