"""`cutaway see`: what a model looks at while it reads or writes one text."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from cutaway.cli.lines import ready
from cutaway.cli.options import Where
from cutaway.cli.writing import harmless
from cutaway.errors import InputError, unknown
from cutaway.seeing import drawn
from cutaway.seeing.described import attentions
from cutaway.seeing.explain import Explanation
from cutaway.seeing.trace import Trace

Kind = Literal["encoder", "decoder", "cross"]
LINKS = 8


def run(
    text: str,
    name: str,
    target: str | None,
    kind: Kind | None,
    layer: int | None,
    head: int | None,
    explain: str | None,
    html: Path | None,
    png: Path | None,
    where: Where,
    as_json: bool,
) -> None:
    for path, suffix in ((html, ".html"), (png, ".png")):
        if path is not None and path.suffix.lower() != suffix:
            raise InputError(f"{path} is to be written; give it a name that ends in {suffix}")
    model = ready(name, where)
    trace = model.trace(Path(text) if _is_image(model) else text, target)
    if html is not None:
        from cutaway.seeing.html import page

        _write(html, page(trace, text=text).encode())
    attention = _chosen(trace, kind, layer)
    if attention is None:
        if png is not None or explain is not None or as_json:
            raise InputError(f"{name} has no attention: there is nothing to draw")
        print(f"{name} has no attention: it remembers in its state. All values: cutaway studio, or --html out.html")
        return
    weights_HTS = _weights(trace, attention)
    if head is not None and head >= len(weights_HTS):
        raise InputError(f"{attention} has {len(weights_HTS)} heads, counted from 0; there is no head {head}")
    if png is not None:
        from cutaway.seeing import plots

        figure = plots.heads(trace, attention) if head is None else plots.head(trace, attention, head)
        plots.save(figure, png)
    rows, columns = _tokens(trace, attention)
    explained = None if explain is None else _explained(trace, attention, weights_HTS, head, explain, rows, columns)
    if as_json:
        data = _data(trace, name, text, attention, weights_HTS, head)
        if explained is not None:
            data["explained"] = [each.to_json() for each in explained]
        print(json.dumps(data, ensure_ascii=False))
    elif explained is not None:
        for each in explained:
            print(harmless(str(each)) + "\n")
    else:
        for line in _drawing(trace, attention, weights_HTS, head, rows, columns):
            print(harmless(line))


def _is_image(model: object) -> bool:
    from cutaway.model import Model
    from cutaway.tasks.able import sees

    assert isinstance(model, Model)
    return sees(model)


def _chosen(trace: Trace, kind: Kind | None, layer: int | None) -> str | None:
    """The attention that is asked for: of the kind that tells most, in the layer where it is sharpest."""
    assert trace.model is not None
    known = attentions(trace.model)
    kinds = list(dict.fromkeys(each["kind"] for each in known))
    if not known:
        return None
    if kind is not None and kind not in kinds:
        raise InputError(f"{trace.model.name} has no {kind} attention; it has {' and '.join(kinds)}")
    wanted = kind or ("cross" if "cross" in kinds else kinds[0])
    found = {each["block"]: each["name"] for each in known if each["kind"] == wanted}
    if layer is not None:
        if layer not in found:
            raise InputError(unknown(f"{wanted} layer", str(layer), map(str, found)))
        return str(found[layer])
    return str(min(found.values(), key=lambda name: _spread(_weights(trace, name))))


def _spread(weights_HTS: Tensor) -> float:
    """Small where attention is sharp: the entropy of the mean over the heads."""
    mean_TS = weights_HTS.mean(0)
    return float(-(mean_TS * (mean_TS + 1e-9).log()).sum(-1).mean())


def _weights(trace: Trace, attention: str) -> Tensor:
    """[heads, queries, keys]; a recurrent model's attention has one head."""
    weights = trace[f"{attention}.weights"][0]
    return weights if weights.dim() == 3 else weights.unsqueeze(0)


def _tokens(trace: Trace, attention: str) -> tuple[list[str], list[str]]:
    *_, rows, columns = trace.labels(f"{attention}.weights")
    assert rows is not None
    assert columns is not None
    return [_plain(token) for token in rows], [_plain(token) for token in columns]


def _plain(token: str) -> str:
    return token.removeprefix("▁").strip() or "·"


def _written(trace: Trace) -> str | None:
    if trace.search is None or trace.model is None or trace.model.tokenizer is None:
        return None
    return trace.model.tokenizer.decode(trace.search.written[0].ids)


def _drawing(
    trace: Trace, attention: str, weights_HTS: Tensor, head: int | None, rows: Sequence[str], columns: Sequence[str]
) -> list[str]:
    lines = [] if (written := _written(trace)) is None else [written, ""]
    title = f"{attention}.weights"
    if attention.startswith("decoder."):
        title += " (a row is the newest word that was read; it chose the next)"
    if head is not None:
        lines += [f"{title}, head {head}", *drawn.matrix(rows, columns, weights_HTS[head])]
    elif len(weights_HTS) == 1:
        lines += [title, *drawn.matrix(rows, columns, weights_HTS[0])]
    else:
        width = shutil.get_terminal_size((100, 24)).columns
        lines += [title, *drawn.side_by_side(rows, columns, weights_HTS, width)]
    shown = weights_HTS if head is None else weights_HTS[head : head + 1]
    lines += ["", "strongest"]
    for link in drawn.strongest(shown, LINKS):
        number = link.head if head is None else head
        lines.append(f"  {link.weight:.2f}  {rows[link.query]} → {columns[link.key]}  (head {number})")
    return lines


def _explained(
    trace: Trace,
    attention: str,
    weights_HTS: Tensor,
    head: int | None,
    asked: str,
    rows: Sequence[str],
    columns: Sequence[str],
) -> list[Explanation]:
    """Each step to one weight; without a head, of the one that looks there most."""
    parts = asked.split(",")
    if len(parts) != 2:
        raise InputError(f"--explain {asked!r}: give a query and a key, as words or numbers: --explain 3,5")
    query, key = _place(parts[0], rows, "query"), _place(parts[1], columns, "key")
    if head is None:
        head = int(weights_HTS[:, query, key].argmax())
    names = [f"{attention}.{value}" for value in ("scores", "scaled_scores", "masked_scores", "weights")]
    which = {"head": head} if "H" in trace.axes(names[-1]) else {}
    return [trace.explain(name, **which, query=query, key=key) for name in names if name in trace]


def _place(asked: str, tokens: Sequence[str], what: str) -> int:
    """The number of a token, or the first that is spelled so."""
    asked = asked.strip()
    if asked in tokens:
        return tokens.index(asked)
    if asked.isdecimal() and int(asked) < len(tokens):
        return int(asked)
    numbered = " ".join(f"{i}:{token}" for i, token in enumerate(tokens))
    raise InputError(f"there is no {what} {asked!r}; choose one of {numbered}")


def _data(
    trace: Trace, name: str, text: str, attention: str, weights_HTS: Tensor, head: int | None
) -> dict[str, object]:
    rows, columns = trace.labels(f"{attention}.weights")[-2:]
    chosen = range(len(weights_HTS)) if head is None else [head]
    links = drawn.strongest(weights_HTS[torch.tensor(list(chosen))], LINKS)
    return {
        "model": name,
        "text": text,
        "written": _written(trace),
        "attention": attention,
        "queries": rows,
        "keys": columns,
        "heads": [{"head": each, "weights": weights_HTS[each].tolist()} for each in chosen],
        "strongest": [asdict(link) | {"head": chosen[link.head]} for link in links],
    }


def _write(path: Path, content: bytes) -> None:
    """Whole or not at all."""
    aside = path.with_name(f".{path.name}.new")
    try:
        aside.write_bytes(content)
        aside.replace(path)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise InputError(f"can't write {path}: {error.strerror}") from None
