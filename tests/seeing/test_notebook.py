"""What a notebook and the REPL show of what cutaway gives."""

import base64
import html
import json
import re
from pathlib import Path

import pytest
import torch

import cutaway
from cutaway.errors import InputError
from cutaway.model import Model
from cutaway.models.usage import Usage
from cutaway.seeing.render.html import NOTEBOOK, framed
from cutaway.seeing.trace.trace import Trace
from tests.support.families import FAMILIES, shrunk

LONG = "The cat sat on the mat because it was tired, and the dog looked at it for a while before it went home."


@pytest.fixture(scope="module")
def model() -> Model:
    return cutaway.load("en-fr")


@pytest.fixture(scope="module")
def trace(model: Model) -> Trace:
    return model.trace(LONG)


def data(shown: str) -> dict[str, object]:
    """What the page in a notebook's frame carries."""
    page = html.unescape(shown.partition("srcdoc='")[2].rpartition("'></iframe>")[0])
    found: dict[str, object] = json.loads(page.partition('id="cutaway-data">')[2].partition("</script>")[0])
    return found


def values(shown: str) -> dict[str, str]:
    traces = data(shown)["traces"]
    assert isinstance(traces, list)
    return dict(traces[0]["values"])


def test_a_trace_is_at_most_3_megabytes(trace: Trace) -> None:
    total = sum(trace[name].numel() for name in trace)
    assert 4 * total > NOTEBOOK, "it would not fit"
    shown = trace._repr_html_()
    assert NOTEBOOK - 300_000 < len(shown.encode()) <= NOTEBOOK
    kept = values(shown)
    left_out = [name for name in trace if name not in kept]
    assert f"{len(left_out)} of {len(trace)} values are left out, the largest first: head.vocabulary." in shown
    assert "trace.to_html(&#x27;trace.html&#x27;) and cutaway see --html write a page" in shown
    weights = {name for name in trace if name.endswith(".weights")}
    assert weights <= set(kept)
    largest = max(trace[name].numel() for name in kept)
    assert all(trace[name].numel() >= largest for name in left_out)
    name = "decoder.blocks.1.cross_attention.weights"
    numbers = torch.frombuffer(bytearray(base64.b64decode(kept[name])), dtype=torch.float32)
    assert torch.equal(numbers, trace[name].flatten())


def test_a_short_trace_is_whole(model: Model) -> None:
    trace = model.trace("The cat sat.", "Le chat.", keep="*cross_attention*")
    shown = trace._repr_html_()
    assert "left out" not in shown.partition("<iframe")[0]
    assert set(values(shown)) == set(trace)


def test_where_little_fits_the_heads_that_say_most_are_shown(trace: Trace) -> None:
    shown = framed(trace, limit=600_000)
    assert len(shown.encode()) <= 600_000
    address = str(data(shown)["address"])
    assert re.fullmatch(r"#/heads\?kind=cross&layer=[012]", address)
    assert f"decoder.blocks.{address[-1]}.cross_attention.weights" in values(shown)
    assert "attention rollout" in shown.partition("<iframe")[0] or "rollout" in str(data(shown))


def test_where_not_even_the_page_fits_values_are_listed(trace: Trace) -> None:
    shown = framed(trace, limit=30_000)
    assert len(shown.encode()) <= 30_000
    assert shown.startswith("<table>")
    assert re.search(r"and \d+ more", shown)


def test_a_trace_of_a_network_is_a_table() -> None:
    network = cutaway.build(shrunk("gpt2"))
    shown = cutaway.trace(network, torch.tensor([[1, 2, 3]]))._repr_html_()
    assert shown.startswith("<table>")
    assert "decoder.blocks.0.self_attention.weights" in shown


def test_a_trace_is_written_as_a_page(model: Model, tmp_path: Path) -> None:
    trace = model.trace("The cat sat.", "Le chat.")
    path = trace.to_html(tmp_path / "cat.html")
    assert "head.vocabulary.logits" in path.read_text(encoding="utf-8")
    assert [each.name for each in tmp_path.iterdir()] == ["cat.html"]
    with pytest.raises(InputError, match=r"can't write .*nowhere"):
        trace.to_html(tmp_path / "nowhere" / "cat.html")


@pytest.mark.parametrize("name", FAMILIES)
def test_every_model_shows_itself(name: str) -> None:
    model = Model(cutaway.build(shrunk(name)), name="<mine>", usage=Usage(labels=("<b>sad", "glad")))
    shown = model._repr_html_()
    assert "Model &lt;mine&gt;" in shown
    n = sum(weight.numel() for weight in model.network.parameters())
    assert f"{n:,}, float32" in shown
    assert ("<b>layers</b>" if model.config.kind == "recurrent" else "<b>feed-forward</b>") in shown
    assert "&lt;b&gt;sad, glad" in shown
    assert "<b>sad" not in shown
    self_contained(shown)
    assert repr(model) == f"Model('<mine>', {'-'.join(_halves(model))}, {n:,} parameters)"


def _halves(model: Model) -> list[str]:
    return [half for half in ("encoder", "decoder") if getattr(model.config, half) is not None]


def self_contained(shown: str) -> None:
    """Small, and takes nothing from elsewhere; colours are the notebook's own."""
    assert len(shown.encode()) < 100_000
    for part in ("<script", "<link", "http:", "https:", "src=", "@import", "#fff", "#000", "background:white"):
        assert part not in shown
    assert shown.count("<td") == shown.count("</td>")
    assert shown.count("<div") == shown.count("</div>")


def test_an_explanation_shows_itself(trace: Trace) -> None:
    found = trace.explain("decoder.blocks.2.cross_attention.weights", head=4, query=0, key=1)
    shown = found._repr_html_()
    self_contained(shown)
    assert "query 0 (&lt;s&gt;)" in shown
    assert "softmax(masked_scores) over the keys" in shown
    assert html.escape(found.text) in shown
    assert "the network has the same" in shown
    assert repr(found).startswith("Explanation(decoder.blocks.2.cross_attention.weights, head 4, query 0 (<s>)")
    assert repr(found).endswith("; the network has the same)")
    assert len(repr(found)) < 400
    assert "\n" not in repr(found)


def test_a_comparison_shows_itself(model: Model) -> None:
    changed = model.run("The cat sat.", "positions")
    shown = changed._repr_html_()
    self_contained(shown)
    assert "Run with edits: off positions" in shown
    for said in (changed.before, changed.after):
        assert said.text is not None
        assert html.escape(said.text) in shown
    assert shown.count("<tr") == 2 + 1 + len(changed.differences)
    assert f"{changed.differences[0].before:.4f}" in shown
    assert repr(changed).startswith('Comparison(off positions: "Le chat s\'est assis." → ')
    assert len(repr(changed)) < 400


def test_a_comparison_without_a_text_shows_its_places(model: Model) -> None:
    changed = model.run("The cat.", {"decoder.blocks.2.cross_attention.heads": 0}, target="Le <i>chat</i>.")
    shown = changed._repr_html_()
    self_contained(shown)
    assert "<i>" not in shown
    assert "before</b></td>" in shown  # the column
    assert "zero decoder.blocks.2.cross_attention.heads" in shown
    assert "places compared, at most" in repr(changed)


def test_a_long_comparison_shows_the_places_that_differ_most(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    from cutaway.seeing.render import notebook

    monkeypatch.setattr(notebook, "ROWS", 2)
    changed = model.run("The cat.", {"decoder.blocks.2.cross_attention.heads": 0}, target="Le chat est noir.")
    shown = changed._repr_html_()
    assert shown.count("<tr") == 1 + 2
    assert f"the 2 places of {len(changed.differences)} that differ most" in shown
    assert f"{max(each.divergence for each in changed.differences):.4f}" in shown


def test_a_vector_has_no_places() -> None:
    from cutaway.seeing.interventions.compare import Comparison, ModelOutput

    nothing = Trace({})
    changed = Comparison((), nothing, nothing, ModelOutput(None, ()), ModelOutput(None, ()), ())
    assert "the output is a vector" in changed._repr_html_()
    assert repr(changed) == "Comparison(no edits)"
