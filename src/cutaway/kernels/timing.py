"""The ways to compute attention and norms, timed on this machine."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from cutaway.kernels import Kernels, Sizes, kernels
from cutaway.kernels.arguments import axes
from cutaway.kernels.attention import train
from cutaway.kernels.choice import USUAL, KernelChoice
from cutaway.kernels.dropout import byte_threshold, drawn_from, dropout_by_bytes
from cutaway.kernels.norms import add_norm
from cutaway.machine import CLEARLY, processor
from cutaway.machine.measurements import Numbers, best_of, measured

LENGTHS = (16, 128)
RUNNING_LENGTHS = (16, 64)
NARROW, WIDE = 32, 64  # heads

Way = Callable[[], object]


def fastest() -> KernelChoice:
    """The usual thresholds, moved where another way is clearly faster on this machine."""
    return choice_of(attention_times())


def choice_of(times: Numbers) -> KernelChoice:
    """The choice that follows from these times."""
    own = all(
        times[f"{way} fused 16"] * CLEARLY >= times[f"{way} kernel 16"]
        for way in ("float32", "norm")
        if f"{way} kernel 16" in times
    )
    return KernelChoice(
        own=own,
        kernel=_threshold(times, "float32 kernel", "float32 fused", LENGTHS, USUAL.kernel),
        half_steps=_threshold(times, "bfloat16 steps", "bfloat16 fused", LENGTHS, USUAL.half_steps),
        running=_threshold(times, "running kernel", "running fused", RUNNING_LENGTHS, USUAL.running),
        running_wide=_threshold(times, "wide kernel", "wide fused", RUNNING_LENGTHS, USUAL.running_wide),
    )


def _threshold(times: Numbers, way: str, other: str, lengths: tuple[int, ...], usual: int) -> int:
    """The longest sequence for which `way` is taken.

    Up to the usual threshold it is, unless the other is clearly faster; beyond, only if it is clearly faster itself.
    """
    threshold = 0
    for length in lengths:
        if f"{way} {length}" not in times:
            return usual
        gain = times[f"{other} {length}"] / times[f"{way} {length}"]
        if length <= usual and gain * CLEARLY < 1:
            return threshold
        if length > usual and gain < CLEARLY:
            break
        threshold = length
    return max(threshold, usual)


def attention_times() -> Numbers:
    """Seconds of attention on one core, by way and length: forward and backward, and running."""
    built = kernels()
    return measured(f"attention {'' if built is None else built.digest}", _measure)


def _measure() -> Numbers:
    torch.set_num_threads(1)  # as in training
    found: Numbers = {}
    built = kernels()
    for length in LENGTHS:
        if built is not None:
            found |= _timed("float32", length, _training(length, torch.float32))
        if processor.has_bfloat16():
            found |= _timed("bfloat16", length, _training(length, torch.bfloat16))
    if built is not None:
        found |= _timed("norm", LENGTHS[0], _norm())
        for length in RUNNING_LENGTHS:
            found |= _timed("running", length, _running(built, length, NARROW))
            found |= _timed("wide", length, _running(built, length, WIDE))
    return found


def _timed(name: str, length: int, ways: dict[str, Way]) -> Numbers:
    return {f"{name} {way} {length}": seconds for way, seconds in best_of(ways, 0.01).items()}


def _vectors(length: int, width: int, n_numbers: int = 2**15) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v of a batch of sequences [B, 4, length, width]."""
    generator = torch.Generator().manual_seed(0)
    shape = (max(1, n_numbers // (4 * length * width)), 4, length, width)
    q, k, v = (torch.randn(shape, generator=generator) for _ in range(3))
    return q, k, v


def _training(length: int, dtype: torch.dtype) -> dict[str, Way]:
    """Forward and backward: in float32 by our kernel, else by steps; and by torch's fused kernel."""
    q, k, v = (x.to(dtype).requires_grad_() for x in _vectors(length, NARROW))

    def way(function: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Way:
        return lambda: torch.autograd.grad(function(q, k, v).float().sum(), (q, k, v))

    def steps(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.mT * NARROW**-0.5).float().softmax(-1).to(dtype) @ v

    own = {"kernel": way(lambda q, k, v: train(q, k, v, None, NARROW**-0.5))}
    return {**(own if dtype == torch.float32 else {"steps": way(steps)}), "fused": way(F.scaled_dot_product_attention)}


def _norm(n_rows: int = 512, width: int = 128, p: float = 0.1) -> dict[str, Way]:
    """norm(x + dropout(f)), forward and backward, by our kernel and by torch's.

    The kernel gains most with dropout, which nearly every training has.
    """
    generator = torch.Generator().manual_seed(0)
    x, f = (torch.randn(n_rows, width, generator=generator).requires_grad_() for _ in range(2))
    weight, bias = torch.ones(width, requires_grad=True), torch.zeros(width, requires_grad=True)

    def way(function: Callable[[], Tensor]) -> Way:
        return lambda: torch.autograd.grad(function().sum(), (x, f, weight, bias))

    def fused() -> Tensor:
        with drawn_from(generator):  # not from the program's random numbers
            return F.layer_norm(x + dropout_by_bytes(f, p), (width,), weight, bias)

    return {
        "kernel": way(lambda: add_norm(x, f, weight, bias, 1e-5, byte_threshold(p) or 0, seed=1)),
        "fused": way(fused),
    }


def _running(built: Kernels, length: int, width: int) -> dict[str, Way]:
    """Forward only, by our kernel and by torch's."""
    q, k, v = _vectors(length, width)
    (B, H, T, K), y = q.shape, torch.empty(q.shape).transpose(1, 2).contiguous()
    sizes = Sizes(B, H, H, T, T, K, 1)

    def kernel() -> None:
        built.attend(axes(q), axes(k), axes(v), None, None, y.data_ptr(), sizes, width**-0.5)

    return {"kernel": kernel, "fused": lambda: F.scaled_dot_product_attention(q, k, v)}
