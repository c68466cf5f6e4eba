"""Devices and dtypes by name, and the errors of unknown, missing and full devices."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from cutaway.errors import CheckpointError, CutawayError, unknown

CHOICE = "auto, cpu, cuda (of several GPUs cuda:1, …) or mps"
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16, "float64": torch.float64}


class DeviceError(CutawayError, ValueError):
    """A device that is unknown, not available or out of memory."""


def device_of(name: str | torch.device = "auto", key: str = "device") -> torch.device:
    """The device of that name; `auto` is a GPU of NVIDIA's or AMD's (cuda), else Apple's (mps), else the CPU.

    The variable CUTAWAY_DEVICE replaces `auto`. `key` names the setting in errors. Any other kind of device that torch
    can use here (xpu, …) has torch's name.
    """
    if name == "auto" and (forced := os.environ.get("CUTAWAY_DEVICE") or name) != "auto":
        return device_of(forced, "CUTAWAY_DEVICE")
    if name == "auto":
        name = "cuda" if _count("cuda") else "mps" if _count("mps") else "cpu"
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        raise DeviceError(f"{key}={str(name)[:100]!r} is no device; choose {CHOICE}") from None
    if device.type == "cpu":
        return torch.device("cpu")
    n = _count(device.type)
    if n == 0:
        raise DeviceError(f"{key}={str(name)!r}, but torch sees no such device here; choose cpu or auto")
    if device.index is not None and device.index >= n:
        here = f"only {device.type}:0" if n == 1 else f"{device.type}:0 to {device.type}:{n - 1}"
        raise DeviceError(f"{key}={str(name)!r}, but torch sees {here} here; choose one of these, cpu or auto")
    return device


def _count(kind: str) -> int:
    """The number of devices of a kind that torch can use."""
    try:
        module: Any = torch.get_device_module(kind)
    except RuntimeError:  # torch has none: "meta"
        return 0
    return int(module.device_count()) if hasattr(module, "is_available") and module.is_available() else 0


def dtype_of(dtype: torch.dtype | str | None) -> torch.dtype | None:
    """The dtype of that name; None: unchanged."""
    if dtype is None or (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        return dtype
    if str(dtype) not in DTYPES:
        raise CheckpointError(unknown("dtype", str(dtype).removeprefix("torch."), DTYPES))
    return DTYPES[str(dtype)]


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error is a failed allocation: on some devices only its message says so."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and any(words in str(error) for words in ("out of memory", "allocate memory"))
    )


@contextmanager
def memory_explained(device: torch.device) -> Iterator[None]:
    """Turns a failed allocation, while a model is loaded or runs, into a DeviceError with a way out."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        elsewhere = "" if device.type == "cpu" else ", compute on the CPU (device='cpu', --device cpu)"
        raise DeviceError(
            f"{device} is out of memory: load the weights in half precision (dtype='bfloat16', --dtype bfloat16)"
            f"{elsewhere}, give less at a time, or choose a smaller model"
        ) from None
