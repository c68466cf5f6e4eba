"""Parts of a network by our own kernels, in one call where torch takes several: attention over short sequences, RMS
norm, rotation. All in float32, for networks that only run (see prepare.py), where the kernels could be built."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from cutaway.kernels import Kernels, Norm, Sizes, kernels
from cutaway.kernels import Rotation as Turn
from cutaway.kernels.arguments import address, attention_sizes, axes
from cutaway.kernels.choice import current
from cutaway.machine.environment import ATTENTION, forced
from cutaway.models.network import Network
from cutaway.parts.attention import Attention, fused
from cutaway.parts.kv_cache import gathered
from cutaway.parts.masks import Bias
from cutaway.parts.norms import RMSNorm
from cutaway.parts.positions import Rotation
from cutaway.parts.stack import Stack

NARROW = 32
"""Heads up to which our kernel usually is faster than torch's with several queries: 37 × 12 heads of 14 tokens and
width 32 took 420 µs here, 580 there; 64 × 8 of 20 tokens and width 64, 1220 and 970. The lengths: kernels/choice.py."""


def with_quick_steps(network: Network) -> None:
    """The network's parts by kernels, where there are any."""
    made = kernels()
    if made is None:
        return
    kernel_attends = forced(ATTENTION) in (None, "kernel")
    for module in network.modules():
        if isinstance(module, Attention) and kernel_attends:
            module.fused = partial(attend, made)
        elif isinstance(module, RMSNorm):
            module.fused = partial(rms_norm, made, module)
        elif isinstance(module, Stack) and module.rotate is not None:
            module.rotate = partial(rotation, made, module.rotate)


def attend(
    kernels: Kernels,
    q_BHTK: Tensor,
    k_BGSK: Tensor,
    v_BGSK: Tensor,
    bias: Bias,
    scale: float,
    serves: int = 1,
    holders: Tensor | None = None,
) -> Tensor:
    """softmax(q kᵀ · scale + bias) v"""
    if q_BHTK.dtype != torch.float32:  # within autocast
        bias = bias if bias.dense is None else Bias(bias.dense.float())
        y = attend(kernels, q_BHTK.float(), k_BGSK.float(), v_BGSK.float(), bias, scale, serves, holders)
        return y.to(q_BHTK.dtype)
    (B, H, T, K), S = q_BHTK.shape, k_BGSK.shape[2]
    if holders is not None and T > 1:
        k_BGSK, v_BGSK, holders = gathered(k_BGSK, holders), gathered(v_BGSK, holders), None
    if serves == 1 and T > 1 and (current().running if K <= NARROW else current().running_wide) < S:
        return fused(q_BHTK, k_BGSK, v_BGSK, bias, scale)
    dense = None if bias.dense is None else bias.dense.expand(B // serves, H, T, S)
    dense = None if dense is None else _dense(dense)
    q_BHTK, k_BGSK, v_BGSK = _dense(q_BHTK), _dense(k_BGSK), _dense(v_BGSK)
    y_BTHK = q_BHTK.new_empty(B, T, H, K)
    kernels.attend(
        axes(q_BHTK), axes(k_BGSK), axes(v_BGSK), None if dense is None else axes(dense),
        None if holders is None else address(holders, (B, S), torch.int64), y_BTHK.data_ptr(),
        attention_sizes(q_BHTK, k_BGSK, v_BGSK, serves), scale,
    )  # fmt: skip
    return y_BTHK.transpose(1, 2)


def _dense(x: Tensor) -> Tensor:
    """With its last axis side by side, as the kernels read it; a listener may have put any view there."""
    return x if x.stride(-1) == 1 else x.contiguous()


def rms_norm(kernels: Kernels, norm: RMSNorm, x: Tensor) -> Tensor:
    """γ · x / √(mean(x²) + ε)"""
    if x.dtype != torch.float32:
        return rms_norm(kernels, norm, x.float()).to(x.dtype)
    x, n = x.contiguous(), x.shape[-1]
    y = torch.empty_like(x)
    weight = Norm(address(norm.weight, (n,)), None, norm.epsilon)
    kernels.norm(weight, address(x, x.shape), x.numel() // n, n, y.data_ptr())
    return y


def rotation(kernels: Kernels, rotate: Callable[..., Rotation], positions: Tensor, dtype: torch.dtype) -> Rotation:
    return QuickRotation(kernels, rotate(positions, dtype=dtype))


class QuickRotation(Rotation):
    """The same turn, in one call."""

    def __init__(self, kernels: Kernels, rotation: Rotation) -> None:
        super().__init__(rotation.cos.contiguous(), rotation.sin.contiguous())
        object.__setattr__(self, "kernels", kernels)  # Rotation is frozen

    def turn(self, x_BHTK: Tensor) -> Tensor:
        if x_BHTK.dtype != torch.float32:
            return self.turn(x_BHTK.float()).to(x_BHTK.dtype)
        x_BHTK = _dense(x_BHTK)
        B, H, T, K = x_BHTK.shape
        y_BTHK = x_BHTK.new_empty(B, T, H, K)
        sizes = Sizes(B, H, H, T, T, K, 1)
        self.kernels.turn(self.record(B, T, K), axes(x_BHTK), axes(y_BTHK.transpose(1, 2)), sizes)  # type: ignore[attr-defined]
        return y_BTHK.transpose(1, 2)

    def record(self, n_rows: int, n_tokens: int, width: int) -> Turn:
        """As the kernels take it, for heads of this width."""
        shape = (n_tokens, width) if self.cos.dim() == 2 else (n_rows, 1, n_tokens, width)
        return Turn(address(self.cos, shape), address(self.sin, shape), 0 if self.cos.dim() == 2 else n_tokens * width)
