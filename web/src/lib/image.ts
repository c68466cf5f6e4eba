/** Input images. An address holds only a short name; this tab keeps the image of that name. */

const KEY = 'cutaway-image-'

/** Keeps a file (base64) and returns its name in addresses. */
export function remember(base64: string): string {
  let hash = 0x811c9dc5
  for (let i = 0; i < base64.length; i++) hash = Math.imul(hash ^ base64.charCodeAt(i), 0x01000193)
  const name = (hash >>> 0).toString(36)
  held.set(name, base64)
  try {
    sessionStorage.setItem(KEY + name, base64)
  } catch {
    // too large to outlive a reload
  }
  return name
}

const held = new Map<string, string>()

export function remembers(name: string): boolean {
  return held.has(name) || stored(name) !== null
}

/** The image of that name, or the example. */
export function recall(name: string): string {
  return held.get(name) ?? stored(name) ?? example()
}

function stored(name: string): string | null {
  try {
    return sessionStorage.getItem(KEY + name)
  } catch {
    return null
  }
}

let drawn = ''

/** The example: a sun over a hill. */
function example(): string {
  if (drawn) return drawn
  const canvas = document.createElement('canvas')
  canvas.width = canvas.height = 224
  const pen = canvas.getContext('2d')!
  const sky = pen.createLinearGradient(0, 0, 0, 160)
  sky.addColorStop(0, '#3b7fc4')
  sky.addColorStop(1, '#f3d9b1')
  pen.fillStyle = sky
  pen.fillRect(0, 0, 224, 224)
  pen.fillStyle = '#f6b93b'
  pen.beginPath()
  pen.arc(156, 74, 30, 0, 7)
  pen.fill()
  pen.fillStyle = '#2f6b3a'
  pen.beginPath()
  pen.ellipse(80, 236, 190, 96, 0, 0, 7)
  pen.fill()
  pen.fillStyle = '#1d4726'
  pen.beginPath()
  pen.moveTo(70, 70)
  pen.lineTo(104, 150)
  pen.lineTo(36, 150)
  pen.fill()
  pen.fillStyle = '#5b3a1e'
  pen.fillRect(64, 150, 12, 20)
  drawn = canvas.toDataURL('image/png').split(',')[1]!
  return drawn
}

export function readFile(chosen: File): Promise<string> {
  return new Promise((done, failed) => {
    const reader = new FileReader()
    reader.onload = () => done(String(reader.result).split(',')[1] ?? '')
    reader.onerror = () => failed(reader.error ?? new Error('the file could not be read'))
    reader.readAsDataURL(chosen)
  })
}
