"""How large models are: the tables of `cutaway models` and of `cutaway info`."""

import json
from collections.abc import Callable
from typing import Any

from rich.table import Table

from cutaway.cli.pager import Screen
from cutaway.cli.terminal import show
from cutaway.info.size import PARTS, Size, size
from cutaway.models.config import Config
from cutaway.models.presets import PRESETS, preset


def print_presets(names: list[str], context: int, as_json: bool) -> None:
    """The presets of these names, or all: a row each."""
    configs = {name: preset(name) for name in names or PRESETS}
    sizes = {name: size(config, context) for name, config in configs.items()}
    if as_json:
        show(json.dumps([_record(name, configs[name], sizes[name]) for name in sizes], indent=2))
        return
    console = Screen()
    columns = _fitting(_columns(configs), sizes, console.width)
    console.print_whole(_table(columns, sizes))
    if len(sizes) == 1:
        console.print()
        console.print_whole(parts_table(next(iter(sizes.values()))))
    if footnote := _footnote(set(columns), context, {counted.context for counted in sizes.values()}):
        console.print(footnote, style="dim")


def family(config: Config) -> str:
    """Which halves a model has."""
    halves = [name for name, half in (("encoder", config.encoder), ("decoder", config.decoder)) if half is not None]
    return "-".join(halves) if len(halves) == 2 else f"{halves[0]}-only"


def _record(name: str, config: Config, counted: Size) -> dict[str, Any]:
    return {
        "name": name,
        "kind": config.kind,
        "family": family(config),
        "parameters": counted.parameters,
        "parameters_by_part": {part: count for part, count in counted.by_part.items() if count},
        "context": counted.context,
        "flops_per_token_forward": counted.flops_forward,
        "flops_per_token_training": counted.flops_training,
        "weight_bytes_float32": counted.weight_bytes(4),
        "weight_bytes_bfloat16": counted.weight_bytes(2),
        "kv_cache_bytes_per_token_bfloat16": counted.kv_cache_bytes(2),
    }


Column = Callable[[str, Size], str]
"""What a model's row shows there, from its name and its size."""

_GAP = 2  # between columns
_DROPPED = (  # on a narrow terminal, one after the other until the rest fits; `cutaway models NAME` shows the parts
    ("embedding", "attention", "feed-fwd", "rest"), ("training FLOPs",), ("cache",), ("weights",), ("family",),
    ("FLOPs",),
)  # fmt: skip


def _columns(configs: dict[str, Config]) -> dict[str, Column]:
    """Title -> what stands there."""

    def of(*parts: str) -> Column:
        return lambda _, counted: count(sum(counted.by_part[part] for part in parts))

    return {
        "model": lambda name, _: name,
        "family": lambda name, _: family(configs[name]),
        "parameters": lambda _, counted: count(counted.parameters),
        "embedding": of("embedding"),
        "attention": of("attention", "cross-attention"),
        "feed-fwd": of("feed-forward"),
        "rest": of("recurrent", "norm", "head"),
        "FLOPs": lambda _, counted: short(counted.flops_forward),
        "training FLOPs": lambda _, counted: short(counted.flops_training),
        "weights": lambda _, counted: f"{short(counted.weight_bytes())}B",
        "cache": lambda _, counted: f"{short(counted.kv_cache_bytes())}B" if counted.kv_cache_floats else "–",
    }


def _fitting(columns: dict[str, Column], sizes: dict[str, Size], width: int) -> dict[str, Column]:
    """The columns for which there is room: none is cut, names least of all."""
    widths = {
        title: _GAP + max(len(title), *(len(show(name, counted)) for name, counted in sizes.items()))
        for title, show in columns.items()
    }
    for titles in _DROPPED:
        if sum(widths.values()) - _GAP > width:
            widths = {title: n for title, n in widths.items() if title not in titles}
    return {title: columns[title] for title in widths}


def _table(columns: dict[str, Column], sizes: dict[str, Size]) -> Table:
    """A row a model."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in columns:
        table.add_column(title, justify="left" if title in ("model", "family") else "right", no_wrap=True)
    for name, counted in sizes.items():
        table.add_row(*(show(name, counted) for show in columns.values()))
    return table


def _footnote(titles: set[str], context: int, contexts: set[int]) -> str:
    """What the columns that are shown mean. `contexts`: those counted with; images have their own."""
    notes = []
    if "FLOPs" in titles:
        images = ", ".join(map(str, sorted(contexts - {context})))
        text = f"{context} in context" if context in contexts else f"{images} in context, the places of an image"
        also = f" ({images} for images: all their places)" if images and context in contexts else ""
        notes.append(f"FLOPs: to process one token with {text}{also}; encoder-decoders: one token on each side.")
    if "training FLOPs" in titles:
        notes.append("Training = 3 × forward.")
    if "weights" in titles:
        notes.append("Weights in float32.")
    if "cache" in titles:
        notes.append("Cache in bfloat16, for each decoded token.")
    return " ".join(notes)


def parts_table(counted: Size) -> Table:
    """Parameters by part, and their share."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("part")
    table.add_column("parameters", justify="right")
    table.add_column("share", justify="right")
    for part in PARTS:
        if counted.by_part[part]:
            table.add_row(part, f"{counted.by_part[part]:,}", f"{counted.by_part[part] / counted.parameters:.1%}")
    table.add_row("all", f"{counted.parameters:,}", "", style="bold")
    return table


def count(number: int) -> str:
    """Parameters as papers give them: `109.5 M`, `6.74 B`."""
    if number == 0:
        return "–"
    if number >= 1e9:
        return f"{number / 1e9:.2f} B"
    return f"{number / 1e6:.1f} M" if number >= 1e5 else f"{number / 1e3:.1f} k"


def short(number: float) -> str:
    """1234567 -> `1.23 M`"""
    for unit in ("", "k", "M", "G", "T"):
        if abs(number) < 999.5 or unit == "T":
            return f"{number:.3g} {unit}".rstrip()
        number /= 1000
    raise AssertionError
