"""The choice of code for attention, norms, dropout and the loss: our kernels, torch's, or the written-out steps.

Thresholds are lengths of sequences. The usual ones hold unless timing on this machine (`timing.py`) shows another way
to be clearly faster, CUTAWAY_ATTENTION forces one, or a resumed run has its own.
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
"""A threshold that no sequence reaches."""


@dataclass(frozen=True)
class KernelChoice:
    """The longest sequence that each way computes; `own`: whether our kernels train at all."""

    own: bool = True
    kernel: int = 128
    """Our kernel trains attention in float32, beyond it torch's. It keeps T × S weights for each head, which torch's
    recomputes."""
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
    """This thread's choice: a run's own, a forced one, or the one measured on this machine."""
    return _CURRENT.get() or default()


@cache
def default() -> KernelChoice:
    if (name := forced(ATTENTION)) is not None:
        if name == "kernel" and kernels() is None:
            raise ConfigError(
                f"{ATTENTION.name}=kernel, but there are no kernels of our own here; unset one of the two"
            )
        return _FORCED[name]
    from cutaway.kernels.timing import fastest  # which imports this module

    return fastest()


@contextmanager
def using(choice: KernelChoice) -> Iterator[None]:
    """Within the block, in this thread, `current()` is `choice`."""
    token = _CURRENT.set(choice)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def kernels_for(*tensors: Tensor | None) -> Kernels | None:
    """The kernels, if they are chosen here and can compute with all of these tensors."""
    if torch.compiler.is_compiling() or not current().own:
        return None
    for tensor in tensors:
        if tensor is not None and (tensor.dtype != torch.float32 or tensor.device.type != "cpu"):
            return None
    return kernels()
