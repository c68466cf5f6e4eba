"""Folders that CTranslate2 loads: written by `convert`, and once for each model into a cache.

A model is known by its numbers, not by its file: whoever trains it further gets another folder, never an old one.
"""

import hashlib
import json
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal, TypeVar

from torch import Tensor

from cutaway.cache import CacheEntry
from cutaway.checkpoints.weights import raw_bytes
from cutaway.engines.ctranslate2_spec import library, to_spec
from cutaway.errors import CheckpointError, ConfigError
from cutaway.models.network import Network
from cutaway.models.usage import Usage

Stored = Literal["float32", "float16", "bfloat16", "int8"]
"""How the weights are kept. int8: one scale for each row; norms and biases stay float32."""

LAYOUT = 1  # of what to_spec writes: a new number makes every cached folder an old one
T = TypeVar("T")


def write(network: Network, usage: Usage, folder: Path, stored: Stored = "float32") -> None:
    """Fills an existing, empty folder with the model as CTranslate2 reads it."""
    spec = to_spec(network, usage)
    try:
        spec.validate()
        spec.optimize(quantization="int8_float32" if stored == "int8" else stored)
        spec.save(str(folder))
    except (ValueError, AttributeError) as error:  # of a CTranslate2 whose specs are not those we know
        version = library().__version__
        raise ConfigError(
            f"CTranslate2 {version} does not take this model ({error}); the native engine runs it"
        ) from None


def opened(network: Network, usage: Usage, stored: Stored, keep: bool, load: Callable[[Path], T]) -> T:
    """`load(folder)` of the converted model: from the cache, which is filled the first time, if it is worth keeping.

    A cached folder that is damaged is made again; where no cache can be written, a temporary one serves.
    """
    if keep:
        entry = CacheEntry("ctranslate2", fingerprint(network, usage, stored))
        try:
            folder = entry.find() or entry.keep(lambda aside: write(network, usage, aside, stored))
            str(folder).encode()  # CTranslate2 can't be given another name
            return load(folder)
        except (OSError, UnicodeEncodeError):  # no cache
            pass
    with tempfile.TemporaryDirectory(prefix="cutaway-") as name:
        try:
            write(network, usage, Path(name), stored)
        except OSError as error:
            raise CheckpointError(f"can't write the converted model to {name}: {error.strerror}") from None
        return load(Path(name))


def fingerprint(network: Network, usage: Usage, stored: Stored) -> str:
    """Changes with any weight, the config, the tokens that start and end a text, and the library's version."""
    tensors = {name: tensor for name, tensor in network.state_dict().items() if isinstance(tensor, Tensor)}
    with ThreadPoolExecutor(2) as pool:  # hashing lets other threads run
        hashes = list(pool.map(_hash, tensors.values()))
    facts = [
        LAYOUT, library().__version__, stored, network.config.to_json(), usage.start, usage.end,
        list(zip(tensors, hashes, strict=True)),
    ]  # fmt: skip
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]


def _hash(tensor: Tensor) -> str:
    plain = tensor.detach().cpu().contiguous()
    return f"{plain.dtype} {list(plain.shape)} {hashlib.sha256(raw_bytes(plain)).hexdigest()}"
