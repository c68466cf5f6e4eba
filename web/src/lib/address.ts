/** Addresses: `#/run?model=en-fr&text=The+cat`. Reading and writing only; `router.svelte.ts` is where the page is. */

export interface Address {
  view: string
  query: Record<string, string>
}

export function parse(hash: string): Address {
  const [path = '', ...rest] = hash.replace(/^#?\/?/, '').split('?')
  const query = rest.join('?') // a text that was typed into the address may ask something
  return { view: path || 'run', query: Object.fromEntries(new URLSearchParams(query)) }
}

export function format({ view, query }: Address): string {
  const said = Object.entries(query).filter(([, value]) => value !== '')
  const search = new URLSearchParams(said).toString()
  // These mean nothing in a hash, and are easier to read as they are.
  const plain = search.replace(/%2C/g, ',').replace(/%3A/g, ':').replace(/%2F/g, '/')
  return `#/${view}${plain ? `?${plain}` : ''}`
}

/** How one field stands in an address. A value equal to `absent` is left out. */
export interface Field<V> {
  absent: V
  read(text: string): V
  write(value: V): string
}

export function text(absent = ''): Field<string> {
  return { absent, read: (said) => said, write: (value) => value }
}

export function whole(absent = 0): Field<number> {
  return {
    absent,
    read: (said) => (/^-?\d{1,9}$/.test(said) ? Number(said) : absent),
    write: String,
  }
}

export function real(absent = 0): Field<number> {
  return {
    absent,
    read: (said) => (said.trim() !== '' && Number.isFinite(Number(said)) ? Number(said) : absent),
    write: String,
  }
}

export function flag(absent = false): Field<boolean> {
  return { absent, read: (said) => said === 'yes', write: (value) => (value ? 'yes' : 'no') }
}

export function oneOf<const V extends string>(choices: readonly V[], absent: NoInfer<V>): Field<V> {
  return { absent, read: (said) => choices.find((choice) => choice === said) ?? absent, write: (value) => value }
}

/** Names without a comma: "encoder.blocks.0,decoder.blocks.2". */
export function names(absent: string[] = []): Field<string[]> {
  return { absent, read: (said) => said.split(',').filter((each) => each && each !== '-'), write: (value) => value.join(',') || '-' }
}

export function wholes(absent: number[] = []): Field<number[]> {
  return {
    absent,
    read: (said) => said.split(',').filter((each) => /^\d{1,9}$/.test(each)).map(Number),
    write: (value) => value.join(',') || '-',
  }
}

/** Anything small. */
export function json<V>(absent: V): Field<V> {
  return {
    absent,
    read: (said) => {
      try {
        return JSON.parse(said) as V
      } catch {
        return absent
      }
    },
    write: (value) => JSON.stringify(value),
  }
}

export function readField<V>(field: Field<V>, query: Record<string, string>, name: string): V {
  const said = query[name]
  return said === undefined ? field.absent : field.read(said)
}

export function writeField<V>(field: Field<V>, value: V): string {
  const said = field.write(value)
  return said === field.write(field.absent) ? '' : said
}
