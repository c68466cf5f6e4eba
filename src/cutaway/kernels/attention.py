"""Fused attention: by our own kernel or by torch's, if one of them is faster here than the written-out steps.

Thresholds and forced choices: choice.py. Rows of queries may share keys and values: with n times as many rows of q as
of k, n neighbours read the same row, as the beams of one text do.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from cutaway.kernels import DropoutRecord, kernels
from cutaway.kernels.arguments import address, attention_sizes, axes
from cutaway.kernels.choice import current, kernels_for
from cutaway.kernels.dropout import byte_threshold, draw_seed

WIDEST = 128
"""The widest head that our kernel trains."""


def attention(
    q_BHTK: Tensor,
    k_BGSK: Tensor,
    v_BGSK: Tensor,
    bias_BHTS: Tensor | None,
    scale: float,
    *,
    causal: bool = False,
    dropout: float = 0.0,
    learns: bool = False,
) -> Tensor | None:
    """dropout(softmax(q kᵀ · scale + bias)) v; None where the written-out steps are faster.

    `causal`: the bias is just the square look-ahead mask, for which torch has a shortcut.
    """
    if len(q_BHTK) > len(k_BGSK) > 0:
        return _with_shared_keys(q_BHTK, k_BGSK, v_BGSK, bias_BHTS, scale, dropout=dropout, learns=learns)
    if learns and _kernel_trains(q_BHTK, k_BGSK, v_BGSK, bias_BHTS, dropout):
        seed = draw_seed() if dropout > 0.0 else 0
        return train(q_BHTK, k_BGSK, v_BGSK, bias_BHTS, scale, byte_threshold(dropout) or 0, seed)
    if torch_is_faster(q_BHTK, k_BGSK, dropout):
        return by_torch(q_BHTK, k_BGSK, v_BGSK, bias_BHTS, scale, causal=causal, dropout=dropout)
    return None


def _with_shared_keys(
    q_BHTK: Tensor, k_BGSK: Tensor, v_BGSK: Tensor, bias_BHTS: Tensor | None, scale: float, **training: Any
) -> Tensor | None:
    """Rows that share a row of keys become more queries of one row: no key is copied."""
    (B, H, T, K), n = q_BHTK.shape, len(q_BHTK) // len(k_BGSK)
    folded = q_BHTK.view(B // n, n, H, T, K).transpose(1, 2).reshape(B // n, H, n * T, K)
    if bias_BHTS is not None and bias_BHTS.shape[2] > 1:
        bias_BHTS = bias_BHTS.repeat(1, 1, n, 1)
    heads = attention(folded, k_BGSK, v_BGSK, bias_BHTS, scale, **training)
    return None if heads is None else heads.view(B // n, H, n, T, K).transpose(1, 2).reshape(B, H, T, K)


def by_torch(
    q_BHTK: Tensor,
    k_BGSK: Tensor,
    v_BGSK: Tensor,
    bias_BHTS: Tensor | None,
    scale: float,
    *,
    causal: bool = False,
    dropout: float = 0.0,
) -> Tensor:
    return F.scaled_dot_product_attention(
        q_BHTK, k_BGSK, v_BGSK, attn_mask=None if causal else bias_BHTS, dropout_p=dropout, is_causal=causal,
        scale=scale, enable_gqa=q_BHTK.shape[1] != k_BGSK.shape[1],
    )  # fmt: skip


def _kernel_trains(q_BHTK: Tensor, k_BGSK: Tensor, v_BGSK: Tensor, bias_BHTS: Tensor | None, dropout: float) -> bool:
    """Whether our own kernel can train this attention and is faster than torch's."""
    if not torch.is_grad_enabled() or not (q_BHTK.requires_grad or k_BGSK.requires_grad or v_BGSK.requires_grad):
        return False
    if torch.compiler.is_compiling() or q_BHTK.device.type != "cpu" or q_BHTK.shape[3] > WIDEST:
        return False
    if max(q_BHTK.shape[2], k_BGSK.shape[2]) > current().kernel:
        return False
    if v_BGSK.shape != k_BGSK.shape or k_BGSK.shape[::3] != q_BHTK.shape[::3]:  # torch raises the error
        return False
    if bias_BHTS is not None and bias_BHTS.requires_grad:  # T5's positions are learnt
        return False
    return byte_threshold(dropout) is not None and kernels_for(q_BHTK, k_BGSK, v_BGSK, bias_BHTS) is not None


def torch_is_faster(q_BHTK: Tensor, k_BGSK: Tensor, dropout: float) -> bool:
    """Whether torch's fused kernel is faster than the written-out steps.

    On CPUs it has no dropout: torch then falls back to steps of its own, with slower random bits.
    """
    if q_BHTK.device.type != "cpu":
        return True
    if dropout > 0.0:
        return False
    if torch.compiler.is_compiling():  # it can't be measured here
        return True
    half = q_BHTK.dtype in (torch.bfloat16, torch.float16)
    backward = torch.is_grad_enabled() and q_BHTK.requires_grad
    longest = current().half_steps if half and backward else current().steps
    return k_BGSK.shape[2] > longest


def train(
    q_BHTK: Tensor,
    k_BGSK: Tensor,
    v_BGSK: Tensor,
    bias_BHTS: Tensor | None,
    scale: float,
    level: int = 0,
    seed: int = 0,
) -> Tensor:
    """softmax(q kᵀ · scale + bias) v, where `level` of 256 weights are dropped, by the random numbers of the seed.

    For tensors that `kernels_for` has kernels for. The bias gets no gradient. The result [B, H, T, K] is a view of
    [B, T, H, K]: merging heads copies nothing.
    """
    return _Attention.apply(q_BHTK, k_BGSK, v_BGSK, bias_BHTS, scale, level, seed)  # type: ignore[no-untyped-call]


class _Attention(torch.autograd.Function):
    """q, k and v are read where they are, usually [B, T, H, K]; their gradients are written in that order."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float, level: int, seed: int
    ) -> Tensor:
        built = kernels()
        assert built is not None
        (B, H, T, K), S = q.shape, k.shape[2]
        q, k, v = _without_gaps(q), _without_gaps(k), _without_gaps(v)
        added = None if bias is None else _without_gaps(bias.expand(B, H, T, S))
        y_BTHK, weights = q.new_empty(B, T, H, K), q.new_empty(B, H, S, built.padded(T))
        sizes, dropout, y = attention_sizes(q, k, v), DropoutRecord(seed, level), y_BTHK.transpose(1, 2)
        built.attend_forward(
            axes(q), axes(k), axes(v), None if added is None else axes(added), weights.data_ptr(), axes(y),
            sizes, scale, dropout,
        )  # fmt: skip
        ctx.save_for_backward(q, k, v, weights)
        ctx.rest = sizes, scale, dropout
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        built = kernels()
        assert built is not None
        q, k, v, weights = ctx.saved_tensors
        dq, dk, dv = (torch.empty_like(x.transpose(1, 2), memory_format=torch.contiguous_format) for x in (q, k, v))
        dq, dk, dv = dq.transpose(1, 2), dk.transpose(1, 2), dv.transpose(1, 2)
        grad, (B, H, T, _), S = _without_gaps(grad.to(q.dtype)), q.shape, k.shape[2]
        if grad.shape != q.shape:
            raise ValueError(f"the gradient of {list(q.shape)} heads has shape {list(grad.shape)}")
        kept = address(weights, (B, H, S, built.padded(T)))
        built.attend_backward(axes(q), axes(k), axes(v), kept, axes(grad), axes(dq), axes(dk), axes(dv), *ctx.rest)
        return dq, dk, dv, None, None, None, None


def _without_gaps(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()
