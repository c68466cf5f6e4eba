"""The processor: its name, cores and instructions. They say what may be tried, not what is fast."""

import os
import platform
from functools import cache
from pathlib import Path

import torch


@cache
def name() -> str:
    """The system's name for it: `AMD EPYC`."""
    return _cpuinfo().get("model name") or platform.processor() or platform.machine()


@cache
def identity() -> tuple[str, ...]:
    """The facts that identify this processor: clouds give the same name to several generations."""
    model = [_cpuinfo().get(key, "") for key in ("model name", "cpu family", "model", "stepping")]
    return (platform.system(), platform.machine(), name(), *model, *instructions())


@cache
def instructions() -> tuple[str, ...]:
    """The instruction sets that torch found: avx2, avx512_bf16, …"""
    return tuple(sorted(name for name, value in torch.cpu.get_capabilities().items() if value is True))


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def has_bfloat16() -> bool:
    """Whether there are instructions for bfloat16; without them torch emulates it, which is never faster."""
    return bool({"avx512_bf16", "amx_bf16", "bf16"} & set(instructions()))  # the last: Arm's


def _cpuinfo() -> dict[str, str]:
    """The first processor of /proc/cpuinfo; nothing on other systems."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    lines = (line.split(":", 1) for line in text.split("\n\n")[0].splitlines() if ":" in line)
    return {key.strip(): value.strip() for key, value in lines}
