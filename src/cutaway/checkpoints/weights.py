"""Tensors on disk, as safetensors: one file, or several with an index.

Reading maps the file into memory: nothing is copied until it is used or changed, and changes never reach the file. The
header is checked here before it is used. Writing goes tensor by tensor, so that saving needs no second copy.
"""

import ctypes
import json
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from cutaway.errors import CheckpointError
from cutaway.files import no_link, parse_json, read_json

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "model.pt", "pytorch_model.pt", "model.pth")

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_LARGEST_HEADER = 100_000_000
_MOST_TENSORS = 20_000


@dataclass(frozen=True)
class HeaderEntry:
    """A tensor's entry in a header."""

    file: Path
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int  # of its bytes in the file

    @property
    def n_bytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


class Weights(Mapping[str, HeaderEntry]):
    """The tensors of a folder, by name: their headers, and each tensor when it is asked for."""

    def __init__(self, files: Sequence[Path]) -> None:
        self.entries: dict[str, HeaderEntry] = {}
        for file in files:
            for name, entry in read_header(file).items():
                if name in self.entries:
                    raise CheckpointError(
                        f"{name} is both in {self.entries[name].file.name} and in {file.name} of {file.parent}; "
                        "shards must not overlap: copy the model again"
                    )
                self.entries[name] = entry
        self._open: dict[Path, Any] = {}

    def __getitem__(self, name: str) -> HeaderEntry:
        return self.entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def tensor(self, name: str) -> Tensor:
        """The tensor, mapped from its file: pages are read when they are touched."""
        file = self.entries[name].file
        try:
            if file not in self._open:
                self._open[file] = safe_open(file, framework="pt")
            return self._open[file].get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{file} is not a whole safetensors file ({error}); copy it again") from None

    def read(self, name: str) -> Tensor:
        """The tensor, copied from its file: for what will be copied anyway, so that no page of it stays mapped."""
        entry = self.entries[name]
        tensor = torch.empty(entry.shape, dtype=entry.dtype)
        try:
            with entry.file.open("rb") as stream:
                stream.seek(entry.start)
                if entry.n_bytes and stream.readinto(raw_bytes(tensor)) != entry.n_bytes:
                    raise CheckpointError(f"{entry.file} ends before {name} does; was it changed meanwhile?")
        except OSError as error:
            raise CheckpointError(f"{entry.file} can't be read: {error.strerror}") from None
        return tensor


def open_weights(folder: Path) -> Weights:
    """The safetensors of a model's folder: model.safetensors, or the shards that its index names."""
    if (folder / WEIGHTS).is_file():
        return Weights([folder / WEIGHTS])
    if (folder / INDEX).is_file():
        return _open_shards(folder)
    pickle = next((name for name in PICKLES if (folder / name).exists()), None)
    if pickle is not None:
        raise CheckpointError(
            f"{folder} holds its weights as {pickle}, a pickle, which can run any code when it is opened; "
            f"convert it once: cutaway convert --from-pickle {folder} NEW-FOLDER"
        )
    raise CheckpointError(f"{folder} has no {WEIGHTS}; is the copy complete?")


def _open_shards(folder: Path) -> Weights:
    index = read_json(folder / INDEX, _LARGEST_HEADER)
    places = index.get("weight_map")
    if not isinstance(places, dict) or not places or not all(isinstance(file, str) for file in places.values()):
        raise CheckpointError(f"{folder / INDEX} has no weight_map from tensors to files; copy it again")
    names = sorted(set(places.values()))
    for name in names:
        if PurePosixPath(name).name != name or "\\" in name or not name.endswith(".safetensors"):
            raise CheckpointError(
                f"{folder / INDEX} names the file {name!r}; shards are .safetensors files of the same folder"
            )
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise CheckpointError(
            f"{folder} lacks {len(missing)} of its {len(names)} shards ({', '.join(missing[:3])}); copy them too"
        )
    weights = Weights([folder / name for name in names])
    astray = [name for name, entry in weights.items() if places.get(name) != entry.file.name]
    astray += [name for name in places if name not in weights]
    if astray:
        raise CheckpointError(
            f"{folder / INDEX} and its shards disagree about {len(astray)} tensors ({', '.join(astray[:3])}); "
            "they belong to different copies: fetch the model again"
        )
    return weights


def read_header(file: Path) -> dict[str, HeaderEntry]:
    """The entries of the header, checked: every tensor lies in the file, none over another."""
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            start = stream.read(8)
            n = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
            if not 2 <= n <= min(size - 8, _LARGEST_HEADER):
                raise ValueError(f"its first 8 bytes give a header of {n:,} bytes, in a file of {size:,}")
            header = parse_json(stream.read(n))
        return _entries(file, header, 8 + n, size - 8 - n)
    except OSError as error:
        raise CheckpointError(f"{file} can't be read: {error.strerror}") from None
    except ValueError as error:
        raise CheckpointError(f"{file} is not a whole safetensors file ({error}); copy or save it again") from None


def _entries(file: Path, header: Any, first: int, n_data: int) -> dict[str, HeaderEntry]:
    if not isinstance(header, dict):
        raise ValueError("its header is not an object")
    header.pop("__metadata__", None)
    if len(header) > _MOST_TENSORS:
        raise ValueError(f"its header has {len(header):,} tensors; cutaway reads up to {_MOST_TENSORS:,}")
    found: dict[str, HeaderEntry] = {}
    places: list[tuple[int, int, str]] = []
    for name, tensor in header.items():
        if len(name) > 1000 or not name.isprintable():
            raise ValueError(f"the header has the name {name[:80]!r}…, of {len(name):,} characters")
        match tensor:
            case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [int(begin), int(end)], **rest} if (
                not rest
            ):
                pass
            case _:
                raise ValueError(f"the header's entry of {name!r} is not dtype, shape and data_offsets")
        if dtype not in DTYPES:
            raise ValueError(f"{name!r} has dtype {dtype[:40]!r}; cutaway reads {', '.join(DTYPES)}")
        if len(shape) > 8 or not all(type(length) is int and 0 <= length < 2**48 for length in shape):
            raise ValueError(f"{name!r} has shape {str(shape)[:80]}")
        found[name] = HeaderEntry(file, DTYPES[dtype], tuple(shape), first + begin)
        if begin < 0 or end - begin != found[name].n_bytes:
            raise ValueError(
                f"{name!r} of shape {str(shape)[:80]} and dtype {dtype} lies at {str(begin)[:40]} to {str(end)[:40]}"
            )
        places.append((begin, end, name))
    reached = 0
    for begin, end, name in sorted(places):
        if begin != reached:
            raise ValueError(f"{name!r} begins at byte {begin}, where {reached} is expected")
        reached = end
    if reached != n_data:
        raise ValueError(f"its tensors take {reached:,} bytes, and it holds {n_data:,}")
    return found


@dataclass(frozen=True)
class TensorToWrite:
    """A tensor to be written: known by shape at once, made when its turn comes."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    make: Callable[[], Tensor]


def tensor_to_write(tensor: Tensor) -> TensorToWrite:
    return TensorToWrite(tensor.dtype, tuple(tensor.shape), lambda: tensor)


def narrowed(tensors: Iterable[Tensor], dtype: torch.dtype | None) -> torch.dtype:
    """`dtype`, if it holds every number of these tensors; else their own: new weights are not rounded."""
    tensors = list(tensors)
    own = tensors[0].dtype
    if dtype in (None, own) or not all(_same(tensor.to(dtype).to(own), tensor) for tensor in tensors):
        return own
    return dtype


def _same(one: Tensor, other: Tensor) -> bool:
    """Number for number; NaN, which equals nothing, stands where NaN does."""
    return torch.equal(one, other) or bool(((one == other) | (one.isnan() & other.isnan())).all())


def write_weights(file: Path, tensors: Mapping[str, TensorToWrite], metadata: Mapping[str, str] | None = None) -> None:
    """A safetensors file, written tensor by tensor; the largest alignment first, as the format advises."""
    order = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    header: dict[str, Any] = {"__metadata__": {"format": "pt", **(metadata or {})}}
    place = 0
    for name in order:
        tensor = tensors[name]
        end = place + prod(tensor.shape) * tensor.dtype.itemsize
        header[name] = {
            "dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [place, end]
        }  # fmt: skip
        place = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    with open(file, "wb", opener=no_link) as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        for name in order:
            made = tensors[name].make().detach().cpu().contiguous()
            assert tuple(made.shape) == tensors[name].shape
            assert made.dtype == tensors[name].dtype
            if made.numel():
                stream.write(raw_bytes(made))


def raw_bytes(tensor: Tensor) -> ctypes.Array[ctypes.c_ubyte]:
    """The memory of a contiguous tensor; without numpy, which torch does not need."""
    return (ctypes.c_ubyte * (tensor.numel() * tensor.dtype.itemsize)).from_address(tensor.data_ptr())
