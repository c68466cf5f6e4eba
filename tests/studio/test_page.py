"""The studio's page in a real browser, as a person uses it: it shows the network's numbers, and asks nobody else."""

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import numpy as np
import pytest
from playwright.sync_api import Browser, Locator, Page, Route, expect, sync_playwright

from cutaway.model import Model
from cutaway.seeing.explain import explain_at
from cutaway.studio.trace_store import StoredTrace
from tests.support import chromium, commands
from tests.support.studio_models import SENTENCE, TEXTS
from tests.support.studio_server import Served, serving

AXE = Path(__file__).parents[2] / "web" / "node_modules" / "axe-core" / "axe.min.js"
SHORT = "The cat sat."
FIRST_BLOCK = {
    "en-fr": "encoder.blocks.0", "marian": "encoder.blocks.0", "t5": "decoder.blocks.1", "bert": "encoder.blocks.0",
    "gpt2": "decoder.blocks.0", "llama": "decoder.blocks.0", "vit": "encoder.blocks.0",
}  # fmt: skip
WAIT = 30_000
expect.set_options(timeout=WAIT)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    path = chromium.installed()
    assert path is not None, "the page is tested in Chromium, and there is none: python tests/support/chromium.py"
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=path, args=chromium.ARGUMENTS)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def all_models(models: dict[str, Model]) -> Iterator[Served]:
    """Of its own, so that other tests' traces do not push out ours."""
    with serving(list(models.values())) as studio:
        yield studio


class Visit:
    """A page that is open, and everything it asked for or complained about."""

    def __init__(self, browser: Browser, served: Served, width: int = 1280, **options: Any) -> None:
        self.served = served
        options = {"storage_state": served.storage} | options
        context = browser.new_context(viewport={"width": width, "height": 900}, accept_downloads=True, **options)
        context.set_default_timeout(WAIT)
        self.page: Page = context.new_page()
        self.problems: list[str] = []
        self.asked: list[str] = []
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("console", lambda said: self.problems.append(said.text) if said.type == "error" else None)
        self.page.on("request", lambda request: self.asked.append(request.url))

    def go(self, view: str, **fields: Any) -> Page:
        told = {name: value if isinstance(value, str) else json.dumps(value) for name, value in fields.items()}
        self.page.goto(f"{self.served.address}/#/{view}?{urlencode(told, quote_via=quote)}")
        return self.page

    @property
    def newest(self) -> StoredTrace:
        """The trace that was made or asked for last: nobody else visits this studio."""
        return next(reversed(self.served.studio.traces._kept.values()))[0]

    @property
    def edits(self) -> list[Any]:
        """Of every trace that is kept."""
        return [kept.info["edits"] for kept, _ in self.served.studio.traces._kept.values()]

    def value(self, name: str, *at: int) -> np.ndarray:
        """The network's own numbers."""
        return self.newest.trace[name].numpy()[at]


@pytest.fixture
def visit(browser: Browser, all_models: Served) -> Iterator[Visit]:
    visit = Visit(browser, all_models)
    yield visit
    visit.page.context.close()
    assert visit.problems == []
    assert {url.split("/")[2] for url in visit.asked if url.startswith("http")} <= {all_models.address.split("/")[2]}


def number(text: str) -> float:
    """As the page writes them: −0.1234, 1.5·10⁻⁹, −∞."""
    text = text.replace("−", "-").replace("∞", "inf")
    if "·10" in text:
        mantissa, power = text.split("·10")
        return float(mantissa) * 10 ** int(power.translate(str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")))
    return float(text)


def table(stage: Locator) -> np.ndarray:
    """The table behind a matrix."""
    details = stage.locator("details.table")
    details.evaluate("element => { element.open = true }")
    details.locator("tbody tr").first.wait_for()
    rows = details.locator("tbody").evaluate(
        "body => [...body.rows].map(row => [...row.querySelectorAll('td')].map(cell => cell.textContent))"
    )
    return np.array([[number(cell) for cell in row] for row in rows])


def rounded(shown: np.ndarray, true: np.ndarray) -> None:
    """To the four decimals that a table shows; numbers below half of the last in three figures."""
    assert shown.shape == true.shape
    infinite = np.isinf(true)
    assert np.array_equal(shown[infinite], true[infinite])
    assert np.allclose(shown[~infinite], true[~infinite], rtol=6e-3, atol=5.1e-5)


def run(visit: Visit, name: str, picture: bytes, view: str = "run", **fields: Any) -> Page:
    """A view with a model and its text, until the model has run."""
    if name == "vit":
        page = visit.go(view, model=name, **fields)
        file = {"name": "noise.png", "mimeType": "image/png", "buffer": picture}
        with page.expect_request(lambda asked: base64.b64encode(picture).decode() in (asked.post_data or "")) as asked:
            page.locator("input[type=file]").set_input_files(file)
        made = asked.value.response().json()["id"]
        page.locator(f'main[data-trace="{made}"]').wait_for()  # the example was looked at first
        return page
    target = {"target": "Le chat."} if name in ("t5", "marian", "bahdanau") else {}  # random weights never end a text
    return visit.go(view, model=name, text=SHORT if name == "en-fr" else TEXTS[name], **target, **fields)


# The token


def test_the_address_that_is_printed_opens_the_studio_for_this_browser(browser: Browser, all_models: Served) -> None:
    """And leaves no token in any address; a second tab has it too, and so has a link that was kept."""
    visit = Visit(browser, all_models, storage_state=None)
    page = visit.page
    page.goto(f"{all_models.page}#/run?model=gpt2&text=the+cat")
    page.locator("main[data-trace]").wait_for()
    assert page.url == f"{all_models.address}/#/run?model=gpt2&text=the+cat"
    page.reload()
    page.locator("main[data-trace]").wait_for()
    other = page.context.new_page()
    other.goto(f"{all_models.address}/#/run?model=gpt2&text=the")
    other.locator("main[data-trace]").wait_for()
    assert page.evaluate("document.cookie") == "", "which every port of this machine would be sent"
    assert visit.problems == []
    assert not [url for url in visit.asked if "token" in url][1:]
    page.context.close()


def test_without_the_token_the_page_says_where_it_is(browser: Browser, all_models: Served) -> None:
    for storage in (None, {**all_models.storage, "origins": [{"origin": all_models.address, "localStorage": [
        {"name": "cutaway-token", "value": "of-the-studio-before"}]}]}):  # fmt: skip
        visit = Visit(browser, all_models, storage_state=storage)
        page = visit.go("heads")
        expect(page.get_by_role("heading", name="This studio needs its token")).to_be_visible()
        expect(page.locator("main")).to_contain_text(f"{all_models.address}/?token=…")
        assert {"401" in problem for problem in visit.problems} == {True}, "the browser's own words, and no others"
        page.goto(all_models.page)
        page.locator("main[data-trace]").wait_for()
        page.context.close()


# Run


@pytest.mark.parametrize("name", list(FIRST_BLOCK))
def test_run_shows_the_networks_numbers(name: str, visit: Visit, picture: bytes) -> None:
    """A block opens in place; its matrices are the network's; a cell's sum is recomputed by the page."""
    block = FIRST_BLOCK[name]
    page = run(visit, name, picture, open=block)
    page.locator(f'[data-part="{block}"].open').wait_for()
    for value in ("queries", "scaled_scores", "masked_scores", "weights", "heads"):
        tap = f"{block}.self_attention.{value}"
        stage = page.locator(f'[data-stage="{tap}"]')
        stage.scroll_into_view_if_needed()
        rounded(table(stage), visit.value(tap, 0, 0))
    matrix = page.locator(f'[data-stage="{block}.self_attention.weights"] [role=application]')
    matrix.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    sum_ = page.locator(f'.sum[data-name="{block}.self_attention.weights"]')
    expect(sum_.locator("[data-agrees]")).to_have_attribute("data-agrees", "true")
    at = tuple(map(int, sum_.get_attribute("data-at").split(",")))
    shown = float(sum_.locator(".value").get_attribute("data-value"))
    assert shown == pytest.approx(float(visit.value(f"{block}.self_attention.weights", *at)), abs=1e-7)
    expect(sum_).to_contain_text("Recomputed here")
    explained = explain_at(visit.newest.trace, f"{block}.self_attention.weights", at)
    assert float(sum_.locator("[data-agrees]").get_attribute("data-tolerance")) == explained.tolerance


def test_run_shows_a_recurrent_model(visit: Visit, picture: bytes) -> None:
    page = run(visit, "bahdanau", picture, open="decoder.bridge,decoder.attention")
    for name, at in (("bridge.0.output", ()), ("attention.queries", (0,)), ("attention.weights", (0,))):
        stage = page.locator(f'[data-stage="decoder.{name}"]')
        stage.scroll_into_view_if_needed()
        rounded(table(stage), visit.value(f"decoder.{name}", *at))


def test_run_shows_the_path_and_the_word(visit: Visit) -> None:
    page = visit.go("run", model="en-fr", text=SENTENCE)
    expect(page.locator("main")).to_contain_text("fatigué")
    parts = page.locator("[data-part]").evaluate_all("all => all.map(each => each.dataset.part)")
    blocks = [part for part in parts if ".blocks." in part]
    assert blocks == [f"{side}.blocks.{i}" for side in ("encoder", "decoder") for i in range(3)]
    assert parts.index("encoder.embedding") < parts.index("encoder.blocks.0")
    assert parts[-1].startswith("head")


def test_run_writes_what_is_typed(visit: Visit) -> None:
    """Typing, Enter, back, forward, reload: the address holds it all."""
    page = visit.go("run", model="en-fr", text=SHORT)
    expect(page.locator("main")).to_contain_text("assis")
    page.locator("textarea").fill("I like bread.")
    page.locator("textarea").press("Enter")
    expect(page.locator("main")).to_contain_text("pain")
    assert "bread" in page.url
    page.get_by_role("button", name="Encoder block 1").click()
    page.locator('[data-part="encoder.blocks.1"].open').wait_for()
    page.reload()
    page.locator('[data-part="encoder.blocks.1"].open').wait_for()
    expect(page.locator("textarea")).to_have_value("I like bread.")
    page.go_back()
    expect(page.locator("textarea")).to_have_value(SHORT)


def test_an_encoder_reads_a_second_text(visit: Visit) -> None:
    page = visit.go("run", model="bert", text="the cat")
    page.locator("main[data-trace]").wait_for()
    page.get_by_label("A second text").fill("the dog")
    page.get_by_label("A second text").press("Enter")
    expect(page.get_by_label("Source tokens")).to_contain_text("dog")
    read = [token["text"].strip("▁") for token in visit.newest.info["tokens"]["source"]]
    assert read.count("[SEP]") == 2
    page.reload()
    expect(page.get_by_label("A second text")).to_have_value("the dog")
    page.get_by_label("A second text").fill("")
    page.get_by_label("A second text").press("Enter")
    expect(page.get_by_label("Source tokens")).not_to_contain_text("dog")
    page.reload()
    expect(page.get_by_label("A second text")).to_have_value("")


def test_an_emptied_text_is_no_text(visit: Visit) -> None:
    """Not the example, which stands there for who has typed nothing yet."""
    page = visit.go("run", model="en-fr")
    page.locator("main[data-trace]").wait_for()
    page.locator("textarea").fill("")
    page.locator("textarea").press("Enter")
    expect(page.locator("main")).to_contain_text("Enter a text for en-fr.")
    expect(page.locator("[data-part]")).to_have_count(0)
    expect(page.locator("textarea")).to_have_value("")


def test_what_the_studio_forgot_is_run_again(visit: Visit) -> None:
    page = visit.go("run", model="en-fr", text=SHORT)
    page.locator("main[data-trace]").wait_for()
    gone = page.locator("main").get_attribute("data-trace")
    visit.served.studio.traces._kept.clear()
    page.get_by_role("button", name="Run").click()
    page.locator(f'main[data-trace]:not([data-trace="{gone}"])').wait_for()
    visit.problems = [each for each in visit.problems if "404" not in each]  # Chromium's own line about the status


def test_a_word_of_the_vocabulary_is_called_by_its_name(visit: Visit) -> None:
    chat = visit.served.studio.models["en-fr"].tokenizer.encode_target("Le chat").ids[1]
    page = visit.go("run", model="en-fr", text=SHORT, cell=f"head.vocabulary.logits@0,1,{chat}")
    expect(page.locator(".sum .where")).to_have_text(f"token 1 (Le), word {chat} (chat)")


def test_what_can_not_be_run_is_a_sentence(visit: Visit) -> None:
    page = visit.go("run", model="en-fr", text=SHORT)
    page.locator("textarea").fill("word " * 400)
    page.locator("textarea").press("Enter")
    expect(page.get_by_role("alert").first).to_contain_text("at most 256")
    visit.problems = [each for each in visit.problems if "413" not in each]  # Chromium's own line about the status


def test_a_model_that_is_not_here_is_a_sentence(visit: Visit) -> None:
    page = visit.go("run", model="nope")
    first = next(iter(visit.served.studio.models))
    expect(page.get_by_role("alert")).to_have_text(f"No model “nope” in this studio; showing {first}.")
    page.get_by_label("Model").select_option("gpt2")
    expect(page.get_by_role("alert")).to_have_count(0)
    visit.go("run", model="vit", image="nope")
    expect(page.get_by_role("alert")).to_contain_text("choose it again")


def test_export(visit: Visit, tmp_path: Path) -> None:
    page = visit.go("run", model="en-fr", text=SHORT, open="encoder.blocks.0")
    page.locator('[data-stage="encoder.blocks.0.self_attention.weights"]').wait_for()
    begins = {"SVG": b"<svg", "PNG": b"\x89PNG", "CSV": b"", "LaTeX": b"\\begin", "HTML": b"<!doctype html>"}
    for kind, first in begins.items():
        page.get_by_role("button", name="Export").click()
        with page.expect_download() as caught:
            page.get_by_role("button", name=re.compile(kind)).click()
        path = tmp_path / caught.value.suggested_filename
        caught.value.save_as(path)
        content = path.read_bytes()
        assert len(content) > 100, kind
        assert first.lower() in content[:200].lower(), kind


def exported(page: Page, kind: str) -> bytes:
    page.get_by_role("button", name="Export").first.click()
    with page.expect_download() as caught:
        page.get_by_role("button", name=re.compile(kind)).click()
    return Path(caught.value.path()).read_bytes()


def test_words_so_far_are_exported(visit: Visit) -> None:
    page = visit.go("words", model="en-fr", text=SHORT)
    page.locator(".choices [data-id]").first.click()  # the page is of the text so far
    page.locator("[aria-labelledby=so-far] [data-id]").wait_for()
    assert exported(page, "SVG").startswith(b"<svg")
    assert exported(page, "HTML").lower().startswith(b"<!doctype html>")


@pytest.mark.parametrize("fields", [{}, {"quiz": "yes"}, {"example": "3"}])
def test_notes_are_exported(fields: dict[str, str], visit: Visit, browser: Browser, tmp_path: Path) -> None:
    """As they are now: a page with the numbers that somebody has typed, which opens without a network."""
    page = visit.go("notes", **fields)
    if "example" in fields:
        page.locator("article input").first.fill("0.75")
        page.get_by_role("button", name=re.compile("Back to the notes")).wait_for()
        expect(page.locator("article ol")).to_have_attribute("aria-busy", "false")
    assert exported(page, "SVG").startswith(b"<svg")
    (tmp_path / "notes.html").write_bytes(exported(page, "HTML"))
    shown = page.locator(".content").inner_text()
    offline = browser.new_context(offline=True, viewport={"width": 1280, "height": 900}).new_page()
    offline.goto((tmp_path / "notes.html").as_uri())
    expect(offline.locator(".content")).to_have_text(re.compile(re.escape(shown.split()[-1])))
    assert offline.locator(".content").inner_text() == shown
    offline.context.close()


# Heads

ATTENTION = {
    "en-fr": ("cross", "decoder.blocks.1.cross_attention", 1),
    "marian": ("encoder", "encoder.blocks.0.self_attention", 0),
    "t5": ("decoder", "decoder.blocks.1.self_attention", 1),
    "bert": ("encoder", "encoder.blocks.1.self_attention", 1),
    "gpt2": ("decoder", "decoder.blocks.0.self_attention", 0),
    "llama": ("decoder", "decoder.blocks.1.self_attention", 1),
    "vit": ("encoder", "encoder.blocks.0.self_attention", 0),
    "bahdanau": ("cross", "decoder.attention", 0),
}  # fmt: skip


@pytest.mark.parametrize("name", list(ATTENTION))
def test_heads_are_the_networks(name: str, visit: Visit, picture: bytes) -> None:
    """The strongest links that are listed are the strongest that there are; a matrix is the head's."""
    kind, attention, layer = ATTENTION[name]
    page = run(visit, name, picture, "heads", kind=kind, layer=str(layer), show="matrices")
    page.locator(f'[data-name="{attention}.weights"]').wait_for()
    weights = visit.value(f"{attention}.weights", 0)
    weights = weights if weights.ndim == 3 else weights[None]
    matrix = page.locator("figure[data-head='0']")
    matrix.scroll_into_view_if_needed()
    rounded(table(matrix), weights[0])
    first = page.locator("aside [data-weight]").first
    shown = float(first.get_attribute("data-weight"))
    at = tuple(int(first.get_attribute(f"data-{axis}")) for axis in ("head", "query", "key"))
    assert shown == pytest.approx(float(weights.max()), abs=1e-6) == pytest.approx(float(weights[at]), abs=1e-6)


def test_heads_can_be_soloed_and_explained(visit: Visit) -> None:
    page = visit.go("heads", model="en-fr", text=SHORT, kind="cross", layer="2")
    page.locator("[data-links]").first.wait_for()
    page.get_by_role("button", name="only head 4", exact=True).click()
    expect(page.locator("[data-heads]")).to_have_attribute("data-heads", "4")
    page.locator("aside [data-weight]").first.click()
    expect(page.locator("[data-agrees]")).to_have_attribute("data-agrees", "true")
    page.reload()
    expect(page.locator("[data-agrees]")).to_have_attribute("data-agrees", "true")
    expect(page.locator("[data-heads]")).to_have_attribute("data-heads", "4")
    page.get_by_role("button", name="Grid").click()
    expect(page.locator("[data-block][data-head]")).to_have_count(18)
    page.get_by_role("button", name="Lens").click()
    page.locator("[data-place][data-layer]").first.wait_for()
    last = page.locator("[data-place='1']").last
    assert float(last.get_attribute("data-p")) == pytest.approx(visit.newest.info["places"][1]["top"][0]["p"], rel=1e-3)


# Words


@pytest.mark.parametrize("name", ["en-fr", "marian", "t5", "gpt2", "llama", "bahdanau"])
def test_words_come_one_at_a_time(name: str, visit: Visit, picture: bytes) -> None:
    """The next word's probabilities are the network's; choosing one goes on from there."""
    page = run(visit, name, picture, "words")
    page.locator(".choices [data-id][data-p]").nth(3).wait_for()
    shown = page.get_by_label("Text", exact=True).input_value()
    prefix = {"t5": visit.served.studio.described[2]["prefixes"]["summarization"]}.get(name, "")
    body = {"model": name, "text": prefix + shown}
    told = visit.served.client.post("/api/next", json=body).json()
    chosen = next(each for each in told["plain"][1:] if each["id"] not in told["end"])
    choice = page.locator(f".choices [data-id='{chosen['id']}']")
    assert float(choice.get_attribute("data-p")) == pytest.approx(chosen["p"], rel=1e-4)
    choice.click()
    expect(page.locator(f"[aria-labelledby=so-far] [data-id='{chosen['id']}']").last).to_be_visible()
    again = visit.served.client.post("/api/next", json=body | {"prefix": [chosen["id"]]}).json()["plain"][0]
    best = page.locator(f".choices [data-id='{again['id']}']")
    expect(best).to_have_attribute("data-p", re.compile(re.escape(f"{again['p']:.6f}"[:5])))
    page.get_by_role("button", name="Take the likeliest").click()
    words = page.locator("[aria-labelledby=so-far] [data-id]")
    expect(words).to_have_count(2)
    assert int(words.last.get_attribute("data-id")) not in visit.served.studio.models[name].usage.never


def test_a_step_asked_for_too_soon_is_taken_when_it_can_be(visit: Visit, picture: bytes) -> None:
    """The words to choose from are still on their way when the button is pressed again."""
    page = run(visit, "gpt2", picture, "words")
    page.locator(".choices [data-id][data-p]").nth(3).wait_for()

    def late(route: Route) -> None:
        page.wait_for_timeout(300)
        route.continue_()

    page.route("**/api/next", late)
    button = page.get_by_role("button", name="Take the likeliest")
    button.click()
    button.click()
    expect(page.locator("[aria-labelledby=so-far] [data-id]")).to_have_count(2)
    page.unroute_all(behavior="wait")


def test_sliders_act_at_once(visit: Visit) -> None:
    page = visit.go("words", model="en-fr", text=SHORT, k="3")
    expect(page.locator("[data-left]")).to_have_attribute("data-left", "3")
    page.goto(page.url.replace("k=3", "k=1"))
    expect(page.locator("[data-left]")).to_have_attribute("data-left", "1")


def test_a_text_that_breaks_off_says_so(visit: Visit) -> None:
    """Infinities are shown, and an answer that can not be read is a sentence that stays."""
    first = {"id": 5, "text": "▁mot", "logprob": "-inf", "top": [{"id": 5, "text": "▁mot", "p": "nan"}]}
    body = f'event: token\ndata: {json.dumps(first)}\n\nevent: token\ndata: {{"logprob": NaN}}\n\n'
    page = visit.go("words", model="en-fr", text=SHORT)
    page.route("**/api/generate", lambda route: route.fulfill(content_type="text/event-stream", body=body))
    page.get_by_role("button", name="Continue").click()
    expect(page.locator("[aria-labelledby=so-far] [data-id='5']")).to_have_text("mot")
    page.wait_for_load_state("networkidle")
    expect(page.get_by_role("alert")).to_contain_text("not valid JSON")


def test_beam_search_is_drawn_as_a_tree(visit: Visit) -> None:
    page = visit.go("words", model="en-fr", text=SHORT)
    best = page.locator("[data-number][data-best=true]").first
    best.scroll_into_view_if_needed()
    nodes = page.locator("[data-number]").count()
    assert nodes > 20
    found = page.locator("[data-ids][data-score]").first
    assert "assis" in found.inner_text()


@pytest.mark.parametrize("name", ["bert", "vit"])
def test_models_that_do_not_write_say_what_their_head_says(name: str, visit: Visit, picture: bytes) -> None:
    page = run(visit, name, picture, "words")
    place = page.locator("[data-place][data-p]").first
    place.wait_for()
    likeliest = str(visit.newest.info["places"][0]["top"][0]["p"])  # of an image the example's may be shown a while
    expect(place).to_have_attribute("data-p", re.compile(re.escape(likeliest[:8])))


# Change


def test_change_puts_two_runs_side_by_side(visit: Visit) -> None:
    page = visit.go("change", model="en-fr", text=SHORT)
    expect(page.locator("[data-said=original]")).to_contain_text("assis")
    page.get_by_role("switch", name="Positions: on").click()
    expect(page.locator("li[data-edit]")).to_have_count(1)
    expect(page.locator(".results[aria-busy=false] [data-said=edited]")).to_contain_text("Le chat s'assit.")
    assert [{"kind": "off", "what": "positions"}] in visit.edits
    page.reload()
    expect(page.locator("[data-said=edited]")).to_contain_text("Le chat s'assit.")
    page.get_by_role("button", name="Undo all").click()
    expect(page.locator("li[data-edit]")).to_have_count(0)


def test_change_zeroes_a_head_and_sets_a_weight(visit: Visit, browser: Browser, tmp_path: Path) -> None:
    edits = [
        {"kind": "zero", "value": "decoder.blocks.2.cross_attention.heads", "head": 4},
        {"kind": "set", "value": "decoder.blocks.1.cross_attention.weights", "at": [0, 0, 1, 2], "to": 0.9,
         "renormalise": True},
    ]  # fmt: skip
    page = visit.go("change", model="en-fr", text=SHORT, edits=edits, write="same")
    expect(page.locator("li[data-edit]")).to_have_count(2)
    page.locator("tr[data-place][data-apart]").first.wait_for()
    assert not visit.value("decoder.blocks.2.cross_attention.heads", 0, 4).any()
    weights = visit.value("decoder.blocks.1.cross_attention.weights", 0, 0, 1)
    assert weights[2] == pytest.approx(0.9)
    assert weights.sum() == pytest.approx(1.0, abs=1e-5)
    (tmp_path / "changed.html").write_bytes(exported(page, "HTML"))
    page = browser.new_context(offline=True).new_page()
    place = "cell=decoder.blocks.1.cross_attention.weights@0,0,1,2"
    page.goto(f"{(tmp_path / 'changed.html').as_uri()}#/run?open=decoder.blocks.1&{place}")
    expect(page.locator("main")).to_contain_text("Head 4 is zero: decoder block 2, cross-attention.")
    expect(page.locator(".sum .check")).to_have_text(re.compile("An edit replaced this sum by 0.9000000"))
    page.context.close()


@pytest.mark.parametrize("name", ["bert", "gpt2", "vit", "bahdanau"])
def test_change_serves_every_family(name: str, visit: Visit, picture: bytes) -> None:
    value = {"bahdanau": "decoder.attention.output", "gpt2": "decoder.blocks.0.feedforward.output"}
    edits = [{"kind": "zero", "value": value.get(name, "encoder.blocks.0.feedforward.output")}]
    page = run(visit, name, picture, "change", edits=edits)
    page.locator("tr[data-place][data-apart], tr[data-id][data-before]").first.wait_for()
    assert edits in visit.edits


# Notes


def test_notes_follow_their_numbers(visit: Visit) -> None:
    page = visit.go("notes", example="3")
    cell = page.locator('[data-step="weights"] td[data-value]').first
    assert float(cell.get_attribute("data-value")) == pytest.approx(0.7310585786)
    expect(page.locator("[data-differs=true]").first).to_contain_text("0.75")
    page.get_by_label("k2, number 2").fill("2")
    expect(cell).to_have_attribute("data-value", re.compile(r"^0\.37754"))  # 6 and 7 over 2: 1 / (1 + √e)
    page.reload()
    expect(cell).to_have_attribute("data-value", re.compile(r"^0\.37754"))
    page.get_by_role("button", name=re.compile("Back to the notes")).click()
    expect(cell).to_have_attribute("data-value", re.compile(r"^0\.7310585"))


def test_the_quiz_tells_after_it_is_asked(visit: Visit) -> None:
    page = visit.go("notes", quiz="yes")
    question = page.locator("[data-question='1']")
    question.wait_for()
    expect(question).not_to_contain_text("learned weights")
    for box in question.get_by_role("checkbox").all()[:3]:
        box.check()
    page.get_by_role("button", name="Check question 1").click()
    expect(question).to_contain_text("learned weights")


# All views


VIEWS = ["run", "heads", "words", "change", "notes"]


@pytest.mark.parametrize(("width", "colours"), [(1280, "light"), (390, "dark")])
def test_no_serious_fault_for_those_who_do_not_see(
    width: int, colours: Any, browser: Browser, all_models: Served
) -> None:
    visit = Visit(browser, all_models, width, color_scheme=colours)
    fields = {"run": {"open": "decoder.blocks.0"}, "notes": {"example": "5"}}
    for view in VIEWS:
        page = visit.go(view, model="en-fr", text=SHORT, **fields.get(view, {}))
        page.locator("h1").wait_for(state="attached")
        page.wait_for_load_state("networkidle")
        page.evaluate(AXE.read_text(encoding="utf-8"))
        found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        serious = [
            f"{view}: {each['id']}: {each['nodes'][0]['html'][:200]}"
            for each in found["violations"]
            if each["impact"] in ("serious", "critical")
        ]
        assert serious == []
        overflow = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert overflow <= 0, f"{view} is wider than {width}"
    visit.page.context.close()
    assert visit.problems == []


def test_views_are_reached_by_keyboard(visit: Visit) -> None:
    page = visit.go("run", model="en-fr", text=SHORT)
    page.locator("[data-part]").first.wait_for()
    seen = []
    for _ in range(12):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.textContent.trim()"))
    for view in ("Heads", "Words", "Change", "Notes"):
        assert view in seen


# The page that carries its numbers


def test_a_file_from_disk_needs_no_network(browser: Browser, models: dict[str, Model], tmp_path: Path) -> None:
    """What `cutaway see --html` wrote."""
    path = tmp_path / "out.html"
    done = commands.run(["see", SENTENCE, "--html", str(path)])
    assert done.code == 0, done.err
    trace = models["en-fr"].trace(SENTENCE)
    context = browser.new_context(offline=True)
    page = context.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(path.as_uri() + "#/run?open=decoder.blocks.0")
    name = "decoder.blocks.0.cross_attention.weights"
    stage = page.locator(f'[data-stage="{name}"]')
    stage.scroll_into_view_if_needed()
    rounded(table(stage), trace[name][0, 0].numpy())
    matrix = stage.locator("[role=application]")
    matrix.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    sum_ = page.locator(f'.sum[data-name="{name}"]')
    check = sum_.locator("[data-agrees]")
    expect(check).to_have_attribute("data-agrees", "true")
    explained = explain_at(trace, name, tuple(map(int, sum_.get_attribute("data-at").split(","))))
    assert float(check.get_attribute("data-tolerance")) == pytest.approx(explained.tolerance, rel=1e-9)
    page.get_by_role("link", name="Heads").click()
    page.locator("[data-name]").first.wait_for()
    assert problems == []
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
    context.close()


def test_a_notebook_shows_a_trace(browser: Browser, models: dict[str, Model], tmp_path: Path) -> None:
    shown = models["gpt2"].trace("the cat")._repr_html_()
    (tmp_path / "notebook.html").write_text(f"<!doctype html><html><body>{shown}</body></html>", encoding="utf-8")
    page = browser.new_context(offline=True).new_page()
    page.goto((tmp_path / "notebook.html").as_uri())
    page.frame_locator("iframe").locator('[data-part="decoder.blocks.0"]').wait_for()
    page.context.close()


def test_a_notebook_shows_heads_where_there_is_little_room(
    browser: Browser, models: dict[str, Model], tmp_path: Path
) -> None:
    from cutaway.seeing.render.html import framed

    shown = framed(models["en-fr"].trace(SENTENCE), limit=600_000)
    (tmp_path / "notebook.html").write_text(f"<!doctype html><html><body>{shown}</body></html>", encoding="utf-8")
    page = browser.new_context(offline=True).new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto((tmp_path / "notebook.html").as_uri())
    expect(page.locator("p").first).to_contain_text("values are left out, the largest first")
    frame = page.frame_locator("iframe")
    expect(frame.get_by_role("link", name="Heads")).to_have_attribute("aria-current", "page")
    frame.locator("[data-name]").first.wait_for()
    assert problems == []
    page.context.close()


def test_weight_of_the_page() -> None:
    """JavaScript at most 180 KB, gzipped."""
    import gzip

    from cutaway.studio.server import PAGE

    total = sum(len(gzip.compress(path.read_bytes())) for path in (PAGE / "assets").glob("*.js"))
    assert 20_000 < total < 180_000
