"""Models, explanations and comparisons in a notebook: small tables in its own colours and fonts."""

from collections.abc import Iterable, Sequence
from dataclasses import fields
from html import escape
from typing import TYPE_CHECKING, Any

from cutaway.info.summary import size_rows
from cutaway.seeing.render.model_json import model_to_json

if TYPE_CHECKING:
    from cutaway.model import Model
    from cutaway.seeing.explain.explanation import Explanation
    from cutaway.seeing.interventions.compare import Comparison, Difference
    from cutaway.seeing.interventions.edits import Edit

ROWS = 100
"""Positions that a comparison shows; of more, those that differ most."""
LONGEST = 20_000
"""Letters that are shown of one text."""
_CELL = "text-align:left;vertical-align:top;padding:2px 12px 2px 0;white-space:pre-line"
_CODE = "font-family:monospace;white-space:pre-wrap;overflow-wrap:anywhere"
_BAR = "display:inline-block;height:0.7em;background:currentColor;opacity:0.45"


def model_html(model: "Model") -> str:
    """A model: its kind, sizes, tokenizer and tasks."""
    info = model_to_json(model)
    n = sum(weight.numel() for weight in model.network.parameters())
    dtypes = sorted({str(weight.dtype).removeprefix("torch.") for weight in model.network.parameters()})
    tokenizer = model.tokenizer
    labels = model.usage.labels
    rows = {
        "halves": info["family"],
        "head": (info["head"] or "none").replace("_", " "),
        "parameters": f"{n:,}, {' and '.join(dtypes)}",
        **size_rows(model.config),
        "tokenizer": "" if tokenizer is None else f"{tokenizer.kind}, {tokenizer.vocabulary_size:,} tokens",
        "labels": ", ".join(labels[:12]) + (f" and {len(labels) - 12} more" if len(labels) > 12 else ""),
        "folder": "" if model.folder is None else str(model.folder),
    }
    given = "image" if info["reads"] == "image" else "text"
    calls = [f"model.{task}({given})" for task in dict.fromkeys(map(_task, info["tasks"]))]
    calls += [f"model.trace({given})", f"model.run({given}, edits)"]
    table = _table((_cell(title, bold=True), _cell(text)) for title, text in rows.items() if text)
    return _framed(f"Model {model.name}", table, _line(", ".join(calls), _CODE))


def explanation_html(explanation: "Explanation") -> str:
    """The cell, the formula, the sum, and whether the network agrees."""
    cell, formula, text, verdict = explanation.lines
    return _framed(cell, _line(formula), _line(text, _CODE), _line(verdict, bold=not explanation.agrees))


def comparison_html(changed: "Comparison") -> str:
    """The edits, the two texts, and the differences at each position."""
    edits = ", ".join(map(edit_text, changed.edits)) or "none"
    parts = []
    if changed.before.text is not None:
        texts = (("before", changed.before.text), ("after", changed.after.text or ""))
        parts.append(_table((_cell(title, bold=True), _cell(text)) for title, text in texts))
    if changed.differences:
        parts += _differences(changed)
    elif changed.before.text is None:
        parts.append(_line("the output is a vector: .moved has the relative change of each value"))
    return _framed(f"Run with edits: {edits}", *parts)


def edit_text(edit: "Edit") -> str:
    """`zero decoder.blocks.2.cross_attention.heads, head 4`"""
    given = [(each.name, getattr(edit, each.name)) for each in fields(edit)]
    plain = [(name, value) for name, value in given if isinstance(value, str | int | float | tuple) and value != "*"]
    words = [str(value) if isinstance(value, str) else f"{name} {value}" for name, value in plain]
    return " ".join([edit.kind, ", ".join(words)]).strip()


def _differences(changed: "Comparison") -> list[str]:
    """A row a position: the token, the likeliest word of the first run, its probability in both, their divergence."""
    shown: Sequence[Difference] = changed.differences
    if len(shown) > ROWS:
        largest = sorted(shown, key=lambda each: -each.divergence)[:ROWS]
        shown = sorted(largest, key=lambda each: each.place)
    most = max(each.divergence for each in shown) or 1.0
    titles = [_cell(title, bold=True) for title in ("at", "likeliest before", "before", "after", "difference (nats)")]
    rows = [
        (
            _cell(each.label),
            _cell(each.text),
            _cell(f"{each.before:.4f}"),
            _cell(f"{each.after:.4f}"),
            _raw(f'<span style="{_BAR};width:{6 * each.divergence / most:.2f}em"></span> {each.divergence:.4f}'),
        )
        for each in shown
    ]
    n = len(changed.differences)
    left_out = [] if n == len(shown) else [_line(f"the {ROWS} places of {n} that differ most; .differences has all")]
    return [_table([titles, *rows]), *left_out]


def _task(name: str) -> str:
    """A model's task as a method: T5 has several ways to translate."""
    return {"summarization": "summarize"}.get(name, "translate" if name.startswith("translation") else name)


def _framed(title: str, *parts: str) -> str:
    heading = f'<div style="font-weight:bold;overflow-wrap:anywhere">{_text(title)}</div>'
    return f'<div style="line-height:1.4">{heading}{"".join(parts)}</div>'


def _line(text: str, style: str = "", *, bold: bool = False) -> str:
    return f'<div style="margin-top:4px;{style}{";font-weight:bold" * bold}">{_text(text)}</div>'


def _table(rows: Iterable[Iterable[str]]) -> str:
    lines = "".join(f'<tr style="background:none">{"".join(cells)}</tr>' for cells in rows)
    return f'<table style="border-collapse:collapse;margin:4px 0;color:inherit;font-size:inherit">{lines}</table>'


def _cell(text: str, *, bold: bool = False) -> str:
    return _raw(f"<b>{_text(text)}</b>" if bold else _text(text))


def _raw(content: Any) -> str:
    return f'<td style="{_CELL}">{content}</td>'


def _text(text: str) -> str:
    return escape(text if len(text) <= LONGEST else f"{text[:LONGEST]} …")
