"""kernels.c as Python functions: built once by the machine's own C compiler, kept in the user's cache."""

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from cutaway.files import cache_folder

SOURCE = Path(__file__).with_name("kernels.c")
FLAGS = (
    "-O3", "-march=native", "-mprefer-vector-width=512", "-shared", "-fPIC",
    # What lets loops become vectors. Not -ffast-math, which gcc links with code that makes the whole process lose its
    # smallest numbers.
    "-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros", "-fassociative-math", "-freciprocal-math",
    "-ffinite-math-only",
)  # fmt: skip
THREADS = "-fopenmp"  # torch has loaded its own OpenMP before: the two share one pool of threads

_N, _P = ctypes.c_int64, ctypes.c_void_p
_SIGNATURES = {
    "linear": (_P, _N, _N, _P, _N, _P, _P, _P, _P, _N, _P, _P),
    "attend": (_P, _P, _P, _P, _P, _P, ctypes.POINTER(_N), ctypes.POINTER(_N), ctypes.c_float),
    "rms_norm": (_P, _N, _N, _P, ctypes.c_float, _P),
    "turn": (_P, _P, _P, _P, ctypes.POINTER(_N), ctypes.POINTER(_N)),
}


@dataclass(frozen=True)
class Kernels:
    """The functions of kernels.c; tensors are given by their addresses."""

    linear: Callable[..., None]
    attend: Callable[..., None]
    rms_norm: Callable[..., None]
    turn: Callable[..., None]
    multiplies_bytes: bool  # whether `linear` does anything: the processor needs an instruction for it


@cache
def kernels() -> Kernels | None:
    """The compiled functions; None on a machine that can't build them. CUTAWAY_KERNELS=0 goes without."""
    if os.environ.get("CUTAWAY_KERNELS") == "0":
        return None
    try:
        library = ctypes.CDLL(str(_built()))
    except (OSError, subprocess.SubprocessError):
        return None
    functions: dict[str, Any] = {}
    for name, signature in _SIGNATURES.items():
        functions[name] = getattr(library, name)
        functions[name].argtypes, functions[name].restype = signature, None
    return Kernels(**functions, multiplies_bytes=bool(library.multiplies_bytes()))


def _built() -> Path:
    """The library's path; built if this source, compiler and processor have none yet."""
    compiler = _compiler()
    identity = [SOURCE.read_text(), *compiler, *FLAGS, torch.__version__, platform.machine()]
    identity += [f"{name}={value}" for name, value in sorted(torch.cpu.get_capabilities().items())]
    digest = hashlib.sha256("\n".join(map(str, identity)).encode()).hexdigest()[:16]
    folder = cache_folder("kernels")
    library = folder / f"{digest}.so"
    if library.is_file():
        return library
    with tempfile.TemporaryDirectory(dir=folder) as beside:
        made = Path(beside) / library.name
        plainer = tuple(flag for flag in FLAGS if not flag.startswith("-m"))  # a compiler that knows this one not
        for flags in ((*FLAGS, THREADS), FLAGS, (*plainer, THREADS), plainer):
            done = subprocess.run(
                [*compiler, *flags, str(SOURCE), "-o", str(made), "-lm"],
                capture_output=True, timeout=60, check=False,
            )  # fmt: skip
            if done.returncode == 0:
                os.replace(made, library)
                return library
    raise OSError(f"{compiler[0]} can't build {SOURCE.name}")


def _compiler() -> list[str]:
    """The machine's C compiler, or the one Python was built with."""
    for name in (os.environ.get("CC"), "cc", "gcc", "clang", sysconfig.get_config_var("CC")):
        command = shlex.split(name or "")
        if command and shutil.which(command[0]):
            return command
    raise OSError("no C compiler")
