"""int8 weights kept on disk: quantised once, mapped the next time; the float ones then need not be read at all."""

import hashlib
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from cutaway.files import cache_folder

NAME = "cutaway-int8.safetensors"


def identity(folder: Path, largest_four: int | None) -> str:
    """The weight files of a model: their names, sizes and times, and how they were quantised (see `int8.quantized`). A
    model that was saved again has another, and so has a processor of another kind."""
    files = sorted(folder.glob("*.safetensors")) if folder.is_dir() else [folder]
    facts = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files if path.name != NAME]
    return hashlib.sha256(repr((facts, largest_four)).encode()).hexdigest()


def places(folder: Path) -> list[Path]:
    """Beside the model; or in the user's cache, where its folder is not ours to write (the hub's, a read-only one)."""
    beside = folder.is_dir() and "snapshots" not in folder.resolve().parts and os.access(folder, os.W_OK)
    found = [folder / NAME] if beside else []
    with suppress(OSError):  # a home that can't be written
        name = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
        found.append(cache_folder("int8") / f"{name}.safetensors")
    return found


def read(folder: Path, largest_four: int | None) -> dict[str, Tensor] | None:
    """What `keep` wrote for the weights that are there now; None if there is nothing."""
    wanted = identity(folder, largest_four)
    for path in places(folder):
        try:
            with safe_open(path, framework="pt") as file:
                if (file.metadata() or {}).get("identity") == wanted:
                    return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # no mapping
        except (OSError, SafetensorError):
            continue
    return None


def keep(folder: Path, tensors: Mapping[str, Tensor], largest_four: int | None) -> None:
    """Writes them, whole or not at all; a full or read-only disk only costs the next start some time."""
    for path in places(folder):
        try:
            with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as aside:
                made = Path(aside) / path.name
                contents = {name: tensor.contiguous() for name, tensor in tensors.items()}
                save_file(contents, made, metadata={"identity": identity(folder, largest_four)})
                made.chmod(0o644)  # as the model's other files: whoever may read them may read this
                os.replace(made, path)
            return
        except (OSError, SafetensorError):
            continue
