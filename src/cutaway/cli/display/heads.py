"""Attention of one text, drawn in a terminal: which heads look where, the strongest links, the sums behind a weight."""

import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import torch
from torch import Tensor

from cutaway.checks import parse_int
from cutaway.errors import InputError, unknown
from cutaway.seeing.attribution.head_scores import Kind, Sink, choosing, find_sink, score_heads
from cutaway.seeing.explain import Explanation
from cutaway.seeing.render import terminal
from cutaway.seeing.render.model_json import attentions
from cutaway.seeing.trace.trace import Trace

LINKS = 8
LINES = 100
"""Lines that the heads may take; of more heads, those are drawn that say most."""
MOST = 100
"""Queries and keys that are drawn."""


@dataclass(frozen=True)
class Shown:
    """Attention to draw: weights [heads, queries, keys] of a layer, their tokens, the sink of its stack."""

    name: str
    kind: Kind
    weights: Tensor
    rows: list[str]
    columns: list[str]
    sink: Sink | None

    @property
    def scores(self) -> list[float]:
        """How much each head says; see head_scores.py."""
        return list(score_heads(self.weights, self.kind).tolist())

    def links(self, heads: Sequence[int]) -> list[terminal.Link]:
        """The strongest of these heads, without queries that have no choice and without links to the sink."""
        found = terminal.strongest(
            self.weights[torch.tensor(heads)],
            LINKS,
            choosing(self.weights, self.kind),
            None if self.sink is None else self.sink.key,
        )
        return [replace(link, head=heads[link.head]) for link in found]


def choose_attention(trace: Trace, kind: Kind | None, layer: int | None) -> Shown | None:
    """The attention to draw: by default cross-attention if there is one, of the layer whose head says most."""
    assert trace.model is not None
    known = attentions(trace.model)
    kinds = list(dict.fromkeys(each["kind"] for each in known))
    if not known:
        return None
    if kind is not None and kind not in kinds:
        raise InputError(f"{trace.model.name} has no {kind} attention; it has {' and '.join(kinds)}")
    wanted: Kind = kind or ("cross" if "cross" in kinds else kinds[0])
    found = {each["block"]: str(each["name"]) for each in known if each["kind"] == wanted}
    if layer is not None and layer not in found:
        raise InputError(unknown(f"{wanted} layer", str(layer), map(str, found)))
    weights = {name: _weights(trace, name) for name in found.values()}
    if layer is not None:
        name = found[layer]
    else:
        name = max(weights, key=lambda name: float(score_heads(weights[name], wanted).max()))
    return Shown(name, wanted, weights[name], *_tokens(trace, name), find_sink(list(weights.values()), wanted))


def _weights(trace: Trace, attention: str) -> Tensor:
    """[heads, queries, keys]; a recurrent model's attention has one head."""
    weights = trace[f"{attention}.weights"][0].float().cpu()
    return weights if weights.dim() == 3 else weights.unsqueeze(0)


def _tokens(trace: Trace, attention: str) -> tuple[list[str], list[str]]:
    *_, rows, columns = trace.labels(f"{attention}.weights")
    assert rows is not None
    assert columns is not None
    return [_plain(token) for token in rows], [_plain(token) for token in columns]


def _plain(token: str) -> str:
    return " ".join(token.removeprefix("▁").split()) or "·"


def _written_text(trace: Trace) -> str | None:
    if trace.search is None or trace.model is None or trace.model.tokenizer is None:
        return None
    return trace.model.tokenizer.decode(trace.search.written[0].ids)


def drawing(trace: Trace, shown: Shown, head: int | None, width: int) -> list[str]:
    lines = [] if (written := _written_text(trace)) is None else [*textwrap.wrap(written, width), ""]
    title = f"{shown.name}.weights" + ("" if head is None else f", head {head}")
    if shown.name.startswith("decoder."):
        title += " (each row is a word that was read; it predicts the next word)"
    lines += [*textwrap.wrap(title, width), *_sink(shown, width)]
    heads, drawn = _heads(shown, head, width)
    lines += drawn
    links = [link for link in shown.links(heads) if link.weight >= 0.005]
    only = "no token has another to look at" if shown.sink is None else "every token looks at the sink alone"
    lines += ["", "strongest" if links else only]
    for link in links:
        lines.append(f"  {link.weight:.2f}  {shown.rows[link.query]} → {shown.columns[link.key]}  (head {link.head})")
    return lines


def _heads(shown: Shown, head: int | None, width: int) -> tuple[Sequence[int], list[str]]:
    """Which heads are drawn, and the drawing: the one asked for; else all for which there is room, those that say most
    first, or that one alone if no two fit beside each other."""
    rows, columns, n = shown.rows, shown.columns, len(shown.weights)
    scores = shown.scores
    by_score = sorted(range(n), key=lambda head: -scores[head])
    said: list[str] = []
    if max(len(rows), len(columns)) > MOST:
        said = [f"{len(rows)} × {len(columns)} weights a head are too many for a terminal: --html out.html shows them"]
        return (range(n) if head is None else [head]), textwrap.wrap(said[0], width)
    beside = terminal.per_line(rows, columns, width)
    if head is None and n > 1 and beside > 1:
        heads = sorted(by_score[: beside * max(1, LINES // (len(rows) + 3))])
        said += [f"{len(heads)} of {n} heads are drawn"] if len(heads) < n else []
        said += [f"head {by_score[0]} says most: --head {by_score[0]} draws it alone"] if max(scores) else []
        drawing = terminal.side_by_side(rows, columns, shown.weights, width, heads)
    else:
        if head is None and n > 1:
            said = [f"head {by_score[0]} of {n} is drawn, which says most: --head draws another"]
        heads = [by_score[0] if head is None else head]
        sink = None if shown.sink is None else shown.sink.key
        drawing = terminal.matrix(rows, columns, shown.weights[heads[0]], width=width, sink=sink)
    return heads, [*textwrap.wrap("; ".join(said), width), "", *drawing]


def _sink(shown: Shown, width: int) -> list[str]:
    """A sentence that names the attention sink, as lines of this width; no lines if there is no sink."""
    if shown.sink is None:
        return []
    sink, rows_T = shown.sink, choosing(shown.weights, shown.kind)
    share = float(shown.weights[:, rows_T, sink.key].mean())
    place = "the first token" if sink.key == 0 else f"token {sink.key}"
    said = (
        f"attention sink: {place}, {shown.columns[sink.key]}, gets most of the attention of {sink.heads} of {sink.of} "
        f"{shown.kind} heads, whatever they read, and {share:.0%} of it here; links to it are left out below"
    )
    return textwrap.wrap(said, width)


def explained(trace: Trace, shown: Shown, head: int | None, asked: str) -> list[Explanation]:
    """Each step to one weight; without a head, of the one that looks there most."""
    parts = asked.split(",")
    if len(parts) != 2:
        raise InputError(f"--explain {asked!r}: give a query and a key, as words or numbers: --explain 3,5")
    query, key = _place(parts[0], shown.rows, "query"), _place(parts[1], shown.columns, "key")
    if head is None:
        head = int(shown.weights[:, query, key].argmax())
    names = [f"{shown.name}.{value}" for value in ("scores", "scaled_scores", "masked_scores", "weights")]
    which = {"head": head} if "H" in trace.axes(names[-1]) else {}
    return [trace.explain(name, **which, query=query, key=key) for name in names if name in trace]


def _place(asked: str, tokens: Sequence[str], what: str) -> int:
    """The number of a token, or the first that is spelled so."""
    asked = asked.strip()
    if asked in tokens:
        return tokens.index(asked)
    if (number := parse_int(asked)) is not None and number < len(tokens):
        return number
    numbered = " ".join(f"{i}:{token}" for i, token in enumerate(tokens))
    raise InputError(f"there is no {what} {asked!r}; choose one of {numbered}")


def record(trace: Trace, name: str, text: str, shown: Shown, head: int | None) -> dict[str, object]:
    rows, columns = trace.labels(f"{shown.name}.weights")[-2:]
    chosen = range(len(shown.weights)) if head is None else [head]
    scores = shown.scores
    return {
        "model": name,
        "text": text,
        "written": _written_text(trace),
        "attention": shown.name,
        "queries": rows,
        "keys": columns,
        "sink": None if shown.sink is None else asdict(shown.sink),
        "heads": [{"head": each, "score": scores[each], "weights": shown.weights[each].tolist()} for each in chosen],
        "strongest": [asdict(link) for link in shown.links(chosen)],
    }
