"""What a kernel with a backward pass of its own is held to: float64, small steps, and the same bits in every thread."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor


def assert_same(
    found: Tensor, exact: Tensor, given: Sequence[Tensor], doubles: Sequence[Tensor], grad: Tensor, **close: float
) -> None:
    """Values and gradients: those of float32 against those of the same formula in float64."""
    torch.testing.assert_close(found.double(), exact, **close)
    ours, theirs = torch.autograd.grad(found, given, grad), torch.autograd.grad(exact, doubles, grad.double())
    for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        torch.testing.assert_close(a.double(), b, **close, msg=lambda text, i=i: f"the gradient of input {i}: {text}")


def assert_small_steps(
    function: Callable[..., Tensor], given: Sequence[Tensor], grad: Tensor, tolerance: float
) -> None:
    """Central differences of the kernel itself, at a step of 1e-2, in up to 16 numbers of each input."""
    found = torch.autograd.grad(function(*given), given, grad)
    for x, dx in zip(given, found, strict=True):
        for i in torch.randperm(x.numel())[:16]:
            step = torch.zeros(x.numel())
            step[i] = 1e-2
            up, down = ([y + sign * step.view(y.shape) if y is x else y for y in given] for sign in (1, -1))
            slope = ((function(*up) - function(*down)) * grad).sum().detach() / 2e-2
            torch.testing.assert_close(dx.flatten()[i], slope, rtol=tolerance, atol=tolerance)


def assert_same_bits_from_threads(function: Callable[..., Tensor], given: Sequence[Tensor], grad: Tensor) -> None:
    def all_of_it(_: Any) -> tuple[Tensor, ...]:
        y = function(*given)
        return (y.detach(), *torch.autograd.grad(y, given, grad))

    first = all_of_it(None)
    with ThreadPoolExecutor(4) as pool:
        for other in pool.map(all_of_it, range(32)):
            assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True))
