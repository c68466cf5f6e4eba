/** How this view's choices stand in its address. */

import type { Field } from '../../lib/address'
import type { Focus } from './weights'

/** null: all of them. */
export const someHeads: Field<number[] | null> = {
  absent: null,
  read: (said) =>
    said === 'all'
      ? null
      : said
          .split(',')
          .filter((each) => /^\d{1,4}$/.test(each))
          .map(Number),
  write: (value) => (value === null ? 'all' : value.join(',') || '-'),
}

/** "q3": the fourth token as a query; "k3": as a key. */
export const aToken: Field<Focus | null> = {
  absent: null,
  read: (said) => {
    const found = /^([qk])(\d{1,6})$/.exec(said)
    return found ? { side: found[1] === 'q' ? 'query' : 'key', place: Number(found[2]) } : null
  },
  write: (value) => (value === null ? '' : `${value.side[0]!}${value.place}`),
}

/** A number, or what is usual. */
export const orUsual: Field<number | null> = {
  absent: null,
  read: (said) => {
    const number = Number(said)
    return said.trim() !== '' && Number.isFinite(number) ? Math.min(1, Math.max(0, number)) : null
  },
  write: (value) => (value === null ? '' : String(value)),
}
