"""Parts of a network by our own kernels, in one call where torch takes several: attention over short sequences, RMS
norm, rotation. All in float32, for networks that only run (see prepare.py), where the kernels could be built."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from cutaway.kernels import Kernels, NormRecord, RotationRecord, Sizes, kernels
from cutaway.kernels.arguments import address, attention_sizes, axes
from cutaway.kernels.attention import by_torch
from cutaway.kernels.choice import current
from cutaway.machine.environment import ATTENTION, forced
from cutaway.models.network import Network
from cutaway.parts.attention import Attention
from cutaway.parts.kv_cache import KV
from cutaway.parts.masks import Bias
from cutaway.parts.norms import RMSNorm
from cutaway.parts.positions import Rotation
from cutaway.parts.stack import Stack

NARROW = 32
"""Heads up to which our kernel usually is faster than torch's with several queries: 37 × 12 heads of 14 tokens and
width 32 took 420 µs here, 580 there; 64 × 8 of 20 tokens and width 64, 1220 and 970. The lengths: kernels/choice.py."""


def install_fused_modules(network: Network) -> None:
    """The network's parts by kernels, where there are any."""
    built = kernels()
    if built is None:
        return
    kernel_attends = forced(ATTENTION) in (None, "kernel")
    for module in network.modules():
        if isinstance(module, Attention) and kernel_attends:
            if not isinstance(module, FusedAttention):
                module.__class__ = FusedAttention
            setattr(module, "kernels", built)  # noqa: B010  # typed as what it was
        elif isinstance(module, RMSNorm):
            module.__class__ = FusedRMSNorm
        elif isinstance(module, Stack) and module.rotate is not None:
            module.rotate = partial(_fused_rotation, module.rotate)


class FusedAttention(Attention):
    """Attention whose inner steps are one call."""

    kernels: Kernels | None = None

    def kernel(self, q_BHTK: Tensor, kv: KV, bias: Bias, p: float) -> Tensor | None:
        """softmax(q kᵀ · scale + bias) v"""
        if self.kernels is None:
            return super().kernel(q_BHTK, kv, bias, p)
        if q_BHTK.dtype != torch.float32:  # within autocast
            bias = bias if bias.dense is None else Bias(bias.dense.float())
            kv = KV(kv.keys.float(), kv.values.float(), kv.row_index)
            y_BHTK = self.kernel(q_BHTK.float(), kv, bias, p)
            return None if y_BHTK is None else y_BHTK.to(q_BHTK.dtype)
        (B, H, T, K), S = q_BHTK.shape, kv.keys.shape[2]
        k_BGSK, v_BGSK, row_index = kv if T == 1 else (*kv.dense(), None)
        repeats = B // max(1, len(k_BGSK)) if row_index is None else 1
        if repeats == 1 and T > 1 and (current().running if K <= NARROW else current().running_wide) < S:
            return by_torch(q_BHTK, k_BGSK, v_BGSK, bias.dense, self.scale, causal=bias.causal)
        dense = None if bias.dense is None else _without_gaps(bias.dense.expand(B // repeats, H, T, S))
        q_BHTK, k_BGSK, v_BGSK = _without_gaps(q_BHTK), _without_gaps(k_BGSK), _without_gaps(v_BGSK)
        y_BTHK = q_BHTK.new_empty(B, T, H, K)
        self.kernels.attend(
            axes(q_BHTK), axes(k_BGSK), axes(v_BGSK), None if dense is None else axes(dense),
            None if row_index is None else address(row_index, (B, S), torch.int64), y_BTHK.data_ptr(),
            attention_sizes(q_BHTK, k_BGSK, v_BGSK, repeats), self.scale,
        )  # fmt: skip
        return y_BTHK.transpose(1, 2)


def _without_gaps(x: Tensor) -> Tensor:
    """With its last axis side by side, as the kernels read it; a listener may have put any view there."""
    return x if x.stride(-1) == 1 else x.contiguous()


class FusedRMSNorm(RMSNorm):
    """γ · x / √(mean(x²) + ε) in one call."""

    def kernel(self, x_BTD: Tensor) -> Tensor | None:
        if x_BTD.dtype != torch.float32:
            y_BTD = self.kernel(x_BTD.float())
            return None if y_BTD is None else y_BTD.to(x_BTD.dtype)
        built, x_BTD, n = kernels(), x_BTD.contiguous(), x_BTD.shape[-1]
        assert built is not None
        y_BTD = torch.empty_like(x_BTD)
        record = NormRecord(address(self.weight, (n,)), None, self.epsilon)
        built.norm(record, address(x_BTD, x_BTD.shape), x_BTD.numel() // n, n, y_BTD.data_ptr())
        return y_BTD


def _fused_rotation(rotate: Callable[..., Rotation], positions: Tensor, dtype: torch.dtype) -> Rotation:
    rotation = rotate(positions, dtype=dtype)
    return FusedRotation(rotation.cos.contiguous(), rotation.sin.contiguous())


class FusedRotation(Rotation):
    """The same rotation, in one call."""

    def rotate(self, x_BHTK: Tensor) -> Tensor:
        if x_BHTK.dtype != torch.float32:
            return self.rotate(x_BHTK.float()).to(x_BHTK.dtype)
        x_BHTK, built = _without_gaps(x_BHTK), kernels()
        assert built is not None
        B, H, T, K = x_BHTK.shape
        y_BTHK = x_BHTK.new_empty(B, T, H, K)
        built.rotate(self.record(B, T, K), axes(x_BHTK), axes(y_BTHK.transpose(1, 2)), Sizes(B, H, H, T, T, K, 1))
        return y_BTHK.transpose(1, 2)

    def record(self, n_rows: int, n_tokens: int, width: int) -> RotationRecord:
        """As the kernels take it, for heads of this width."""
        shape = (n_tokens, width) if self.cos.dim() == 2 else (n_rows, 1, n_tokens, width)
        stride = 0 if self.cos.dim() == 2 else n_tokens * width
        return RotationRecord(address(self.cos, shape), address(self.sin, shape), stride)
