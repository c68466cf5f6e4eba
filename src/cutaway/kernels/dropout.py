"""Dropout with cheaper random bits than torch's on a CPU: by a kernel of ours, or in a few steps of torch."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from cutaway.kernels import DropoutRecord, kernels
from cutaway.kernels.arguments import address, optional_address
from cutaway.kernels.choice import kernels_for

_LEVELS = 256
_GENERATOR: ContextVar[torch.Generator | None] = ContextVar("generator", default=None)


@contextmanager
def drawn_from(generator: torch.Generator) -> Iterator[None]:
    """Dropout in this block draws from `generator`, not from torch's global one, which threads share."""
    token = _GENERATOR.set(generator)
    try:
        yield
    finally:
        _GENERATOR.reset(token)


class _ByteDropout(torch.autograd.Function):
    """One random byte decides for each number, so one 64-bit draw serves eight.

    torch's CPU dropout draws a Bernoulli variable for each number, one after another. On 256 × 16 × 128 numbers,
    forward and backward on one core of a Xeon, it takes 5.0 ms and this 1.5. The bytes are kept for the backward pass
    and compared as floats, which is faster than a multiplication of floats by booleans. p is rounded to 1/256, and the
    scale to match, so the mean stays exact.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, level: int) -> Tensor:
        # from=-2^63, to=None: all 64 bits; plain random_() leaves the sign bit 0.
        words = torch.empty((x.numel() + 7) // 8, dtype=torch.int64)
        words.random_(-(2**63), None, generator=_GENERATOR.get())
        draws = words.view(torch.uint8)[: x.numel()].view(x.shape)
        ctx.save_for_backward(draws)
        ctx.level = level
        return _keep(x, draws, level)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (draws,) = ctx.saved_tensors
        return _keep(grad, draws, ctx.level), None


def _keep(x: Tensor, draws: Tensor, level: int) -> Tensor:
    kept = draws.to(x.dtype).ge_(level)  # 0 to 255 are exact even in bfloat16
    return kept.mul_(x).mul_(_LEVELS / (_LEVELS - level))


def draw_seed() -> int:
    """63 random bits, a kernel's seed for as many as it needs."""
    return int(torch.empty((), dtype=torch.int64).random_(generator=_GENERATOR.get()))


def byte_threshold(p: float) -> int | None:
    """The numbers of 256 that are dropped; None if bytes are too coarse for this p."""
    level = round(p * _LEVELS)
    return None if level == _LEVELS or (level == 0 and p > 0.0) else level


def dropout(x: Tensor, p: float) -> Tensor:
    """Each number is 0 with probability p, else x / (1 - p)."""
    if p == 0.0:
        return x
    level = byte_threshold(p)
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return F.dropout(x, p)
    if level is None:
        return x * torch.empty_like(x).bernoulli_(1.0 - p, generator=_GENERATOR.get()) / (1.0 - p)
    if kernels_for(x) is not None:
        return add_dropped(None, x, level, draw_seed())
    return dropout_by_bytes(x, p)


def dropout_by_bytes(x: Tensor, p: float) -> Tensor:
    """dropout() without a kernel, for a p that `byte_threshold` knows."""
    return _ByteDropout.apply(x, byte_threshold(p))  # type: ignore[no-untyped-call]


def add_dropout(x: Tensor, f: Tensor, p: float) -> Tensor:
    """x + dropout(f)"""
    if p > 0.0 and x.shape == f.shape and (level := byte_threshold(p)) is not None and kernels_for(x, f) is not None:
        return add_dropped(x, f, level, draw_seed())
    return x + dropout(f, p)


def add_dropped(x: Tensor | None, f: Tensor, level: int, seed: int) -> Tensor:
    """x + dropout(f), or dropout(f), where `level` of 256 numbers are dropped by the random numbers of the seed."""
    return _Dropped.apply(x, f, level, seed)  # type: ignore[no-untyped-call]


class _Dropped(torch.autograd.Function):
    """Keeps only the seed for the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor | None, f: Tensor, level: int, seed: int) -> Tensor:
        ctx.dropout = DropoutRecord(seed, level)
        return _dropped(x, f, ctx.dropout)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        to_x, to_f = ctx.needs_input_grad[:2]
        return grad if to_x else None, _dropped(None, grad, ctx.dropout) if to_f else None, None, None


def _dropped(x: Tensor | None, f: Tensor, dropout: DropoutRecord) -> Tensor:
    built = kernels()
    assert built is not None
    x, f = None if x is None else x.contiguous(), f.contiguous()
    y = torch.empty_like(f)
    built.add_dropped(optional_address(x, f.shape), address(f, f.shape), f.numel(), dropout, y.data_ptr())
    return y
