"""Pickles of torch.save to safetensors, once and for all.

A pickle is a program. It is read by torch's restricted unpickler, which knows how to make tensors and little else, in a
process of its own: without our environment, and with bounds on memory, on time and on what it may write. That process
is kept beside weights_only=True because the unpickler has had holes, and takes all the memory that a pickle asks for.
All that comes back is a safetensors file, which is then opened like any other: it must fit its config.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor

from cutaway.checkpoints.hub import CONFIG, PICKLE_INDEX, is_small
from cutaway.checkpoints.huggingface import open_folder
from cutaway.checkpoints.weights import DTYPES, PICKLES, WEIGHTS, tensor_to_write, write_weights
from cutaway.errors import CheckpointError, CutawayError
from cutaway.files import atomic_folder, read_json
from cutaway.sandbox import isolated

TRUST = "torch's restricted unpickler (weights_only=True), in a process of its own with bounds on memory and time"

_LARGEST_INDEX = 100_000_000
_SPARE = 2**29  # bytes of memory beyond the weights
_UNKNOWN = 2**33  # bytes of addresses that torch and Python have at most, before they read anything
_SLOWEST = 10_000_000  # bytes a second that any machine can convert
_PROGRAM = "import sys; sys.path[:] = sys.argv[1:]; from cutaway.checkpoints.unpickle import main; main()"

Places = dict[str, str]
"""Tensor -> the shard it is in."""


def unpickle(source: Path, out: Path) -> Path:
    """Converts `source`, a folder or one file, to the folder `out`: the weights as safetensors, under the same names
    and in the same dtypes, with the config and tokenizer files. `out` is complete or not there at all."""
    files, places = find_pickles(source)
    folder = files[0].parent
    if not (folder / CONFIG).is_file():
        raise CheckpointError(f"{folder} has no {CONFIG}, which says what model the numbers in {files[0].name} make")
    with atomic_folder(out, files[0]) as aside:
        _in_its_own_process(files, places, aside / WEIGHTS)
        for path in (*folder.iterdir(), *folder.glob(f"*/{CONFIG}")):
            name = path.relative_to(folder)
            if is_small(name.as_posix()) and path.is_file():
                (aside / name).parent.mkdir(exist_ok=True)
                shutil.copyfile(path, aside / name)
        try:
            open_folder(aside)
        except CheckpointError as error:  # what does not fit now did not fit before
            raise CheckpointError(str(error).replace(str(aside), str(folder))) from None
    return out


def find_pickles(source: Path) -> tuple[list[Path], Places | None]:
    """The files to read, and which tensor an index expects in which of them (None: there is no index)."""
    source = source.absolute()
    if source.is_file() and source.name != PICKLE_INDEX:
        return [source], None
    folder = source.parent if source.is_file() else source
    found = next((folder / name for name in PICKLES if (folder / name).is_file()), None)
    if found is None:
        hint = f"; it has {WEIGHTS}, so leave out --from-pickle" if (folder / WEIGHTS).is_file() else ""
        raise CheckpointError(f"{folder} has no {PICKLES[0]}, nor another pickle of torch.save{hint}")
    if found.name != PICKLE_INDEX:
        return [found], None
    places = read_json(found, _LARGEST_INDEX).get("weight_map")
    if not isinstance(places, dict) or not places or not all(isinstance(name, str) for name in places.values()):
        raise CheckpointError(f"{found} has no weight_map from tensors to files; copy it again")
    names = sorted(set(places.values()))
    for name in names:
        if PurePosixPath(name).name != name or "\\" in name or not name.endswith(".bin"):
            raise CheckpointError(f"{found} names the file {name!r}; shards are .bin files of the same folder")
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise CheckpointError(
            f"{folder} lacks {len(missing)} of its {len(names)} shards ({', '.join(missing[:3])}); copy them too"
        )
    return [folder / name for name in names], places


def _in_its_own_process(files: Sequence[Path], places: Places | None, out: Path) -> None:
    """Runs `main` below."""
    job = {"files": [str(file) for file in files], "places": places, "out": str(out)}
    command, environment = isolated(_PROGRAM)
    what = str(files[0]) if len(files) == 1 else f"{files[0].parent} (in {len(files)} shards)"
    done = subprocess.run(command, input=json.dumps(job).encode(), env=environment, cwd=out.parent, capture_output=True)
    with suppress(ValueError):
        match json.loads(done.stdout):
            case {"done": True} if done.returncode == 0:
                return
            case {"error": str(error)}:
                raise CheckpointError(error)
    if done.returncode < 0:
        name = signal.Signals(-done.returncode).name
        raise CheckpointError(f"{what} can't be converted: reading it was stopped by {name}; it asks for too much")
    last = (done.stderr.decode(errors="replace").strip().splitlines() or ["it said nothing"])[-1][:200]
    raise CheckpointError(f"{what} can't be converted: the process that read it failed ({last})")


# In the process of its own


def main() -> None:
    """Reads a job from stdin; writes its result to stdout."""
    job = json.load(sys.stdin)
    files = [Path(file) for file in job["files"]]
    try:
        _bound(sum(file.stat().st_size for file in files))
        _convert(files, job["places"], Path(job["out"]))
        answer: dict[str, Any] = {"done": True}
    except CutawayError as error:
        answer = {"error": str(error)}
    except MemoryError:
        answer = {"error": f"{files[0]} {_TOO_LARGE}"}
    except OSError as error:
        answer = {"error": f"{job['out']} can't be written: {error.strerror or error}"}
    sys.stdout.write(json.dumps(answer))


def _bound(n_bytes: int) -> None:
    """No more memory, time and disk than weights of that size need; no core dumps, no further processes or threads."""
    torch.set_num_threads(1)
    try:
        import resource
    except ImportError:  # Windows has no such bounds
        return

    def bound(kind: int, most: int) -> None:
        with suppress(ValueError, OSError):
            hard = resource.getrlimit(kind)[1]
            most = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(kind, (most, most))

    bound(resource.RLIMIT_CORE, 0)
    bound(resource.RLIMIT_CPU, 60 + n_bytes // _SLOWEST)
    bound(resource.RLIMIT_FSIZE, n_bytes + 2**24)
    bound(resource.RLIMIT_NPROC, 0)  # root is above this one
    bound(resource.RLIMIT_AS, _address_space() + 2 * n_bytes + _SPARE)


def _address_space() -> int:
    """Bytes of virtual memory that this process has mapped; where the system does not say, more than it ever takes."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        return pages * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return _UNKNOWN


def _convert(files: Sequence[Path], places: Places | None, out: Path) -> None:
    found: dict[str, Tensor] = {}
    for file in files:
        tensors = _read(file)
        expected = tensors.keys() if places is None else {name for name, place in places.items() if place == file.name}
        astray = sorted(expected ^ tensors.keys()) + sorted(found.keys() & tensors.keys())
        if astray:
            raise CheckpointError(
                f"{file} and {PICKLE_INDEX} disagree about {len(astray)} tensors ({', '.join(astray[:3])}); "
                "they belong to different copies: fetch the model again"
            )
        found |= tensors
    # Tied weights are one tensor under several names: it is written once, under the first, as transformers does.
    once: dict[Any, str] = {}
    for name, tensor in found.items():
        place = tensor.data_ptr() if tensor.numel() else name
        once.setdefault((place, tensor.dtype, tensor.shape, tensor.stride()), name)
    n_bytes, limit = sum(_n_bytes(found[name]) for name in once.values()), sum(file.stat().st_size for file in files)
    if n_bytes > limit:
        raise CheckpointError(f"{files[0]} claims tensors of {n_bytes:,} bytes, more than the {limit:,} it can hold")
    write_weights(out, {name: tensor_to_write(found[name]) for name in once.values()})


_TOO_LARGE = "asks for more memory than weights of its size need; it is damaged, or made to do harm"


def _read(file: Path) -> dict[str, Tensor]:
    """The tensors of one file, mapped from it where its format allows."""
    with file.open("rb") as stream:
        is_zip = stream.read(4) == b"PK\x03\x04"
    try:
        if is_zip:
            with zipfile.ZipFile(file) as archive:
                if any(item.compress_type != zipfile.ZIP_STORED for item in archive.infolist()):
                    raise CheckpointError(f"{file} is compressed, which torch.save never does; it may be a zip bomb")
        data = torch.load(file, map_location="cpu", weights_only=True, mmap=is_zip)
    except CheckpointError:
        raise
    except Exception as error:  # whatever torch makes of these bytes
        raise CheckpointError(f"{file} {_reason(error)}") from None
    for key in ("state_dict", "model"):
        if isinstance(data, Mapping) and isinstance(data.get(key), Mapping):
            data = data[key]
            break
    if not isinstance(data, dict) or not data:
        raise CheckpointError(f"{file} holds {_type_name(data)}; expected names with their tensors")
    for name, tensor in data.items():
        _check(file, name, tensor)
    return {name: tensor.detach() for name, tensor in data.items()}


def _reason(error: Exception) -> str:
    text = str(error)
    if code := re.search(r"GLOBAL ([\w.]+)", text):
        return f"asks for {code[1]}, which is code and not a tensor; it was not run, and nothing was written"
    if isinstance(error, MemoryError) or "allocate memory" in text or "not enough memory" in text:
        return _TOO_LARGE
    first = (text.strip().splitlines() or [type(error).__name__])[0]
    if isinstance(error, UnpicklingError):
        first = text.rpartition("WeightsUnpickler error: ")[2].strip().partition("\n")[0]
        return f"holds something other than tensors ({first[:120]})"
    return f"is damaged or was not written by torch.save ({first[:120]}); copy it again"


def _check(file: Path, name: object, tensor: object) -> None:
    """Plain numbers under a plain name."""
    if not isinstance(name, str) or not name.isprintable() or name == "__metadata__":
        raise CheckpointError(f"{file} holds {str(name)[:80]!r}, which is no name of a tensor")
    if not isinstance(tensor, Tensor):
        raise CheckpointError(f"{file}: {name} is {_type_name(tensor)}; expected a tensor")
    if tensor.layout != torch.strided or tensor.device.type != "cpu" or tensor.is_neg():
        raise CheckpointError(f"{file}: {name} is not a plain tensor ({tensor.layout}, {tensor.device})")
    if tensor.dtype not in DTYPES.values():
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES.values())
        raise CheckpointError(f"{file}: {name} has dtype {tensor.dtype}; cutaway writes {known}")
    if _n_bytes(tensor) > tensor.untyped_storage().nbytes():
        raise CheckpointError(
            f"{file}: {name} claims {_n_bytes(tensor):,} bytes and holds {tensor.untyped_storage().nbytes():,}"
        )


def _type_name(value: object) -> str:
    """What a value is, for a message: list, an empty dict."""
    return "an empty dict" if isinstance(value, dict) and not value else type(value).__name__


def _n_bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.dtype.itemsize
