"""Which engine runs a model: the one asked for, or the fastest that writes the very text float32 does."""

from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import get_args

import torch

from cutaway.engines import int8_files
from cutaway.engines.engine import Engine, EngineName, Precision
from cutaway.engines.int8 import Quantizer, largest_four
from cutaway.engines.native import Native
from cutaway.engines.prepare import on_cpu
from cutaway.errors import ConfigError, unknown
from cutaway.machine import has_fast_bfloat16
from cutaway.models.network import Network
from cutaway.models.usage import Usage

CALL_BOUND = 20_000_000
"""Weights (without the word vectors) up to which a step is taken to be bound by the overhead of calls, not by products.
In float32 CTranslate2 wrote 1070 sentences a second with transformer-tiny (1.3 million of them), PyTorch 440. Where
between that and transformer-base (44 million) the border is was not measured."""


def choose(
    network: Network, usage: Usage, folder: Path | None, name: str | None, precision: str | None
) -> Engine:  # fmt: skip
    """The engine of that name and precision; None: the fastest that keeps the text, in the precision of the weights."""
    if name is not None and name not in get_args(EngineName):
        said = name if isinstance(name, str) else type(name).__name__
        raise ConfigError(unknown("engine", said, get_args(EngineName)))
    if precision is not None and precision not in get_args(Precision):
        raise ConfigError(unknown("precision", precision, get_args(Precision)))
    wanted: Precision = precision or as_stored(network)  # type: ignore[assignment]  # checked just now
    by_itself = name is None
    _check_device(network, name, wanted)
    if name is None:
        name = "ctranslate2" if wanted == "float32" and _ctranslate2_pays(network) else "native"
    if name == "ctranslate2":
        from cutaway.engines.ctranslate2 import CTranslate2

        otherwise = cache(lambda: Native(network, usage, wanted)) if by_itself else None
        return CTranslate2(network, usage, wanted, keep=folder is not None, otherwise=otherwise)
    if wanted == "int8":
        return _in_int8(network, usage, folder)
    return Native(network, usage, wanted)


def _check_device(network: Network, name: str | None, precision: Precision) -> None:
    """What only CPUs have is an error on another device if it was asked for, and so is what only the others have."""
    if on_cpu(network):
        if precision == "float16":
            raise ConfigError("float16 is for GPUs, and this model is on the CPU; choose float32, bfloat16 or int8")
        return
    if name == "ctranslate2" or precision == "int8":
        what = "the engine ctranslate2" if name == "ctranslate2" else "int8"
        raise ConfigError(
            f"{what} runs on the CPU only, and this model is on {network.device}; move it with model.to('cpu') "
            f"(--device cpu), or leave it out"
        )


def as_stored(network: Network) -> Precision:
    """The precision of the weights; but half of it is only as exact, and slower, where the CPU has to emulate it."""
    weight = next(network.parameters())
    if weight.dtype == torch.float16 and weight.device.type != "cpu":
        return "float16"
    fast = weight.device.type not in ("cpu", "cuda") or has_fast_bfloat16(str(weight.device))
    return "bfloat16" if weight.dtype == torch.bfloat16 and fast else "float32"


def _ctranslate2_pays(network: Network) -> bool:
    if not network.has_decoder or not on_cpu(network) or find_spec("ctranslate2") is None:
        return False
    from cutaway.engines.ctranslate2_spec import unsupported

    n_tables = sum(weight.numel() for name, weight in network.named_parameters() if name.endswith("tokens.weight"))
    n_weights = sum(weight.numel() for weight in network.parameters()) - n_tables
    return n_weights <= CALL_BOUND and unsupported(network) is None


def _in_int8(network: Network, usage: Usage, folder: Path | None) -> Native:
    """With the weights that an earlier run kept, or quantised now and kept."""
    stored = None if folder is None else int8_files.read(folder, largest_four())
    if stored is not None:
        try:
            return Native(network, usage, "int8", Quantizer(stored))
        except (KeyError, ValueError):  # of another version, or damaged
            pass
    quantizer = Quantizer()
    engine = Native(network, usage, "int8", quantizer)
    if folder is not None:
        int8_files.keep(folder, quantizer.made, largest_four())
    return engine
