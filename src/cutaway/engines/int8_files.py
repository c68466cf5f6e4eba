"""int8 weights kept on disk: quantised once, mapped the next time; the float ones then need not be read at all.

They lie in the user's cache, never beside the model: its folder may be a package's, the hub's, or somebody else's.
"""

import hashlib
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from cutaway.checkpoints.weights import outgoing, write_weights
from cutaway.engines.quantization import Form
from cutaway.files import cache_folder

LARGEST = 10_000_000_000
"""Bytes of all files together: beyond it, those that were not used for the longest time are removed."""

_BESIDE = "cutaway-int8.safetensors"  # what earlier versions wrote into the model's folder
_ABANDONED = 24 * 3600  # seconds after which what a killed process was writing is removed

log = logging.getLogger("cutaway")


def identity(folder: Path, form: Form) -> str:
    """The weight files of a model: their names, sizes and times, and how they were quantised (see quantization.py). A
    model that was saved again has another, and so has a processor of another kind."""
    files = sorted(folder.glob("*.safetensors")) if folder.is_dir() else [folder]
    facts = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files if path.name != _BESIDE]
    return hashlib.sha256(repr((facts, form)).encode()).hexdigest()


def place(folder: Path) -> Path:
    """The file of the model in this folder; OSError where there can be no cache."""
    name = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
    return cache_folder("int8") / f"{name}.safetensors"


def read(folder: Path, form: Form) -> dict[str, Tensor] | None:
    """What `keep` wrote for the weights that are there now; None if there is nothing."""
    try:
        path = place(folder)
        with safe_open(path, framework="pt") as file:
            if (file.metadata() or {}).get("identity") != identity(folder, form):
                return None
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # no mapping
    except (OSError, SafetensorError):
        return None
    with suppress(OSError):
        os.utime(path)  # used just now
    return found


def keep(folder: Path, tensors: Mapping[str, Tensor], form: Form) -> None:
    """Writes them, whole or not at all; a full or read-only disk only costs the next start some time."""
    if sum(tensor.nbytes for tensor in tensors.values()) > LARGEST:
        return
    try:
        path = place(folder)
        with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as aside:
            made = Path(aside) / path.name
            contents = {name: outgoing(tensor) for name, tensor in tensors.items()}
            write_weights(made, contents, {"identity": identity(folder, form)})
            os.replace(made, path)
        _drop_oldest(path.parent)
    except OSError as error:
        _warn(f"int8 weights can't be kept in the cache ({error.strerror or error}), and are computed at every start")


@cache
def _warn(text: str) -> None:
    """Once in a process."""
    log.warning("%s; CUTAWAY_CACHE names another folder", text)


def _drop_oldest(folder: Path) -> None:
    """Until all files together are at most LARGEST; other processes may do the same at the same time."""
    for aside in folder.glob(".*"):
        with suppress(OSError):
            if time.time() - aside.stat().st_mtime > _ABANDONED:
                shutil.rmtree(aside, ignore_errors=True)
    found = []
    for path in folder.glob("*.safetensors"):
        with suppress(OSError):
            found.append((path.stat().st_mtime_ns, path.stat().st_size, path))
    room = LARGEST
    for _, n_bytes, path in sorted(found, reverse=True):
        room -= n_bytes
        if room < 0:
            with suppress(OSError):
                path.unlink()
