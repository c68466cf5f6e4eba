"""A trace as one page that needs nothing else: no server, no network. For files, exports and notebooks."""

import base64
import html
import json
from collections.abc import Mapping
from importlib import resources
from typing import TYPE_CHECKING, Any

from cutaway.checkpoints.weights import raw_bytes
from cutaway.errors import CutawayError, InputError
from cutaway.seeing.analysis import Side, logit_lens, rollout
from cutaway.seeing.described import describe
from cutaway.seeing.told import TOP, plain, told
from cutaway.seeing.trace import Trace

if TYPE_CHECKING:
    from cutaway.model import Model

ROOM = 8_000_000
"""Numbers that are put into a page, some 40 MB: of a long text, logits and other large values are left out."""
_SLOT = '<script type="application/json" id="cutaway-data">'


def page(trace: Trace, *, text: str | None = None, view: str = "", info: dict[str, Any] | None = None) -> str:
    """The page, with the trace in it. `view` is the address that it opens, such as `#/heads?layer=1`."""
    model = trace.model
    if model is None:
        raise InputError("this trace is of a bare network; trace a model to see it in a page: model.trace(text)")
    info = told(model, trace, "here", text) if info is None else {**info, "id": "here"}
    kept: dict[str, Any] = {"info": info | {"edits": info.get("edits", []), "seconds": info.get("seconds", 0.0)}}
    kept["values"] = {name: _bytes(trace, name) for name in _that_fit(trace)}
    for name, found in (("lens", lens), ("rollout", rolled)):
        try:
            kept[name] = found(model, trace)
        except CutawayError:  # not every model has them
            continue
    return filled({"models": [describe(model)], "traces": [kept], "address": view})


def filled(data: Mapping[str, Any]) -> str:
    """The page on disk, with its data."""
    before, slot, after = _template().partition(_SLOT)
    assert slot
    return before + slot + json.dumps(data, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c") + after


def framed(trace: Trace, height: int = 720) -> str:
    """The page in a frame of its own, as a notebook shows it; a list of the values where there is no model."""
    if trace.model is None or not _is_built():
        rows = "".join(
            f"<tr><td><code>{html.escape(name)}</code></td><td>{list(trace[name].shape)}</td>"
            f"<td>{html.escape(trace.formula(name))}</td></tr>"
            for name in trace
        )
        return f"<table><tr><th>value</th><th>shape</th><th>formula</th></tr>{rows}</table>"
    return (
        f'<iframe title="a trace" sandbox="allow-scripts" style="width:100%;height:{height}px;border:0" '
        f'srcdoc="{html.escape(page(trace), quote=True)}"></iframe>'
    )


def lens(model: "Model", trace: Trace) -> dict[str, Any]:
    """What each block would already say, as the page takes it."""
    return dict(plain(logit_lens(model, trace, top=TOP).to_json()))


def rolled(model: "Model", trace: Trace) -> dict[str, Any]:
    """Attention rollout of each stack, as the page takes it."""
    sides: tuple[tuple[str, Side], ...] = (("source", "encoder"), ("target", "decoder"))
    found = {side: rollout(trace, stack).to_json() for side, stack in sides if getattr(model.config, stack) is not None}
    return dict(plain(found))


def _that_fit(trace: Trace) -> list[str]:
    """The values for which there is room, the small ones first, in the order in which they were computed."""
    fits, taken = set(), 0
    for name in sorted(trace, key=lambda name: trace[name].numel()):
        taken += trace[name].numel()
        if taken > ROOM:
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
