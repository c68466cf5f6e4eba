"""The speed of products and copies on this machine, which `cutaway machine` shows and sizes of work depend on."""

import time

import torch

from cutaway.machine import processor
from cutaway.machine.measurements import Numbers, best_of, measured

SIZE = 512
"""Rows and columns of the matrices: large enough for a processor's full speed, small enough for a millisecond."""
COPIED = 32 * 2**20  # bytes: more than its caches hold


def speeds() -> Numbers:
    """Products (float operations a second) in float32 and, where there are instructions for it, bfloat16, on one thread
    and on all; and the bytes a second that a copy reads and writes."""
    return measured("products", _measure)


def _measure() -> Numbers:
    dtypes = {"float32": torch.float32} | ({"bfloat16": torch.bfloat16} if processor.has_bfloat16() else {})
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(SIZE, SIZE, generator=generator)
    matrices = {name: x.to(dtype) for name, dtype in dtypes.items()}
    ways = {name: (lambda x=x: x @ x) for name, x in matrices.items()}
    source, target = torch.ones(COPIED, dtype=torch.uint8), torch.empty(COPIED, dtype=torch.uint8)
    found = {name: 2 * SIZE**3 / seconds for name, seconds in best_of(ways, 0.02, time.perf_counter).items()}
    found["copy"] = 2 * COPIED / best_of({"copy": lambda: target.copy_(source)}, 0.02, time.perf_counter)["copy"]
    torch.set_num_threads(1)
    ones = best_of(ways, 0.02)
    return found | {f"{name} on one thread": 2 * SIZE**3 / seconds for name, seconds in ones.items()}
