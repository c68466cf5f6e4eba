"""Attention drawn for a terminal: matrices with shades, heads side by side, and the strongest links."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from rich.cells import cell_len, set_cell_size
from torch import Tensor

SHADES = " ░▒▓█"
_GAP = "  "
_LONGEST = 16
"""Letters of a word that is shown in full; tokens can be as long as a line."""
_TITLE = len("head 10")
_STAIRS = 24
"""Columns that get a word each, a line for each of them; more are numbered."""


@dataclass(frozen=True)
class Link:
    """One attention weight: its head, query and key."""

    head: int
    query: int
    key: int
    weight: float


def shaded(weight: float, width: int = 2) -> str:
    """A cell, drawn by the shade of its weight."""
    return width * SHADES[min(len(SHADES) - 1, round(weight * 5))]


def matrix(
    rows: Sequence[str], columns: Sequence[str], weights_TS: Tensor, *, width: int = 100, sink: int | None = None
) -> list[str]:
    """A column for each key, a row for each query and, where there is room, the key with most of its weight; that is
    not the `sink` if any other cell of the row is shaded.

    Where the words of the keys do not fit into `width`, keys have numbers, which a legend explains; where not even
    their cells do, the columns are drawn in several parts below each other.
    """
    rows, columns = _cut(rows), _cut(columns)
    edge, cells = max(map(cell_len, rows)) + 1, 2 * len(columns)
    most = [f"{_GAP}{columns[_best(row, sink)]}" for row in weights_TS.tolist()]
    last = max(map(cell_len, most))
    stairs = max(2 * i + cell_len(word) for i, word in enumerate(columns))
    if len(columns) <= _STAIRS and edge + max(stairs, cells + last) <= width:
        lines = [f"{edge * ' '}{'│ ' * i}{word}" for i, word in enumerate(columns)]
        return [*lines, *_band(rows, [weights_TS], range(len(columns)), 2, edge, most)]
    rows, legend = _numbered(rows, columns)
    edge = max(map(cell_len, rows)) + 1
    room = max(1, (width - edge) // 2)
    room -= room % 5 if 5 < room < len(columns) else 0  # every part begins at a number
    lines = _wrapped(legend, width)
    for first in range(0, len(columns), room):
        part = range(first, min(first + room, len(columns)))
        lines += [*([""] if lines else []), edge * " " + _ticks(part)]
        lines += _band(rows, [weights_TS], part, 2, edge, most if edge + cells + last <= width else ())
    return lines


def per_line(rows: Sequence[str], columns: Sequence[str], width: int) -> int:
    """The number of heads that fit beside each other; 0 if not even one does."""
    numbered, _ = _numbered(_cut(rows), _cut(columns))
    edge = max(map(cell_len, numbered)) + 1
    return max(0, (width - edge + len(_GAP)) // (max(2 * len(columns), _TITLE) + len(_GAP)))


def side_by_side(
    rows: Sequence[str], columns: Sequence[str], weights_HTS: Tensor, width: int, heads: Sequence[int] | None = None
) -> list[str]:
    """Heads (all, or those of these numbers), as many beside each other as fit.

    Keys are words if there is room for them without another line of heads; else numbers, which a legend explains.
    """
    rows, columns = _cut(rows), _cut(columns)
    heads = range(len(weights_HTS)) if heads is None else heads
    n = min(max(1, per_line(rows, columns, width)), len(heads))
    lines: list[str] = []
    edge, cell = max(map(cell_len, rows)) + 1, max(2, *(cell_len(word) + 1 for word in columns))
    if edge + n * (max(cell * len(columns), _TITLE) + len(_GAP)) - len(_GAP) <= width:
        top = "".join(set_cell_size(word, cell) for word in columns)
    else:
        rows, legend = _numbered(rows, columns)
        edge, cell, top = max(map(cell_len, rows)) + 1, 2, _ticks(range(len(columns)))
        lines += [*_wrapped(legend, width), ""] if legend else []
    each = max(cell * len(columns), _TITLE)
    for first in range(0, len(heads), n):
        band = heads[first : first + n]
        lines.append((" " * edge + _GAP.join(f"{f'head {head}':{each}}" for head in band)).rstrip())
        lines.append((" " * edge + _GAP.join(set_cell_size(top, each) for _ in band)).rstrip())
        lines += _band(rows, [weights_HTS[head] for head in band], range(len(columns)), cell, edge)
        lines.append("")
    return lines[:-1]


def strongest(weights_HTS: Tensor, n: int, rows_T: Tensor | None = None, sink: int | None = None) -> list[Link]:
    """The largest weights: of the queries `rows_T` (all), on any key but the `sink`."""
    _, T, S = weights_HTS.shape
    competing_TS = torch.ones(T, S, dtype=torch.bool) if rows_T is None else rows_T.unsqueeze(1).expand(T, S).clone()
    if sink is not None:
        competing_TS[:, sink] = False
    values, places = weights_HTS.masked_fill(~competing_TS, -1.0).flatten().topk(min(n, weights_HTS.numel()))
    return [
        Link(place // (T * S), place // S % T, place % S, value)
        for place, value in zip(places.tolist(), values.tolist(), strict=True)
        if value > 0
    ]


def _band(
    rows: Sequence[str], heads: Sequence[Tensor], part: range, cell: int, edge: int, after: Sequence[str] = ()
) -> list[str]:
    """A line for each query: its word, its cells for `part` of the keys, head beside head, and the text `after`."""
    each = max(cell * len(part), _TITLE if len(heads) > 1 else 0)
    lines = []
    for t, word in enumerate(rows):
        numbers = [head[t].tolist() for head in heads]
        cells = _GAP.join(f"{''.join(shaded(row[key], cell) for key in part):{each}}" for row in numbers)
        lines.append(f"{(edge - 1 - cell_len(word)) * ' '}{word} {cells}{after[t] if after else ''}".rstrip())
    return lines


def _best(row: Sequence[float], sink: int | None) -> int:
    others = [number if key != sink else -1.0 for key, number in enumerate(row)]
    chosen = others if sink is None or shaded(max(others)).strip() else row
    return list(chosen).index(max(chosen))


def _numbered(rows: Sequence[str], columns: Sequence[str]) -> tuple[list[str], list[str]]:
    """Rows with their numbers, and the legend of the columns: none where the rows are the same words."""
    if list(rows) == list(columns):
        digits = len(str(len(rows) - 1))
        return [f"{word} {i:>{digits}}" for i, word in enumerate(rows)], []
    return list(rows), [f"{i} {word}" for i, word in enumerate(columns)]


def _ticks(part: range) -> str:
    """The numbers of columns two letters wide: of each while a blank fits behind it, else of every fifth."""
    line = list((2 * len(part) + 4) * " ")
    for place, number in enumerate(part):
        if part[-1] < 10 or number % 5 == 0:
            line[2 * place : 2 * place + len(str(number))] = str(number)
    return "".join(line).rstrip()


def _wrapped(words: Sequence[str], width: int) -> list[str]:
    """Words with a gap between them, as many a line as fit."""
    lines: list[str] = []
    for word in words:
        if lines and cell_len(lines[-1]) + len(_GAP) + cell_len(word) <= width:
            lines[-1] += _GAP + word
        else:
            lines.append(word)
    return lines


def _cut(words: Sequence[str]) -> list[str]:
    return [word if cell_len(word) <= _LONGEST else set_cell_size(word, _LONGEST - 1) + "…" for word in words]
