"""`cutaway models`: what each preset weighs and costs."""

import json
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.table import Table

from cutaway.models.config import Config
from cutaway.models.presets import PRESETS, preset
from cutaway.models.size import PARTS, Size, size


def run(names: list[str], context: int, as_json: bool) -> None:
    configs = {name: preset(name) for name in names or PRESETS}
    sizes = {name: size(config, context) for name, config in configs.items()}
    if as_json:
        print(json.dumps([_record(name, configs[name], sizes[name]) for name in sizes], indent=2))
        return
    console = Console()
    console.print(_table(configs, sizes, console.width))
    if len(sizes) == 1:
        console.print(_parts(next(iter(sizes.values()))))
    console.print(
        f"FLOPs: to process one token with {context} in context (encoder-decoders: one token on each side); "
        "training = 3 × forward. Weights in float32, cache in bfloat16 for each decoded token.",
        style="dim",
    )


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


def _table(configs: dict[str, Config], sizes: dict[str, Size], width: int) -> Table:
    """A row a model; on a narrow terminal without the parts, which `cutaway models NAME` shows."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    columns = _columns(width >= _WIDE)
    table.add_column("model")
    table.add_column("family")
    for title in columns:
        table.add_column(title, justify="right")
    for name, counted in sizes.items():
        table.add_row(name, family(configs[name]), *(show(counted) for show in columns.values()))
    return table


_WIDE = 118  # columns of the terminal


def _columns(wide: bool) -> dict[str, Callable[[Size], str]]:
    """Title -> what stands there."""

    def of(*parts: str) -> Callable[[Size], str]:
        return lambda counted: count(sum(counted.by_part[part] for part in parts))

    by_part = {
        "embedding": of("embedding"),
        "attention": of("attention", "cross-attention"),
        "feed-fwd": of("feed-forward"),
        "rest": of("recurrent", "norm", "head"),
    }
    return {
        "parameters": lambda counted: count(counted.parameters),
        **(by_part if wide else {}),
        "forward": lambda counted: f"{short(counted.flops_forward)}F",
        **({"training": lambda counted: f"{short(counted.flops_training)}F"} if wide else {}),
        "weights": lambda counted: f"{short(counted.weight_bytes())}B",
        "cache": lambda counted: f"{short(counted.kv_cache_bytes())}B" if counted.kv_cache_floats else "–",
    }


def _parts(counted: Size) -> Table:
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
