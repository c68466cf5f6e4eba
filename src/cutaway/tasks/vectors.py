"""Vectors into a safetensors file, one after the other: as many as come, in constant memory."""

import json
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path

from torch import Tensor

from cutaway.checkpoints.weights import raw_bytes
from cutaway.errors import CheckpointError
from cutaway.files import file_mode

_ROOM = 248  # bytes for the header, which is written last: how many vectors there are is known only then


def write_vectors(path: Path, vectors: Iterator[Tensor]) -> tuple[int, int]:
    """The tensor `vectors` [n, D], float32, in a file that appears whole or not at all; -> (n, D)."""
    n, width, path = 0, 0, path.resolve()  # a link stays one
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        aside = Path(name)
        try:
            with open(handle, "wb") as file:
                file.write(b" " * (8 + _ROOM))
                for vector in vectors:
                    n, width = n + 1, len(vector)
                    file.write(raw_bytes(vector.float().cpu().contiguous()))
                tensor = {"dtype": "F32", "shape": [n, width], "data_offsets": [0, 4 * n * width]}
                header = json.dumps({"__metadata__": {"format": "pt"}, "vectors": tensor}).encode()
                file.seek(0)
                file.write(struct.pack("<Q", _ROOM) + header.ljust(_ROOM))
            aside.chmod(file_mode(path))  # mkstemp makes files that only their owner may read
            aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)
    except OSError as error:
        raise CheckpointError(f"can't write {path}: {error.strerror or error}") from None
    return n, width
