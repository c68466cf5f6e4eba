"""How soon the studio's page is there, and how soon it answers a pointer: `python -m bench.page`.

First view: from asking for the page, in a fresh browser, to the picture of the whole path with the word. Hover: from a
move of the pointer to another cell of a matrix to its sum on the page, added up.
"""

import gzip
import statistics
import time

from playwright.sync_api import Browser, sync_playwright

import cutaway
from bench.report import Table, machine_facts
from cutaway.studio.server import PAGE
from tests.support import chromium
from tests.support.studio_server import Served, serving

SENTENCE = "The animal didn't cross the street because it was too tired."
STAGES = ("queries", "scores", "weights", "heads", "output")
HOVER = """
async (name) => {
  const stage = document.querySelector(`[data-stage="${name}"]`)
  const host = stage.querySelector('.host')
  const box = stage.querySelectorAll('canvas')[1].getBoundingClientRect()
  const key = () => {
    const sum = document.querySelector('.sum')
    return sum && sum.querySelector('[data-agrees]') ? sum.dataset.name + sum.dataset.at : null
  }
  const taken = []
  for (let i = 0; i < 21; i++) {
    const x = box.left + box.width * (0.4 + (0.55 * i) / 21)
    const y = box.top + box.height * (0.4 + (0.55 * ((i * 7) % 21)) / 21)
    const before = key()
    const begin = performance.now()
    host.dispatchEvent(new PointerEvent('pointermove', { bubbles: true, clientX: x, clientY: y, pointerType: 'mouse' }))
    const waits = () => (key() === before || key() === null) && performance.now() - begin < 2000
    while (waits()) await new Promise((r) => setTimeout(r, 0))
    taken.push(performance.now() - begin)
    await new Promise((r) => setTimeout(r, 50))
  }
  return taken.slice(1)
}
"""


def first_view(browser: Browser, served: Served) -> float:
    """Seconds."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    begin = time.perf_counter()
    page.goto(served.page)
    page.locator("main", has_text="fatigué").wait_for()
    page.locator("[data-part] canvas").first.wait_for()
    taken = time.perf_counter() - begin
    context.close()
    return taken


def hovers(browser: Browser, served: Served, name: str) -> list[float]:
    """Milliseconds."""
    page = browser.new_page(viewport={"width": 1280, "height": 900}, storage_state=served.storage)
    page.goto(f"{served.address}/#/run?open=decoder.blocks.0")
    page.locator(f'[data-stage="{name}"]').scroll_into_view_if_needed()
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(500)
    taken = page.evaluate(HOVER, name)
    page.close()
    return list(taken)


def main() -> None:
    for name, value in machine_facts().items():
        print(f"{name}: {value}")
    weight = sum(len(gzip.compress(path.read_bytes())) for path in (PAGE / "assets").glob("*.js"))
    with serving([cutaway.load("en-fr")]) as studio, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium.installed(), args=chromium.ARGUMENTS)
        first_view(browser, studio)
        views = [first_view(browser, studio) for _ in range(7)]
        rows = [
            ["JavaScript, gzipped, KB", f"{weight / 1000:.1f}", ""],
            ["first view, s", f"{statistics.median(views):.2f}", f"{max(views):.2f}"],
        ]
        for stage in STAGES:
            taken = hovers(browser, studio, f"decoder.blocks.0.cross_attention.{stage}")
            rows.append([f"hover, {stage}, ms", f"{statistics.median(taken):.0f}", f"{max(taken):.0f}"])
        browser.close()
    print("\n" + Table("The studio's page", ["what", "median", "worst"], rows).text())


if __name__ == "__main__":
    main()
