/** The sums that need no weights, so that a page on disk can write them out too. */

import { tolerance } from './rounding'
import { UserError } from './source'
import type { At, Expression, Explanation, ModelInfo, StackInfo, TraceInfo, Vector } from './types'

type Read = (name: string, at: At) => number[]

/** How a value's name ends -> its rule. */
type Rule = (site: Site, at: number[]) => Expression | null

class Site {
  readonly prefix: string
  constructor(
    readonly info: TraceInfo,
    readonly stack: StackInfo | null,
    readonly name: string,
    readonly read: Read,
  ) {
    this.prefix = name.replace(/[^.]*$/, '')
  }

  has(name: string): boolean {
    return this.info.values.some((value) => value.name === name)
  }

  shape(name: string): number[] {
    return this.info.values.find((value) => value.name === name)!.shape
  }

  /** A value beside this one. */
  beside(name: string): string {
    return this.prefix + name
  }

  number(of: string, at: number[]): Expression {
    return { op: 'number', value: this.read(of, at)[0]!, of, at }
  }

  vector(of: string, at: At): Vector {
    return { op: 'vector', values: this.read(of, at), of, at }
  }

  /** The residual stream that a block's `_add` adds to, or that a norm reads: the latest one computed before it. */
  before(names: RegExp): string | null {
    const index = this.info.values.findIndex((value) => value.name === this.name)
    const found = this.info.values.slice(0, index).filter((value) => names.test(value.name))
    return found.at(-1)?.name ?? null
  }
}

const constant = (value: number): Expression => ({ op: 'number', value, of: null, at: null })

const minus = (e: Expression): Expression => ({ op: 'product', factors: [constant(-1), e] })

function same(site: Site, of: string | null, at: number[]): Expression | null {
  return of !== null && site.has(of) ? site.number(of, at) : null
}

const scores: Rule = (site, at) => {
  if (at.length !== 4) return null
  const [b, h, t, s] = at as [number, number, number, number]
  const turned = site.has(site.beside('rotated_queries')) ? 'rotated_' : ''
  const [q, k] = [site.beside(`${turned}queries`), site.beside(`${turned}keys`)]
  const g = Math.floor((h * site.shape(k)[1]!) / site.shape(q)[1]!)
  return { op: 'dot', a: site.vector(q, [b, h, t, null]), b: site.vector(k, [b, g, s, null]) }
}

const scaled: Rule = (site, at) => {
  const score = site.number(site.beside('scores'), at)
  if (site.stack?.scaled_scores === false) return score
  const width = site.shape(site.beside('queries')).at(-1)!
  return { op: 'quotient', over: score, under: { op: 'call', function: 'sqrt', x: constant(width) } }
}

const masked: Rule = (site, at) => {
  const before = site.beside(site.has(site.beside('scaled_scores')) ? 'scaled_scores' : 'scores')
  const terms = [site.number(before, at)]
  const bias = site.prefix.includes('.self_attention.') ? `${site.name.split('.')[0]}.relative_bias.output` : ''
  if (site.has(bias)) terms.push(site.number(bias, [0, ...at.slice(1)]))
  if (site.read(site.name, at)[0] === -Infinity) terms.push({ op: 'number', value: '-inf', of: null, at: null })
  return terms.length === 1 ? terms[0]! : { op: 'sum', terms }
}

const softmaxOf =
  (name: string): Rule =>
  (site, at) => ({
    op: 'softmax',
    scores: site.vector(site.beside(name), [...at.slice(0, -1), null]),
    place: at.at(-1)!,
  })

const heads: Rule = (site, at) => {
  const [b, h, t, k] = at as [number, number, number, number]
  const v = site.beside('values')
  const g = Math.floor((h * site.shape(v)[1]!) / site.shape(site.name)[1]!)
  return {
    op: 'dot',
    a: site.vector(site.beside('weights'), [b, h, t, null]),
    b: site.vector(v, [b, g, null, k]),
  }
}

const concatenated: Rule = (site, at) => {
  const [b, t, e] = at as [number, number, number]
  const width = site.shape(site.beside('heads'))[3]!
  return site.number(site.beside('heads'), [b, Math.floor(e / width), t, e % width])
}

/** Bahdanau's and Luong's context: weights over the encoder's states. */
const context: Rule = (site, at) => {
  if (!/^decoder\.attention\.output$/.test(site.name) || !site.has('encoder.output')) return null
  const [b, t, e] = at as [number, number, number]
  return {
    op: 'dot',
    a: site.vector(site.beside('weights'), [b, t, null]),
    b: site.vector('encoder.output', [b, null, e]),
  }
}

const add: Rule = (site, at) => {
  const sublayer = site.name.slice(0, -'_add'.length)
  const block = site.prefix.replaceAll('.', '\\.')
  const post = site.stack?.norm_place !== 'pre'
  const stream = site.before(new RegExp(`^${block}(input|\\w+_${post ? 'norm\\.output' : 'add'})$`))
  if (stream === null) return null
  return { op: 'sum', terms: [site.number(stream, at), site.number(`${sublayer}.output`, at)] }
}

/** What a norm reads, if it is tapped. */
function normed(site: Site): string | null {
  const norm = site.prefix.slice(0, -1)
  if (norm.endsWith('.final_norm')) return site.before(/\.blocks\.\d+\.output$/)
  const place = /^(.*\.blocks\.\d+\.)(\w+)_norm$/.exec(norm)
  if (!place) return null
  if (site.stack?.norm_place !== 'pre') return `${place[1]}${place[2]}_add`
  return site.before(new RegExp(`^${place[1]!.replaceAll('.', '\\.')}(input|\\w+_add)$`))
}

const overWidth =
  (op: 'mean' | 'mean_square'): Rule =>
  (site, at) => {
    const x = normed(site)
    return x === null ? null : { op, x: site.vector(x, [...at.slice(0, -1), null]) }
  }

const variance: Rule = (site, at) => {
  const x = normed(site)
  if (x === null) return null
  return { op: 'variance', x: site.vector(x, [...at.slice(0, -1), null]), mean: site.number(site.beside('mean'), at) }
}

const normalized: Rule = (site, at) => {
  const x = normed(site)
  if (x === null) return null
  const epsilon = constant(site.stack?.norm_epsilon ?? 1e-5)
  const row = [...at.slice(0, -1), 0]
  const centred = site.has(site.beside('mean'))
  const spread = site.number(site.beside(centred ? 'variance' : 'mean_square'), row)
  const over: Expression = !centred
    ? site.number(x, at)
    : { op: 'sum', terms: [site.number(x, at), minus(site.number(site.beside('mean'), row))] }
  return {
    op: 'quotient',
    over,
    under: { op: 'call', function: 'sqrt', x: { op: 'sum', terms: [spread, epsilon] } },
  }
}

const activated: Rule = (site, at) => {
  const hidden = site.number(site.beside('hidden'), at)
  const gates = site.beside('gates')
  if (site.has(gates)) return { op: 'product', factors: [site.number(gates, at), hidden] }
  return { op: 'call', function: site.stack?.activation ?? 'relu', x: hidden }
}

/** States of recurrent layers: `hidden` of a GRU or an LSTM, `cell_state` of an LSTM, one step after the other. */
const state: Rule = (site, at) => {
  if (!/\.(layers|forwards|backwards)\.\d+\./.test(site.name)) return null
  const [b, t, d] = at as [number, number, number]
  const gate = (name: string): Expression => site.number(site.beside(name), at)
  if (site.name.endsWith('.hidden') && site.has(site.beside('cell_state'))) {
    const c: Expression = { op: 'call', function: 'tanh', x: gate('cell_state') }
    return { op: 'product', factors: [gate('output_gate'), c] }
  }
  const { shape, last_first } = site.info.values.find(({ name }) => name === site.name)!
  const bothWays = site.info.values.some(({ name }) => name.startsWith('encoder.backwards.'))
  // An encoder that reads one way may read from the end.
  if (last_first === undefined && site.prefix.startsWith('encoder.') && !bothWays) return null
  const from = (last_first ?? site.prefix.includes('.backwards.')) ? t + 1 : t - 1
  const isFirst = from < 0 || from >= shape[1]!
  // The first state is zeros, but a decoder's is made from the encoder's last one, by weights.
  if (isFirst && site.prefix.startsWith('decoder.') && site.info.tokens.source.length > 0) return null
  const before = isFirst ? constant(0) : site.number(site.name, [b, from, d])
  const both = (a: Expression, b: Expression): Expression => ({ op: 'product', factors: [a, b] })
  if (site.name.endsWith('.cell_state')) {
    return {
      op: 'sum',
      terms: [both(gate('forget_gate'), before), both(gate('input_gate'), gate('candidate'))],
    }
  }
  if (!site.has(site.beside('update_gate'))) return null
  const z = gate('update_gate')
  const rest: Expression = { op: 'sum', terms: [constant(1), minus(z)] }
  return { op: 'sum', terms: [both(rest, gate('candidate')), both(z, before)] }
}

/** The top layer's states, both directions side by side. */
const states: Rule = (site, at) => {
  const [b, t, e] = at as [number, number, number]
  const top = site.before(/^encoder\.forwards\.\d+\.hidden$/)
  if (top === null) return null
  const width = site.shape(top)[2]!
  return e < width
    ? site.number(top, at)
    : site.number(top.replace('forwards', 'backwards'), [b, t, e - width])
}

const embedding: Rule = (site, at) => {
  if (site.has(site.beside('norm.output'))) return same(site, site.beside('norm.output'), at)
  const parts = ['token_vectors', 'segment_vectors', 'position_vectors'].map((name) => site.beside(name))
  const terms = parts.filter((name) => site.has(name)).map((name) => site.number(name, at))
  if (site.has(site.beside('patch_vectors'))) {
    const [b, t, d] = at as [number, number, number]
    if (t === 0) return null // the class token is a weight
    terms.unshift(site.number(site.beside('patch_vectors'), [b, t - 1, d]))
  }
  return terms.length === 1 ? terms[0]! : { op: 'sum', terms }
}

const RULES: [RegExp, Rule][] = [
  [/\.scores$/, scores],
  [/\.scaled_scores$/, scaled],
  [/\.masked_scores$/, masked],
  [/\.weights$/, softmaxOf('masked_scores')],
  [/\.probabilities$/, softmaxOf('logits')],
  [/\.heads$/, heads],
  [/\.concatenated$/, concatenated],
  [/attention\.output$/, context],
  [/_add$/, add],
  [/norm\.mean$/, overWidth('mean')],
  [/norm\.mean_square$/, overWidth('mean_square')],
  [/norm\.variance$/, variance],
  [/norm\.normalized$/, normalized],
  [/\.activated$/, activated],
  [/\.(hidden|cell_state)$/, state],
  [/^encoder\.output$/, states],
  [/embedding\.output$/, embedding],
  [/\.blocks\.\d+\.input$/, (site, at) => same(site, site.before(/(blocks\.\d+|embedding)\.output$/), at)],
  [
    /\.blocks\.\d+\.output$/,
    (site, at) =>
      same(site, site.beside(site.stack?.norm_place === 'pre' ? 'feedforward_add' : 'feedforward_norm.output'), at),
  ],
]

export function explainOffline(
  info: TraceInfo,
  model: ModelInfo | null,
  name: string,
  at: number[],
  read: Read,
): Explanation {
  const value = info.values.find((value) => value.name === name)
  if (!value) throw new UserError(`There is no value called ${name} in this file.`)
  const side = name.startsWith('encoder.') ? 'encoder' : 'decoder'
  const site = new Site(info, model?.[side] ?? null, name, read)
  const rule = RULES.find(([ends]) => ends.test(name))
  const expression = rule?.[1](site, at) ?? null
  if (expression === null) throw new UserError('This sum needs weights, which are not in this file; open the studio to see it.')
  return { name, at, formula: value.formula, value: read(name, at)[0]!, tolerance: tolerance(expression, info.precision), expression }
}
