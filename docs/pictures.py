"""Takes the pictures of docs/studio.md: `python -m docs.pictures`."""

import json
from pathlib import Path
from urllib.parse import urlencode

from playwright.sync_api import Page, sync_playwright

import cutaway
from tests.support import chromium
from tests.support.studio_server import serving

SENTENCE = "The animal didn't cross the street because it was too tired."
FOLDER = Path(__file__).parent / "studio"
VIEWS = {
    "run": {"cell": "decoder.blocks.1.cross_attention.weights@0,2,11,9", "place": "11"},
    "block": {"open": "decoder.blocks.0", "head": "3"},
    "heads": {"kind": "cross", "layer": "1", "level": "word"},
    "words": {},
    "change": {"edits": json.dumps([{"kind": "off", "what": "positions", "where": "encoder"}])},
    "notes": {"example": "13"},
}


def take(page: Page, address: str, view: str, fields: dict[str, str]) -> None:
    page.goto(
        f"{address}/#/{'run' if view == 'block' else view}?{urlencode({'model': 'en-fr', 'text': SENTENCE, **fields})}"
    )
    page.wait_for_load_state("networkidle")
    if view == "block":
        stage = page.locator('[data-stage="decoder.blocks.0.self_attention.weights"]')
        stage.scroll_into_view_if_needed()
        page.wait_for_timeout(1000)  # its numbers come when it is in view
        stage.locator("[role=application]").focus()
        for key in (*["ArrowDown"] * 6, *["ArrowRight"] * 4, "Enter"):
            page.keyboard.press(key)
        page.locator("[data-agrees]").wait_for()
    if view == "words":
        page.get_by_role("heading", name="Beam search").scroll_into_view_if_needed()
        page.locator("[data-number]").first.wait_for()
        page.mouse.wheel(0, 420)
    page.wait_for_timeout(1500)
    page.screenshot(path=FOLDER / f"{view}.png")


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    with serving([cutaway.load("en-fr")]) as studio, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium.installed(), args=chromium.ARGUMENTS)
        for view, fields in VIEWS.items():
            viewport = {"width": 1280, "height": 1000 if view == "run" else 900}
            page = browser.new_page(viewport=viewport, storage_state=studio.storage)
            take(page, studio.address, view, fields)
            page.close()
        browser.close()


if __name__ == "__main__":
    main()
