"""Which code computes attention, norms, dropout and the loss: our kernels, torch's, or the written-out steps.

Borders are lengths of sequences. The usual ones hold unless timing on this machine (`timing.py`) shows another way to
be clearly faster, CUTAWAY_ATTENTION forces one, or a run goes on with those that it began with.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from cutaway.errors import ConfigError
from cutaway.kernels import Kernels, kernels
from cutaway.machine.environment import ATTENTION, forced

ANY = 2**31
"""A border that no sequence reaches."""


@dataclass(frozen=True)
class KernelChoice:
    """Sequences up to which length each way is taken; `own`: whether our kernels train at all."""

    own: bool = True
    kernel: int = 128
    """Our kernel trains attention in float32, beyond it torch's. It keeps T × S weights for each head, which torch's
    makes again."""
    half_steps: int = 191
    """The written-out steps train attention in bfloat16, beyond it torch's fused kernel, whose backward pass is slow on
    short sequences."""
    running: int = 64
    """Our kernel runs attention of several queries with heads up to 32 wide; one query (a cached step) always."""
    running_wide: int = 0
    """The same, with wider heads."""
    steps: int = 0
    """The written-out steps are taken wherever our kernel is not."""


USUAL = KernelChoice()
_FORCED = {
    "kernel": KernelChoice(kernel=ANY, running=ANY, running_wide=ANY),
    "fused": KernelChoice(kernel=0, half_steps=0, running=0),
    "steps": KernelChoice(kernel=0, half_steps=ANY, running=0, steps=ANY),
}
_CURRENT: ContextVar[KernelChoice | None] = ContextVar("choice", default=None)


def current() -> KernelChoice:
    """The choice that holds in this thread: as a run has it, as forced, or as measured on this machine."""
    return _CURRENT.get() or default()


@cache
def default() -> KernelChoice:
    if (asked := forced(ATTENTION)) is not None:
        if asked == "kernel" and kernels() is None:
            raise ConfigError(
                f"{ATTENTION.name}=kernel, but there are no kernels of our own here; unset one of the two"
            )
        return _FORCED[asked]
    from cutaway.kernels.timing import fastest  # which computes with what is chosen here

    return fastest()


@contextmanager
def using(choice: KernelChoice) -> Iterator[None]:
    """While this lasts, in this thread, `current()` is this one."""
    token = _CURRENT.set(choice)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def kernels_for(*tensors: Tensor | None) -> Kernels | None:
    """The kernels, if they are wanted here and can compute with all of these."""
    if torch.compiler.is_compiling() or not current().own:
        return None
    for tensor in tensors:
        if tensor is not None and (tensor.dtype != torch.float32 or tensor.device.type != "cpu"):
            return None
    return kernels()
