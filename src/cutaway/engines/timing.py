"""Engines and precisions timed on this machine: CTranslate2 beside PyTorch, bfloat16 beside float32, and 8 bits."""

import time
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec

import torch
from torch import Tensor
from torch.nn import functional as F

from cutaway.engines.engine import Engine
from cutaway.engines.int8_layers import Int8Linear
from cutaway.engines.native import Native
from cutaway.engines.quantization import quantized
from cutaway.generation import Generation, Prompt
from cutaway.kernels import kernels
from cutaway.machine import CLEARLY, processor
from cutaway.machine.environment import PRECISION, forced
from cutaway.machine.measurements import Numbers, best_of, measured
from cutaway.machine.products import SIZE
from cutaway.models.build import build
from cutaway.models.config import TransformerConfig
from cutaway.models.network import Network
from cutaway.models.presets import preset
from cutaway.models.usage import Usage

NARROW, WIDE = 128, 384
BORDER, LARGEST = 1_000_000, 2_000_000
"""Weights of a block: a model with fewer than BORDER goes by the narrow one that is timed, up to LARGEST by the wide
one. The overhead of calls, which bounds a small step, grows with the number of blocks, the work with their weights:
beyond LARGEST products bound a step, and PyTorch, which has all cores on one text, is taken without a measurement."""


def ctranslate2_is_faster(n_weights: float) -> bool:
    """Whether CTranslate2 writes faster than PyTorch with a model of so many weights a block; it must be installed."""
    if n_weights > LARGEST:
        return False
    times, name = engine_times(), "narrow" if n_weights < BORDER else "wide"
    return times[f"native {name}"] >= CLEARLY * times[f"ctranslate2 {name}"]


def bfloat16_runs_faster() -> bool:
    """Whether weights that are stored in bfloat16 should run in it."""
    if (asked := forced(PRECISION)) is not None:
        return asked == "bfloat16"
    if not processor.has_bfloat16():
        return False
    times = running_times()
    return times["float32"] >= CLEARLY * times["bfloat16"]


def engine_times() -> Numbers:
    """Seconds of processor time in which a few texts are written greedily, by engine and width of the model."""
    import ctranslate2

    built = kernels()
    return measured(f"engines {ctranslate2.__version__} {'' if built is None else built.digest}", _measure_engines)


def running_times() -> Numbers:
    """Seconds on one core of a feed-forward network that runs, over one token and over many, in each precision."""
    return measured("running", _measure_running)


def int8_speed() -> float:
    """Products (operations a second) of our kernel in 8 bits on one core, quantising included."""
    built = kernels()
    return measured(f"int8 {'' if built is None else built.digest}", _measure_int8)["int8"]


def has_ctranslate2() -> bool:
    return find_spec("ctranslate2") is not None


def _measure_engines() -> Numbers:
    from cutaway.engines.ctranslate2 import CTranslate2

    torch.set_num_threads(1)  # what is compared is work, whoever else wants the cores
    found: Numbers = {}
    for name, width in (("narrow", NARROW), ("wide", WIDE)):
        network = _translator(width)
        engines = {"native": Native(network, USAGE), "ctranslate2": CTranslate2(network, USAGE, workers=1)}
        ways = {engine: _writing(made) for engine, made in engines.items()}
        times = best_of(ways, 0.02, time.process_time)  # CTranslate2 computes in a thread of its own
        found |= {f"{engine} {name}": seconds for engine, seconds in times.items()}
    return found


USAGE = Usage(start=0)


def _translator(width: int, vocabulary: int = 500) -> Network:
    """An encoder-decoder of one block a side, that never ends a text."""
    config = preset("transformer-tiny")
    assert isinstance(config, TransformerConfig)
    changes = {"n_blocks": 1, "d_model": width, "d_ff": 4 * width, "n_heads": 4, "vocabulary": vocabulary}
    stacks = {name: replace(getattr(config, name), **changes) for name in ("encoder", "decoder")}
    return build(replace(config, **stacks)).eval()


def _writing(engine: Engine, n_texts: int = 4, n_tokens: int = 8) -> Callable[[], object]:
    prompts = [Prompt(tuple(range(5, 17)))] * n_texts
    generation = Generation(beams=1, max_new_tokens=n_tokens)  # with beams, CTranslate2 writes other texts
    return lambda: list(engine.write(prompts, generation))


def _measure_running(width: int = 512, n_tokens: int = 64) -> Numbers:
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    x, up, down = (
        torch.randn(shape, generator=generator) for shape in ((n_tokens, width), (4 * width, width), (width, 4 * width))
    )

    def way(dtype: torch.dtype) -> Callable[[], object]:
        rows, first, second = x.to(dtype), up.to(dtype), down.to(dtype)

        def run(rows: Tensor) -> Tensor:
            return F.linear(F.linear(rows, first).relu(), second)

        return lambda: (run(rows), [run(rows[:1]) for _ in range(8)])

    return best_of({"float32": way(torch.float32), "bfloat16": way(torch.bfloat16)}, 0.02)


def _measure_int8() -> Numbers:
    torch.set_num_threads(1)
    x = torch.randn(SIZE, SIZE, generator=torch.Generator().manual_seed(0))
    layer = Int8Linear(quantized(x), None)
    return {"int8": 2 * SIZE**3 / best_of({"int8": lambda: layer(x)}, 0.01)["int8"]}
