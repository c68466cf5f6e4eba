"""Colours, fonts and heat maps with tokens along them, shared by all pictures, and saving.

Colours are safe for red-green colour blindness: weights go from white to dark blue, signed numbers from orange over
white to blue.
"""

import math
import os
import tempfile
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from cutaway.errors import CheckpointError, InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, GREY, BLUE, ORANGE = "#1b2733", "#5c6975", "#2166ac", "#c8590a"
WEIGHTS = ("#ffffff", "#d9e7f5", "#8fbbe0", "#3f82c0", "#174f8f", "#06264d")
SIGNED = ("#7f3500", "#d9731a", "#f5c592", "#ffffff", "#a9cbe8", "#3a7fbf", "#0b3c78")
FONTS = (
    "DejaVu Sans", "Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans Devanagari", "Noto Sans Arabic", "Noto Sans",
    "Arial Unicode MS", "Microsoft YaHei", "Hiragino Sans", "WenQuanYi Zen Hei", "Noto Emoji",
)  # fmt: skip
"""In the order in which a letter is looked up in them; fonts that are not installed are left out."""
SUFFIXES = (".png", ".svg")
LARGEST = 12.0
"""Inches of a heat map with a hundred tokens or more: their cells get smaller, and not all have a label."""


def matplotlib(part: str = "") -> Any:
    try:
        return import_module(f"matplotlib{part}")
    except ImportError:
        raise InputError(
            "pictures are drawn by matplotlib, which is not installed: pip install 'cutaway[plots]'"
        ) from None


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure; its size is in inches."""
    return matplotlib(".figure").Figure(figsize=(width, height), layout="constrained", facecolor="white")


def finished(figure: "Figure", title: str) -> "Figure":
    """Adds the title, and sets every text in fonts that have its letters."""
    figure.suptitle(title, fontsize=12, color=INK, fontweight="bold")
    for text in figure.findobj(matplotlib(".text").Text):
        text.set_fontfamily(list(_fonts()))
    return figure


def save(figure: "Figure", path: str | Path) -> Path:
    """Writes a figure as PNG or SVG, by the file's name; whole or not at all."""
    path = Path(path).expanduser()
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"{path} ends in '{path.suffix}'; a picture is saved as {' or '.join(SUFFIXES)}")
    svg = path.suffix.lower() == ".svg"
    try:
        with tempfile.TemporaryDirectory(prefix=".picture.", dir=path.parent) as aside:
            file = Path(aside) / path.name
            # text stays text, and the same picture is the same file: no date, no random names
            with matplotlib().rc_context({"svg.fonttype": "none", "svg.hashsalt": "cutaway"}):
                metadata = {"Date": None} if svg else {}
                figure.savefig(file, dpi=160, metadata=metadata, bbox_inches="tight", pad_inches=0.15)
            os.replace(file, path)
    except OSError as error:
        raise CheckpointError(f"can't write {path}: {error.strerror or error}") from None
    return path


def matrix(
    value: Tensor,
    rows: Sequence[str] | None,
    columns: Sequence[str] | None,
    *,
    title: str,
    down: str,
    across: str,
    bar: str,
    signed: bool = False,
) -> "Figure":
    """A heat map with names along it and a colour bar; with its numbers if there is room for them. Rows or columns
    without names are counted."""
    n, m = value.shape
    numbers = rows is not None and columns is not None and n <= 40 and m <= 14
    size = label_size(max(n, m) if columns is not None else n, 9.5)
    side = size * 1.35 / 72
    high = min(LARGEST, max(1.8, n * (0.34 if numbers else side))) if rows is not None else 4.6
    wide = min(LARGEST, max(3.6, m * (0.46 if numbers else side))) if columns is not None else 7.0
    figure = new_figure(wide + 2.6, high + 1.7)
    axes = figure.subplots()
    finite = value[value.isfinite()]
    most = (float(finite.abs().max()) if len(finite) else 0.0) or 1.0
    image = heat(axes, value, SIGNED if signed else WEIGHTS, -most if signed else 0.0, most)
    words_along(axes, columns, None, size, room=wide / m)
    words_along(axes, None, rows, label_size(n, 9.5), line=high / n)
    axes.set_xlabel(across, fontsize=10, color=GREY)
    axes.set_ylabel(down, fontsize=10, color=GREY)
    if numbers:
        write_numbers(axes, value, most)
    colour_bar(figure, image, [axes], bar)
    return finished(figure, title)


def heat(axes: "Axes", value: Tensor, colours: Sequence[str], low: float, high: float) -> Any:
    """An image of the cells; NaN is left grey."""
    made = (
        matplotlib(".colors").LinearSegmentedColormap.from_list("cutaway", list(colours)).with_extremes(bad="#f3f4f6")
    )
    image = axes.imshow(
        value.double().numpy(), cmap=made, vmin=low, vmax=high or 1.0, aspect="auto", interpolation="nearest"
    )  # fmt: skip
    for spine in axes.spines.values():
        spine.set(color="#c9d1d9", linewidth=0.7)
    axes.tick_params(length=0, labelsize=8, labelcolor=INK)
    return image


def plain_axes(axes: "Axes", n: int) -> None:
    """Axes for bars and lines beside `n` names, the first on top: only the axis below is drawn."""
    axes.set_ylim(n - 0.4, -0.6)
    axes.grid(axis="x", color="#e7ebef", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelsize=8, labelcolor=INK)
    for place in ("top", "right", "left"):
        axes.spines[place].set_visible(False)
    axes.spines["bottom"].set(color="#c9d1d9", linewidth=0.7)


def colour_bar(figure: "Figure", image: Any, beside: "Sequence[Axes]", label: str) -> None:
    bar = figure.colorbar(image, ax=list(beside), shrink=0.9, aspect=28, pad=0.015)
    bar.set_label(label, fontsize=9, color=GREY)
    bar.ax.tick_params(labelsize=8, length=0, labelcolor=INK)
    bar.outline.set(edgecolor="#c9d1d9", linewidth=0.7)


def write_numbers(axes: "Axes", value: Tensor, most: float) -> None:
    """Each cell's number in it, white on dark; numbers that round to 0 are left out."""
    digits = 2 if most < 10 else 1 if most < 100 else 0
    for i, row in enumerate(value.tolist()):
        for j, number in enumerate(row):
            text = f"{number:,.{digits}f}".replace("-", "−")
            if math.isfinite(number) and text.strip("−0."):
                colour = "white" if abs(number) > 0.55 * most else INK
                axes.text(j, i, text, ha="center", va="center", fontsize=7, color=colour)


def words_along(
    axes: "Axes",
    across: Sequence[str] | None,
    down: Sequence[str] | None,
    size: float,
    *,
    room: float = 0.0,
    line: float = 1.0,
) -> None:
    """Tokens, or other names, along the axes; None leaves an axis as it is. `room` and `line`: inches for each name
    across and down. Where that is too little for the longest name they stand upright, and where it is too little for a
    line of letters, some are left out."""
    if across is not None:
        names = [written(each) for each in across]
        upright = max(map(len, names)) * size * 0.62 / 72 > room
        axes.set_xticks(range(len(names)), labels=_apart(names, size, room), fontsize=size, color=INK)
        axes.tick_params(axis="x", rotation=90 if upright else 0, pad=2)
    if down is not None:
        names = [written(each, 34) for each in down]
        axes.set_yticks(range(len(names)), labels=_apart(names, size, line), fontsize=size, color=INK)
        axes.tick_params(axis="y", pad=3)


def _apart(names: Sequence[str], size: float, room: float) -> list[str]:
    """The names for which there is room; the others are empty."""
    step = max(1, math.ceil(size * 1.05 / 72 / room)) if room > 0 else 1
    return [name if i % step == 0 else "" for i, name in enumerate(names)]


def label_size(n: int, largest: float) -> float:
    """Points of a letter, smaller the more names there are; 60 are still readable."""
    return max(5.5, min(largest, largest * (24 / max(n, 1)) ** 0.5))


def written(token: str, longest: int = 16) -> str:
    """A token as a label, without the sign that a word begins; a long one is cut, letters that no font has are boxes,
    and $ is escaped."""
    text = token.removeprefix("▁") or token
    text = text if len(text) <= longest else text[: longest - 1] + "…"
    shown = "".join(each if _has(each) else "□" for each in text if each.isprintable())
    return (shown or repr(text)[1:-1]).replace("$", r"\$")


def spoken(name: str) -> str:
    """`decoder.blocks.0.cross_attention` -> decoder, block 0, cross-attention"""
    parts = name.split(".")
    words = [part for part in parts if part != "blocks" and not part.isdigit()]
    if "blocks" in parts:
        words.insert(1, f"block {parts[parts.index('blocks') + 1]}")
    return ", ".join(words).replace("_attention", "-attention").replace("_", " ")


def layer_name(name: str) -> str:
    """`decoder.blocks.0.output` -> block 0"""
    parts = name.split(".")
    return f"block {parts[2]}" if parts[1] == "blocks" else parts[1]


@cache
def _fonts() -> tuple[str, ...]:
    known = {each.name for each in matplotlib(".font_manager").fontManager.ttflist}
    return tuple(name for name in FONTS if name in known) or ("sans-serif",)


@cache
def _has(letter: str) -> bool:
    """Whether one of the fonts has it."""
    manager = matplotlib(".font_manager")
    return any(
        manager.get_font(manager.findfont(manager.FontProperties(family=name))).get_char_index(ord(letter))
        for name in _fonts()
    )
