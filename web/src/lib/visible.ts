/** Calls back once, when the element comes near the screen: numbers are fetched when they are about to be seen. */
export function whenVisible(then: () => void): (node: Element) => () => void {
  return (node) => {
    const observer = new IntersectionObserver(
      (entries) => {
        if (!entries.some((entry) => entry.isIntersecting)) return
        observer.disconnect()
        then()
      },
      { rootMargin: '300px' },
    )
    observer.observe(node)
    return () => observer.disconnect()
  }
}
