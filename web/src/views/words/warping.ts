/** The settings of temperature, top-k, top-p and min-p: as a request, and in words. */

/** 0: off. */
export const TOP_K = [0, 100, 50, 20, 10, 8, 5, 4, 3, 2, 1]

export const topKSaid = (k: number): string => (k > 0 ? String(k) : 'off')

export interface Warping {
  temperature: number
  k: number
  p: number
  min: number
}

export function warping({ temperature, k, p, min }: Warping): {
  request: { temperature?: number; top_k?: number; top_p?: number; min_p?: number }
  /** Empty: nothing is changed. */
  said: string
} {
  const request = {
    ...(temperature !== 1 && temperature > 0 && { temperature: Math.min(100, temperature) }),
    ...(k > 0 && { top_k: k }),
    ...(p > 0 && p < 1 && { top_p: p }),
    ...(min > 0 && { min_p: Math.min(1, min) }),
  }
  const said = [
    request.temperature && `temperature ${request.temperature}`,
    request.top_k && `top-k ${request.top_k}`,
    request.top_p && `top-p ${request.top_p}`,
    request.min_p && `min-p ${request.min_p}`,
  ].filter(Boolean)
  return { request, said: said.join(', ') }
}
