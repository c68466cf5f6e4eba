"""int8 weights kept on disk: quantised once, mapped the next time; the float ones then need not be read at all.

They lie in the user's cache, never beside the model: its folder may be a package's, the hub's, or somebody else's.
"""

import hashlib
import logging
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from cutaway.cache import CacheEntry
from cutaway.checkpoints.weights import WEIGHTS, tensor_to_write, write_weights
from cutaway.engines.quantization import WeightFormat

LARGEST = 10_000_000_000
"""Bytes of all files together: beyond it, those that were not used for the longest time are removed."""

_BESIDE = "cutaway-int8.safetensors"  # what earlier versions wrote into the model's folder

log = logging.getLogger("cutaway")


def identity(folder: Path, form: WeightFormat) -> str:
    """The weight files of a model: names, sizes, times, and how they were quantised (see quantization.py). A model
    that was saved again has another, and so has a processor of another kind. No program can set the time of a file's
    last change (ctime), so one that was put in another's place is noticed without being read."""
    files = sorted(folder.glob("*.safetensors")) if folder.is_dir() else [folder]
    facts = [(path.name, path.stat()) for path in files if path.name != _BESIDE]
    told = [(name, each.st_size, each.st_mtime_ns, each.st_ctime_ns) for name, each in facts]
    return hashlib.sha256(repr((told, form)).encode()).hexdigest()


def entry(folder: Path, form: WeightFormat) -> CacheEntry:
    """The place of the model in this folder; its weights of before go when new ones come."""
    subject = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
    return CacheEntry("int8", identity(folder, form)[:32], subject)


def read(folder: Path, form: WeightFormat) -> dict[str, Tensor] | None:
    """What `keep` wrote for the weights that are there now; None if there is nothing."""
    try:
        found = entry(folder, form).find()
        if found is None:
            return None
        with safe_open(found / WEIGHTS, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # no mapping
    except (OSError, SafetensorError):
        return None


def keep(folder: Path, tensors: Mapping[str, Tensor], form: WeightFormat) -> None:
    """Writes them, whole or not at all; a full or read-only disk only costs the next start some time."""
    if sum(tensor.nbytes for tensor in tensors.values()) > LARGEST:
        return
    contents = {name: tensor_to_write(tensor) for name, tensor in tensors.items()}
    try:
        entry(folder, form).keep(lambda aside: write_weights(aside / WEIGHTS, contents), LARGEST)
    except OSError as error:
        _warn(f"int8 weights can't be kept in the cache ({error.strerror or error}), and are computed at every start")


@cache
def _warn(text: str) -> None:
    """Once in a process."""
    log.warning("%s; CUTAWAY_CACHE names another folder", text)
