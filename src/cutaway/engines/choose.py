"""Which engine runs a model: the one asked for, or the fastest that writes the very text float32 does."""

from functools import cache
from pathlib import Path
from typing import get_args

import torch

from cutaway.engines import int8_files
from cutaway.engines.engine import Engine, EngineName, Precision
from cutaway.engines.int8 import Quantizer
from cutaway.engines.native import Native
from cutaway.engines.prepare import on_cpu
from cutaway.engines.quantization import weight_format
from cutaway.engines.timing import bfloat16_runs_faster, ctranslate2_is_faster, has_ctranslate2
from cutaway.errors import ConfigError, unknown
from cutaway.machine.environment import ENGINE, forced
from cutaway.models.config import TransformerConfig
from cutaway.models.network import Network
from cutaway.models.usage import Usage


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
    if name is None and forced(ENGINE) is not None and network.has_decoder:
        name, by_itself = _forced_engine(network), False
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
    """The precision of the weights; but half of it only where that is faster, for it is not more exact."""
    weight = next(network.parameters())
    if weight.dtype == torch.float16 and weight.device.type != "cpu":
        return "float16"
    if weight.dtype != torch.bfloat16:
        return "float32"
    return "bfloat16" if weight.device.type != "cpu" or bfloat16_runs_faster() else "float32"


def _ctranslate2_pays(network: Network) -> bool:
    if not network.has_decoder or not on_cpu(network):
        return False
    if not has_ctranslate2():
        return False
    from cutaway.engines.ctranslate2_spec import unsupported

    if unsupported(network) is not None:
        return False
    weights = [weight for name, weight in network.named_parameters() if not name.endswith("tokens.weight")]
    return ctranslate2_is_faster(sum(weight.numel() for weight in weights) / max(1, _n_blocks(network)))


def _forced_engine(network: Network) -> EngineName:
    """As CUTAWAY_ENGINE says; but a model that CTranslate2 does not know runs natively."""
    if forced(ENGINE) == "native" or not on_cpu(network):
        return "native"
    if not has_ctranslate2():
        raise ConfigError(
            f"{ENGINE.name}=ctranslate2, which is not installed; pip install cutaway[ctranslate2], or unset it"
        )
    from cutaway.engines.ctranslate2_spec import unsupported

    return "ctranslate2" if unsupported(network) is None else "native"


def _n_blocks(network: Network) -> int:
    assert isinstance(network.config, TransformerConfig)  # CTranslate2 has no others
    return sum(stack.n_blocks for stack in (network.config.encoder, network.config.decoder) if stack is not None)


def _in_int8(network: Network, usage: Usage, folder: Path | None) -> Native:
    """With the weights that an earlier run kept, or quantised now and kept."""
    stored = None if folder is None else int8_files.read(folder, weight_format())
    if stored is not None:
        try:
            return Native(network, usage, "int8", Quantizer(stored))
        except (KeyError, ValueError):  # of another version, or damaged
            pass
    quantizer = Quantizer()
    engine = Native(network, usage, "int8", quantizer)
    if folder is not None:
        int8_files.keep(folder, quantizer.made, weight_format())
    return engine
