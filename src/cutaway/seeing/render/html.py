"""A trace as one self-contained page, without server or network: for files, exports and notebooks."""

import base64
import html
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cutaway.checkpoints.weights import raw_bytes
from cutaway.errors import CutawayError, InputError
from cutaway.models.config import StackConfig
from cutaway.seeing.attribution.analysis import Side, logit_lens, rollout
from cutaway.seeing.attribution.head_scores import Kind, score_heads
from cutaway.seeing.render.model_json import attentions, model_to_json
from cutaway.seeing.render.serialize import TOP, json_safe, trace_to_json
from cutaway.seeing.trace.trace import Trace

if TYPE_CHECKING:
    from cutaway.model import Model

ROOM = 8_000_000
"""Numbers of a page at most, some 40 MB: of a long text, logits and other large values are left out."""
NOTEBOOK = 3_000_000
"""Bytes of a trace in a notebook, which keeps every output in its file."""
_SLOT = '<script type="application/json" id="cutaway-data">'


def page(trace: Trace, *, text: str | None = None, view: str = "", info: dict[str, Any] | None = None) -> str:
    """The page, with the trace in it. `view` is the address that it opens, such as `#/heads?layer=1`."""
    bare = _bare(trace, text, info)
    values = {name: _bytes(trace, name) for name in _fitting(trace)}
    found = {**_analysis(trace, "lens"), **_analysis(trace, "rollout")}
    return _joined(trace, {**bare, "values": values, **found}, view)


def write_page(trace: Trace, path: Path, *, text: str | None = None) -> Path:
    """The page as a file, whole or not at all."""
    content, aside = page(trace, text=text), path.with_name(f".{path.name}.new")
    try:
        aside.write_text(content, encoding="utf-8")
        aside.replace(path)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise InputError(f"can't write {path}: {error.strerror}") from None
    return path


def _bare(trace: Trace, text: str | None = None, info: dict[str, Any] | None = None) -> dict[str, Any]:
    """A trace for the page, without its values."""
    if trace.model is None:
        raise InputError("this trace is of a bare network; trace a model to see it in a page: model.trace(text)")
    info = trace_to_json(trace.model, trace, "here", text) if info is None else {**info, "id": "here"}
    return {"info": info | {"edits": info.get("edits", []), "seconds": info.get("seconds", 0.0)}}


def _analysis(trace: Trace, name: str) -> dict[str, Any]:
    """{name: its result} of the analysis "lens" or "rollout"; empty where the model has none."""
    assert trace.model is not None
    with suppress(CutawayError):
        return {name: (lens if name == "lens" else rolled)(trace.model, trace)}
    return {}


def _lens_size(trace: Trace) -> int:
    """About the bytes of a logit lens, before the seconds that one of a large model takes: a word and its probability
    have some 60."""
    assert trace.model is not None
    stack = trace.model.config.decoder or trace.model.config.encoder
    n_blocks = stack.n_blocks + 1 if isinstance(stack, StackConfig) else 0
    return n_blocks * len(trace.words.target or trace.words.source) * TOP * 60


def _joined(trace: Trace, kept: dict[str, Any], view: str = "") -> str:
    assert trace.model is not None
    return filled({"models": [model_to_json(trace.model)], "traces": [kept], "address": view})


def filled(data: Mapping[str, Any]) -> str:
    """The page on disk, with its data."""
    before, slot, after = _template().partition(_SLOT)
    assert slot
    return before + slot + _written(data) + after


def _written(data: Mapping[str, Any]) -> str:
    return json.dumps(data, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")


def framed(trace: Trace, height: int = 720, limit: int = NOTEBOOK) -> str:
    """The page in a frame, for a notebook: at most `limit` bytes.

    Values are put in while there is room; a note above the frame lists the others, and ways to see them. A trace
    without a model, or with more words than fit, is a list of its values.
    """
    if trace.model is None or not _is_built():
        return _listed(trace, limit)
    kept = {**_bare(trace), "values": {}}
    room = limit - len(_frame(_joined(trace, kept), height).encode()) - _NOTE_BYTES
    if room < 0:
        return _listed(trace, limit)
    left_out = []
    for name, title in (("lens", "the logit lens"), ("rollout", "attention rollout")):
        most = room // 4  # values have priority
        too_large = name == "lens" and _lens_size(trace) > most
        found = {} if too_large else _analysis(trace, name)
        size = len(_quoted(_written(found)).encode())
        if too_large or size > most:
            left_out.append(title)
        else:
            kept |= found
            room -= size
    fits, view = _for_notebook(trace, room)
    kept["values"] = {name: _bytes(trace, name) for name in trace if name in fits}
    names = sorted((name for name in trace if name not in fits), key=lambda name: -trace[name].numel())
    return _note(trace, names, left_out) + _frame(_joined(trace, kept, view), height)


def _for_notebook(trace: Trace, room: int) -> tuple[set[str], str]:
    """The values for `room` bytes, and the view to open with them ("": the usual one).

    Where not all fit, half of the room is for attention: of the layers whose heads score highest, as many as fit; the
    rest is for all values, the small ones first. If no output of a block is among them, the heads are shown first.
    """

    def size(name: str) -> int:
        return 4 * ((4 * trace[name].numel() + 2) // 3) + len(name) + 6  # base64, quotes and commas

    fits = set(_fitting(trace, room, size))
    if len(fits) == len(trace) or trace.model is None:
        return fits, ""
    known = [each for each in attentions(trace.model) if f"{each['name']}.weights" in trace]
    scores = {each["name"]: _score(trace, each["name"], each["kind"]) for each in known}
    known.sort(key=lambda each: -scores[each["name"]])
    taken, first = set(), room // 2
    for each in known:
        name = f"{each['name']}.weights"
        if size(name) <= first:
            taken.add(name)
            first -= size(name)
    fits = taken | set(_fitting(trace, room - sum(map(size, taken)), lambda name: 0 if name in taken else size(name)))
    best = known[0] if known and f"{known[0]['name']}.weights" in fits else None
    if best is None or any(re.search(r"\.\d+\.output$", name) for name in fits):
        return fits, ""
    return fits, f"#/heads?kind={best['kind']}&layer={best['block']}"


def _score(trace: Trace, attention: str, kind: Kind) -> float:
    weights = trace[f"{attention}.weights"][0].cpu()
    return float(score_heads(weights if weights.dim() == 3 else weights.unsqueeze(0), kind).max())


_NOTE_BYTES = 20_000
"""Bytes for the note on values that are left out."""


def _frame(content: str, height: int) -> str:
    return (
        f'<iframe title="a trace" sandbox="allow-scripts" style="width:100%;height:{height}px;border:0" '
        f"srcdoc='{_quoted(content)}'></iframe>"
    )


def _quoted(content: str) -> str:
    """For an attribute in single quotes: only & and ' need another spelling there, and JSON has neither often."""
    return content.replace("&", "&amp;").replace("'", "&#39;")


def _note(trace: Trace, names: list[str], others: list[str]) -> str:
    """A note on the values that a notebook does not get, by patterns, the largest first, and on ways to get them."""
    if not names and not others:
        return ""
    patterns = Counter(re.sub(r"\.\d+\.", ".*.", name) for name in names)
    listed = [name if n == 1 else f"{name} ({n})" for name, n in patterns.items()]
    which = ", ".join(listed[:4]) + (f" and {len(listed) - 4} other kinds" if len(listed) > 4 else "")
    note = (
        f"To keep the notebook small, {len(names)} of {len(trace)} values are left out, the largest first: {which}"
        f"{''.join(f'; and {other}' for other in others)}. "
        "trace[name] has each of them; trace.to_html('trace.html') and cutaway see --html write a page with up to "
        "40 MB of values; a trace that keeps less, as model.trace(text, keep='*.weights'), has more of it here."
    )
    more = f"<details><summary>all of them</summary>{html.escape(', '.join(listed)[: _NOTE_BYTES // 2])}</details>"
    return f'<p style="margin:0 0 4px">{html.escape(note)}</p>{more if len(listed) > 4 else ""}'


def _listed(trace: Trace, limit: int) -> str:
    """A table of the values' names, shapes and formulas, as many as there is room for."""
    head, room, rows = "<tr><th>value</th><th>shape</th><th>formula</th></tr>", limit - _NOTE_BYTES, []
    for name in trace:
        row = (
            f"<tr><td><code>{html.escape(name)}</code></td><td>{list(trace[name].shape)}</td>"
            f"<td>{html.escape(trace.formula(name))}</td></tr>"
        )
        room -= len(row.encode())
        if room < 0:
            break
        rows.append(row)
    rest = f"<p>and {len(trace) - len(rows)} more</p>" if len(rows) < len(trace) else ""
    return f"<table>{head}{''.join(rows)}</table>{rest}"


def lens(model: "Model", trace: Trace) -> dict[str, Any]:
    """The logit lens, as the page takes it."""
    return dict(json_safe(logit_lens(model, trace, top=TOP).to_json()))


def rolled(model: "Model", trace: Trace) -> dict[str, Any]:
    """Attention rollout of each stack, as the page takes it."""
    sides: tuple[tuple[str, Side], ...] = (("source", "encoder"), ("target", "decoder"))
    found = {side: rollout(trace, stack).to_json() for side, stack in sides if getattr(model.config, stack) is not None}
    return dict(json_safe(found))


def _fitting(trace: Trace, room: int = ROOM, size: Callable[[str], int] | None = None) -> list[str]:
    """The values for which there is room, the small ones first, in the order in which they were computed."""
    size = size or (lambda name: trace[name].numel())
    fits, taken = set(), 0
    for name in sorted(trace, key=size):
        taken += size(name)
        if taken > room:
            break
        fits.add(name)
    return [name for name in trace if name in fits]


def _bytes(trace: Trace, name: str) -> str:
    value = trace[name].float().contiguous()
    return base64.b64encode(raw_bytes(value)).decode()


def _is_built() -> bool:
    return resources.files("cutaway.studio").joinpath("page", "offline.html").is_file()


def _template() -> str:
    if not _is_built():
        raise InputError("the page is not built; in the sources of cutaway: make web")
    return resources.files("cutaway.studio").joinpath("page", "offline.html").read_text(encoding="utf-8")
