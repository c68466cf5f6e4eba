"""The C files of this folder as functions: built once by the machine's own compiler, kept in the user's cache."""

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import stat
import subprocess
import sysconfig
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from cutaway.cache import cache_folder, user_cache, why_not_private
from cutaway.errors import ConfigError
from cutaway.machine import threads
from cutaway.machine.environment import KERNELS, forced

threads.limit()  # here, as every computation imports this module

SOURCES = sorted(Path(__file__).parent.glob("*.[ch]"))
TARGETS = {"native": ("-march=native", "-mprefer-vector-width=512"), "avx2": ("-march=x86-64-v3",)}
"""Processors that they are built for: this one, or any with AVX2 (and no VNNI)."""
FLAGS = (
    "-O3", "-shared", "-fPIC",
    # For vectorised loops. Not -ffast-math: gcc links it with code that flushes denormals to zero in the whole process.
    "-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros", "-fassociative-math", "-freciprocal-math",
    "-ffinite-math-only",
)  # fmt: skip
THREADS = "-fopenmp"  # torch has loaded its own OpenMP before: the two share one pool of threads

_N, _P, _F, _R = ctypes.c_int64, ctypes.c_void_p, ctypes.c_float, ctypes.c_double


class _Record(ctypes.Structure):
    """A struct of kernels.h or stack.c. It has tensors' addresses only: its maker keeps the tensors alive."""


class LinearRecord(_Record):
    _fields_ = (
        ("weight", _P), ("multipliers", _P), ("scales", _P), ("totals", _P), ("bias", _P),
        ("n_in", _N), ("n_out", _N), ("activation", _N),
    )  # fmt: skip


class Axes(_Record):
    _fields_ = (("at", _P), ("row", _N), ("head", _N), ("token", _N))


class Sizes(_Record):
    _fields_ = tuple((name, _N) for name in ("rows", "heads", "kv_heads", "queries", "keys", "width", "repeats"))


class NormRecord(_Record):
    _fields_ = (("weight", _P), ("bias", _P), ("epsilon", _R))


class RotationRecord(_Record):
    _fields_ = (("cosines", _P), ("sines", _P), ("row", _N))


class DropoutRecord(_Record):
    _fields_ = (("seed", ctypes.c_uint64), ("level", _N))


class BlockRecord(_Record):
    _fields_ = (
        *((name, LinearRecord) for name in ("qkv", "out", "cross_q", "cross_out", "up", "down")),
        *((name, NormRecord) for name in ("self_norm", "cross_norm", "feedforward_norm")),
    )  # fmt: skip


class StackRecord(_Record):
    _fields_ = (
        ("blocks", ctypes.POINTER(BlockRecord)), ("n_blocks", _N), ("width", _N), ("heads", _N), ("kv_heads", _N),
        ("d_head", _N), ("d_ff", _N), ("post", _N), ("cross", _N), ("gate", _N), ("scale", _R), ("cross_scale", _R),
        ("last", NormRecord),
    )  # fmt: skip


class CallRecord(_Record):
    _fields_ = (
        ("rows", _N), ("queries", _N), ("past", _N), ("room", _N), ("memory_keys", _N), ("memory_room", _N),
        ("repeats", _N), ("keys", _P), ("values", _P), ("memory_k", _P), ("memory_v", _P),
        ("bias", ctypes.POINTER(Axes)), ("memory_bias", ctypes.POINTER(Axes)), ("row_index", _P),
        ("rotation", ctypes.POINTER(RotationRecord)),
    )  # fmt: skip


def _to(record: type[_Record]) -> Any:
    return ctypes.POINTER(record)


class _Status(_N):  # type: ignore[misc, valid-type]
    """The status of a kernel that allocates memory: 0, or 1 if there was none."""


_SIGNATURES: dict[str, tuple[tuple[Any, ...], Any]] = {
    "linear": ((_to(LinearRecord), _P, _N, _P, _P), None),
    "linear_room": ((_N, _N), _N),
    "attend": ((_to(Axes), _to(Axes), _to(Axes), _to(Axes), _P, _P, _to(Sizes), _F), _Status),
    "norm": ((_to(NormRecord), _P, _N, _N, _P), None),
    "rotate": ((_to(RotationRecord), _to(Axes), _to(Axes), _to(Sizes)), None),
    "top": ((_P, _N, _N, _N, _P, _P, _P), None),
    "padded": ((_N,), _N),
    "attend_forward": (
        (_to(Axes), _to(Axes), _to(Axes), _to(Axes), _P, _to(Axes), _to(Sizes), _F, _to(DropoutRecord)),
        _Status,
    ),
    "attend_backward": (
        (_to(Axes), _to(Axes), _to(Axes), _P, *(_to(Axes),) * 4, _to(Sizes), _F, _to(DropoutRecord)),
        _Status,
    ),
    "add_dropped": ((_P, _P, _N, _to(DropoutRecord), _P), None),
    "add_norm_forward": ((_P, _P, _to(NormRecord), _N, _N, _to(DropoutRecord), _P, _P, _P), None),
    "add_norm_backward": ((_P, _P, _P, _to(NormRecord), _N, _N, _to(DropoutRecord), _P, _P, _P, _P), None),
    "vocabulary_loss": ((_P, _P, _N, _N, _F, _P, _P), None),
    "agreeing_loss": ((_P, _P, _N, _N, _F, _F, _P, _P, _P), None),
    "run_stack": ((_to(StackRecord), _to(CallRecord), _P), _Status),
    "tile_columns": ((), _N),
    "group_size": ((), _N),
    "largest_four": ((), _N),
}


@dataclass(frozen=True)
class Kernels:
    """The functions of this folder's C files."""

    digest: str
    """A hash of sources, compiler, flags and processor: kernels of another digest may round differently."""
    linear: Callable[..., None]
    linear_room: Callable[[int, int], int]
    attend: Callable[..., None]
    norm: Callable[..., None]
    rotate: Callable[..., None]
    top: Callable[..., None]
    padded: Callable[[int], int]
    attend_forward: Callable[..., None]
    attend_backward: Callable[..., None]
    add_dropped: Callable[..., None]
    add_norm_forward: Callable[..., None]
    add_norm_backward: Callable[..., None]
    vocabulary_loss: Callable[..., None]
    agreeing_loss: Callable[..., None]
    run_stack: Callable[..., None]
    tile: int
    """Columns of a tile, in which `linear` wants a weight packed. 0: the processor has no instruction for it, and
    `linear` does nothing."""
    group: int
    """Numbers of a weight's row that share a multiplier."""
    largest_four: int | None
    """The largest sum of four weights of one sign, where `linear` adds their products in 16 bits; None: it does not."""

    @property
    def multiply(self) -> bool:
        return self.tile > 0


@cache  # a step of a small model calls it a hundred times
def kernels() -> Kernels | None:
    """The functions, compiled; None on a machine that can't build them, or with CUTAWAY_KERNELS=off."""
    return _loaded(forced(KERNELS) or "auto")[0]


def why_not() -> str | None:
    """Why there are no kernels; None if there are."""
    return _loaded(forced(KERNELS) or "auto")[1]


@cache
def _loaded(choice: str) -> tuple[Kernels | None, str | None]:
    """The kernels, or why there are none."""
    if choice == "off":
        return None, f"{KERNELS.name}=off"
    target = "native" if choice == "auto" else choice
    try:
        if target == "avx2" and not torch.cpu.get_capabilities().get("avx2"):
            raise OSError("this processor has no AVX2")
        return _functions(_built(target)), None
    except (OSError, subprocess.SubprocessError) as error:
        if choice != "auto":
            raise ConfigError(f"{KERNELS.name}={choice}, but {error}; mend that, or unset the variable") from None
        return None, str(error)


def _functions(built: Path) -> Kernels:
    opened = f"/proc/self/fd/{_opened(built)}"  # the file that was checked, even if another has its name by now
    library = ctypes.CDLL(opened if os.path.exists(opened) else str(built))
    functions: dict[str, Any] = {}
    for name, (arguments, result) in _SIGNATURES.items():
        functions[name] = getattr(library, name)
        functions[name].argtypes, functions[name].restype = arguments, result
        if result is _Status:
            functions[name].errcheck = _check_status
    constants = {
        "tile": functions.pop("tile_columns")(),
        "group": functions.pop("group_size")(),
        "largest_four": functions.pop("largest_four")() or None,
    }
    return Kernels(built.stem.split("-")[0], **functions, **constants)


def _check_status(status: ctypes.c_int64, function: Any, _: object) -> None:
    if status.value:
        raise MemoryError(f"no memory for the kernel {function.__name__}")


def _built(target: str) -> Path:
    """The library's path; built if this source, compiler and processor have none yet.

    Its name ends in the digest of its bytes: a damaged library is never loaded, and built again. So is one that other
    users may have written: a library runs with all rights of the process that loads it.
    """
    command, flags = compiler(), (*FLAGS, *TARGETS[target])
    identity = [path.read_text(encoding="utf-8") for path in SOURCES]
    identity += [*command, *flags, torch.__version__, platform.machine()]
    identity += [f"{name}={value}" for name, value in sorted(torch.cpu.get_capabilities().items())]
    digest = _digest("\n".join(identity).encode())
    folder = _folder()
    for library in folder.glob(f"{digest}-*.so"):
        try:
            os.close(_opened(library))
            return library
        except OSError:
            library.unlink()
    with tempfile.TemporaryDirectory(dir=folder) as beside:
        made = Path(beside) / "made.so"
        sources = [str(path) for path in SOURCES if path.suffix == ".c"]
        plainer = FLAGS if target == "native" else flags  # for a compiler that does not know this processor
        for tried in ((*flags, THREADS), flags, (*plainer, THREADS), plainer):
            done = subprocess.run(
                [*command, *tried, *sources, "-o", str(made), "-lm"],
                capture_output=True, timeout=300, check=False,
            )  # fmt: skip
            if done.returncode == 0:
                library = folder / f"{digest}-{_digest(made.read_bytes())}.so"
                made.chmod(0o700)
                os.replace(made, library)
                return library
    raise OSError(f"{command[0]} can't build the kernels")


def _folder() -> Path:
    """A folder of the cache; if other users may write into it, of the user's own cache on this system."""
    try:
        return cache_folder("kernels")
    except PermissionError:
        return cache_folder("kernels", user_cache())


def _opened(library: Path) -> int:
    """A handle of the library, which stays open; OSError if its bytes do not have the digest in its name, or if other
    users may have written them."""
    handle = os.open(library, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0))
    facts = os.fstat(handle)
    reason = why_not_private(facts)
    if reason is None and stat.S_ISREG(facts.st_mode):
        with open(handle, "rb", closefd=False) as file:
            if library.stem.partition("-")[2] == _digest(file.read()):
                return handle
    os.close(handle)
    raise OSError(f"{library} is not what was built ({reason or 'it is damaged'})")


def _digest(contents: bytes) -> str:
    return hashlib.sha256(contents).hexdigest()[:16]


def compiler() -> list[str]:
    """The machine's C compiler, or the one Python was built with."""
    for name in (os.environ.get("CC"), "cc", "gcc", "clang", sysconfig.get_config_var("CC")):
        words = shlex.split(name or "")
        if words and shutil.which(words[0]):
            return words
    raise OSError("there is no C compiler (cc, gcc or clang)")
