"""Attention drawn for a terminal: matrices with shades, heads side by side, and the strongest links."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

SHADES = " ░▒▓█"
_GAP = "  "


@dataclass(frozen=True)
class Link:
    """One look: of which head, from where to where, how much."""

    head: int
    query: int
    key: int
    weight: float


def shaded(weight: float) -> str:
    """A cell, two letters wide."""
    return 2 * SHADES[min(len(SHADES) - 1, round(weight * 5))]


def matrix(rows: Sequence[str], columns: Sequence[str], weights_TS: Tensor, *, best: bool = True) -> list[str]:
    """A column for each key, a row for each query; `best` adds the key that it looked at most."""
    width = max(map(len, rows))
    edge = " " * (width + 1)
    lines = [f"{edge}{'│ ' * i}{word}" for i, word in enumerate(columns)]
    for word, row in zip(rows, weights_TS.tolist(), strict=True):
        most = f"  {columns[row.index(max(row))]}" if best else ""
        lines.append(f"{word:>{width}} {''.join(map(shaded, row))}{most}".rstrip())
    return lines


def side_by_side(rows: Sequence[str], columns: Sequence[str], weights_HTS: Tensor, width: int) -> list[str]:
    """All heads, as many beside each other as fit; keys by their first two letters."""
    edge = max(map(len, rows)) + 1
    each = 2 * len(columns)
    n = max(1, (width - edge + len(_GAP)) // (each + len(_GAP)))
    short = "".join(f"{column[:2]:2}" for column in columns)
    lines: list[str] = []
    for first in range(0, len(weights_HTS), n):
        heads = range(first, min(first + n, len(weights_HTS)))
        lines.append(" " * edge + _GAP.join(f"{f'head {head}':{each}}" for head in heads).rstrip())
        lines.append(" " * edge + _GAP.join(short for _ in heads).rstrip())
        for t, word in enumerate(rows):
            cells = _GAP.join("".join(map(shaded, weights_HTS[head, t].tolist())) for head in heads)
            lines.append(f"{word:>{edge - 1}} {cells}".rstrip())
        lines.append("")
    return lines[:-1]


def strongest(weights_HTS: Tensor, n: int) -> list[Link]:
    """The links that most attention goes to."""
    _, T, S = weights_HTS.shape
    values, places = weights_HTS.flatten().topk(min(n, weights_HTS.numel()))
    return [
        Link(place // (T * S), place // S % T, place % S, value)
        for place, value in zip(places.tolist(), values.tolist(), strict=True)
    ]
