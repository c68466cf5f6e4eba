"""This machine as cutaway sees it, what was measured on it, and what follows: the report of `cutaway machine`."""

import platform
import subprocess
import time
from collections.abc import Mapping
from typing import Any

import torch
from rich.table import Table

import cutaway
from cutaway.cli.pager import Screen
from cutaway.engines import timing as engine_timing
from cutaway.kernels import compiler, kernels, why_not
from cutaway.kernels import timing as kernel_timing
from cutaway.kernels.choice import ANY, default
from cutaway.machine import CLEARLY, measurements, processor, products
from cutaway.machine.environment import VARIABLES, forced
from cutaway.models.presets import preset
from cutaway.training import precision


def print_report(found: Mapping[str, Any]) -> None:
    """Two tables: the machine, and what is chosen by it."""
    console = Screen()
    for title, rows in (("This machine", _facts(found)), ("What follows", _choices(found))):
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="bold", no_wrap=True)
        grid.add_column(overflow="fold")
        for name, text in rows.items():
            grid.add_row(name, text)
        console.print(title, grid, "", sep="\n")


def measure_all() -> dict[str, measurements.Numbers]:
    """Every measurement of every room, by its name."""
    found = {
        "products": products.speeds(),
        "attention": kernel_timing.attention_times(),
        "training": precision.step_times(),
        "int8": {"on one thread": engine_timing.int8_speed()},
    }
    if processor.has_bfloat16():
        found["running"] = engine_timing.running_times()
    if engine_timing.has_ctranslate2():
        found["engines"] = engine_timing.engine_times()
    return found


def report() -> dict[str, Any]:
    """What the command prints, for other programs."""
    built = kernels()
    began = time.perf_counter()
    numbers = measure_all()
    seconds = time.perf_counter() - began
    return {
        "processor": processor.name(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": processor.cores(),
        "threads": torch.get_num_threads(),
        "instructions": list(processor.instructions()),
        "versions": {"cutaway": cutaway.__version__, "torch": torch.__version__, "python": platform.python_version()},
        "compiler": _compiler(),
        "kernels": None if built is None else built.digest,
        "kernels_missing": why_not(),
        "measured": numbers,
        "seconds": round(seconds, 3),
        "forced": {variable.name: value for variable in VARIABLES if (value := forced(variable)) is not None},
        "choices": choices(numbers),
    }


def choices(numbers: Mapping[str, measurements.Numbers]) -> dict[str, dict[str, str]]:
    """What is chosen, and the numbers that decided."""
    cpu, attention, times = torch.device("cpu"), default(), numbers["attention"]
    small, large = (
        precision.fastest_precision(cpu, preset(name)) for name in ("transformer-tiny", "transformer-base")
    )  # fmt: skip
    return {
        "training, small models": {"chosen": small[0], "why": small[1]},
        "training, wide models": {"chosen": large[0], "why": large[1]},
        "training, kernels": _kernels_for_training(times),
        "attention, training": {
            "chosen": f"float32: our kernel up to {_length(attention.kernel)}, then torch's; bfloat16: steps up to "
            f"{_length(attention.half_steps)}, then torch's",
            "why": _attention(times, ("float32 kernel", "float32 fused"), ("bfloat16 steps", "bfloat16 fused")),
        },
        "attention, running": {
            "chosen": f"our kernel up to {_length(attention.running)}, with heads wider than 32 up to "
            f"{_length(attention.running_wide)}, then torch's",
            "why": _attention(times, ("running kernel", "running fused"), ("wide kernel", "wide fused")),
        },
        "running, weights in bfloat16": _running(numbers.get("running")),
        "engine of small models, greedy": _engine(numbers.get("engines"), "narrow", engine_timing.BORDER / 2),
        "engine of wider models, greedy": _engine(numbers.get("engines"), "wide", engine_timing.LARGEST),
    }


def _kernels_for_training(times: measurements.Numbers) -> dict[str, str]:
    if (missing := why_not()) is not None:
        return {"chosen": "torch's", "why": missing}
    gain = times["norm fused 16"] / times["norm kernel 16"]
    chosen = "our own" if default().own else "torch's"
    return {"chosen": chosen, "why": f"usually; dropout, add & norm measured {gain:.2f} × as fast as torch's"}


def _running(times: measurements.Numbers | None) -> dict[str, str]:
    chosen = "bfloat16" if engine_timing.bfloat16_runs_faster() else "float32"
    if times is None:
        return {"chosen": chosen, "why": "this processor has no bfloat16 instructions"}
    return {"chosen": chosen, "why": f"{times['float32'] / times['bfloat16']:.2f} × as fast as float32"}


def _engine(times: measurements.Numbers | None, name: str, n_weights: float) -> dict[str, str]:
    if times is None:
        return {"chosen": "native", "why": "CTranslate2 is not installed (pip install cutaway[ctranslate2])"}
    chosen = "ctranslate2" if engine_timing.ctranslate2_is_faster(n_weights) else "native"
    gain = times[f"native {name}"] / times[f"ctranslate2 {name}"]
    return {"chosen": chosen, "why": f"CTranslate2 {gain:.2f} × as fast as PyTorch"}


def _attention(times: measurements.Numbers, *pairs: tuple[str, str]) -> str:
    """`2.3 × as fast as torch's at 16, …`"""
    told = []
    for way, other in pairs:
        lengths = [int(name.split()[-1]) for name in times if name.startswith(way)]
        gains = [f"{times[f'{other} {n}'] / times[f'{way} {n}']:.1f} × at {n}" for n in lengths]
        if gains:
            told.append(f"{way} {', '.join(gains)}")
    return f"beside torch's, {'; '.join(told)}" if told else "nothing to compare"


def _length(n: int) -> str:
    return "any length" if n >= ANY else f"{n} tokens"


def _compiler() -> str | None:
    """The first line that the compiler says of itself."""
    try:
        told = subprocess.run([*compiler(), "--version"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return next(iter(told.stdout.splitlines()), None)


def _facts(found: Mapping[str, Any]) -> dict[str, str]:
    speeds = found["measured"]["products"]
    told = {
        "processor": f"{found['processor']}, {found['cores']} cores, {found['threads']} threads ({found['system']})",
        "instructions": ", ".join(found["instructions"]),
        "versions": ", ".join(f"{name} {version}" for name, version in found["versions"].items()),
    }
    for name in ("float32", "bfloat16"):
        if name in speeds:
            told[name] = f"{_giga(speeds[name])} GFLOP/s, {_giga(speeds[f'{name} on one thread'])} on one thread"
    told["int8"] = f"{_giga(found['measured']['int8']['on one thread'])} GOP/s on one thread"
    told["memory"] = f"{_giga(speeds['copy'])} GB/s, copying"
    told["compiler"] = found["compiler"] or "none"
    told["kernels"] = f"built ({found['kernels']})" if found["kernels"] else f"none: {found['kernels_missing']}"
    told["forced"] = ", ".join(f"{name}={value}" for name, value in found["forced"].items()) or "nothing"
    told["measured"] = f"in {found['seconds']:.2f} s" if found["seconds"] > 0.01 else "before, from the cache"
    return told


def _choices(found: Mapping[str, Any]) -> dict[str, str]:
    told = {name: f"{each['chosen']} ({each['why']})" for name, each in found["choices"].items()}
    return told | {"rule": f"the usual way, unless another measured at least {CLEARLY} × as fast"}


def _giga(number: float) -> str:
    return f"{number / 1e9:,.0f}"
