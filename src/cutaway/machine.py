"""What this machine is good at: the few settings that make torch faster on it, each with the measurement behind it."""

import ctypes
import platform
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

import torch

from cutaway.parts.tap import anybody_listens

X = TypeVar("X")
R = TypeVar("R")

_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8  # malloc.h


def keep_freed_memory() -> bool:
    """Tells glibc to keep freed blocks instead of giving them back to the kernel; True if it did.

    A training step allocates and frees the same large tensors again and again. By default glibc maps each anew, so
    every operation page-faults through its output: cloning 164 MB took 49 ms on an EPYC, and 11 ms with this setting
    (51 and 42 on a Xeon). The price is 10 to 40 % more resident memory. Threads would get heaps of their own, too small
    for large tensors, and wait for each other's; with one heap for all, two threads train 1.15 times as fast. Call it
    once, when a training (or a benchmark) begins; it holds for the process.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    settings = ((_M_ARENA_MAX, 1), (_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, -1))  # -1: never
    done = [bool(mallopt(name, value)) for name, value in settings]
    return all(done)


def has_fast_bfloat16(device: str = "cpu") -> bool:
    """Whether bfloat16 products are faster than float32 ones.

    CPUs with AVX512-BF16 or AMX double their speed (400 against 180 GFLOP/s on an EPYC). Others emulate it: 55 against
    300 GFLOP/s on a Xeon that hides these instructions.
    """
    if device != "cpu":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False)) if device.startswith("cuda") else False
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


def mixed_precision(device: str = "cpu") -> torch.autocast:
    """bfloat16 autocast where that is faster, otherwise a context that changes nothing: float32 is then both faster and
    more exact."""
    return torch.autocast(device.split(":")[0], dtype=torch.bfloat16, enabled=has_fast_bfloat16(device))


def side_by_side(function: Callable[[X], R], items: Sequence[X]) -> Iterator[R]:
    """`map` with a thread of its own for every core, results in order.

    A core that computes a batch of its own never waits for the others; torch's way, all of them on one batch, waits
    after each of a hundred steps. Few items, and those that somebody listens to, are taken one by one.
    """
    n = torch.get_num_threads()
    if n == 1 or len(items) < 2 * n or anybody_listens():
        yield from map(function, items)
        return
    pool = ThreadPoolExecutor(n, "cutaway", initializer=torch.set_num_threads, initargs=(1,))
    try:
        futures = [pool.submit(copy_context().run, function, item) for item in items]
        for future in futures:
            yield future.result()
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(n)  # part of what a thread sets holds for all
