/** The studio's token: it comes once, in the address that the studio opens, and is kept where only this origin reads it. */

const NAME = 'cutaway-token'

/** The address without its token, and the token; null if there is none in it. */
export function split(search: string): { rest: string; token: string | null } {
  const query = new URLSearchParams(search)
  const token = query.get('token')
  query.delete('token')
  const rest = query.toString()
  return { rest: rest ? `?${rest}` : '', token }
}

/** Takes the token out of the address, so that no link carries it. "" if none was ever given. */
export function token(): string {
  const given = split(location.search)
  try {
    if (given.token) localStorage.setItem(NAME, given.token)
    return given.token ?? localStorage.getItem(NAME) ?? ''
  } catch {
    return given.token ?? '' // a browser that keeps nothing: until the page is reloaded
  } finally {
    if (given.token) history.replaceState(null, '', location.pathname + given.rest + location.hash)
  }
}
