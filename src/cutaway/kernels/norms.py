"""Fused training of norms, with the residual connection before them, by our kernel."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from cutaway.kernels import DropoutRecord, NormRecord, kernels
from cutaway.kernels.arguments import address, optional_address
from cutaway.kernels.choice import kernels_for
from cutaway.kernels.dropout import byte_threshold, draw_seed


def norm(
    x: Tensor, f: Tensor | None, weight_D: Tensor, bias_D: Tensor | None, epsilon: float, dropout: float = 0.0
) -> Tensor | None:
    """norm(x + dropout(f)), or norm(x), in training; RMS norm if there is no bias. None where the kernel can't."""
    if not torch.is_grad_enabled() or x.shape[-1:] != weight_D.shape or (f is not None and f.shape != x.shape):
        return None  # torch raises the error about shapes
    threshold = byte_threshold(dropout)
    if threshold is None or kernels_for(x, f, weight_D) is None:
        return None
    return add_norm(x, f, weight_D, bias_D, epsilon, threshold, draw_seed() if threshold else 0)


def add_norm(
    x_ND: Tensor,
    f_ND: Tensor | None,
    weight_D: Tensor,
    bias_D: Tensor | None,
    epsilon: float,
    level: int = 0,
    seed: int = 0,
) -> Tensor:
    """norm(x + dropout(f)), or norm(x), of each row: RMS norm if there is no bias. Rows may have any axes."""
    return _AddNorm.apply(x_ND, f_ND, weight_D, bias_D, epsilon, level, seed)  # type: ignore[no-untyped-call]


class _AddNorm(torch.autograd.Function):
    """Keeps the normalised rows, the factor of each, and the seed."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        f: Tensor | None,
        weight: Tensor,
        bias: Tensor | None,
        epsilon: float,
        level: int,
        seed: int,
    ) -> Tensor:
        built = kernels()
        assert built is not None
        n = x.shape[-1]
        x, f, weight = x.contiguous(), None if f is None else f.contiguous(), weight.contiguous()
        bias = None if bias is None else bias.contiguous()
        y, normalized, scales = torch.empty_like(x), torch.empty_like(x), x.new_empty(x.shape[:-1])
        ctx.epsilon, ctx.dropout = epsilon, DropoutRecord(seed, level)
        built.add_norm_forward(
            address(x, x.shape), optional_address(f, x.shape), _norm(weight, bias, epsilon, n), scales.numel(), n,
            ctx.dropout, y.data_ptr(), normalized.data_ptr(), scales.data_ptr(),
        )  # fmt: skip
        ctx.save_for_backward(normalized, scales, weight, bias)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        built = kernels()
        assert built is not None
        normalized, scales, weight, bias = ctx.saved_tensors
        grad, dx, n = grad.to(normalized.dtype).contiguous(), torch.empty_like(normalized), normalized.shape[-1]
        to_weight, to_bias = torch.zeros_like(weight), None if bias is None else torch.zeros_like(bias)
        df = torch.empty_like(dx) if ctx.needs_input_grad[1] and ctx.dropout.level else None
        built.add_norm_backward(
            address(grad, dx.shape), address(normalized, dx.shape), address(scales, dx.shape[:-1]),
            _norm(weight, bias, ctx.epsilon, n), scales.numel(), n, ctx.dropout, dx.data_ptr(),
            None if df is None else df.data_ptr(), to_weight.data_ptr(),
            None if to_bias is None else to_bias.data_ptr(),
        )  # fmt: skip
        if df is None and ctx.needs_input_grad[1]:
            df = dx
        return dx, df, to_weight, to_bias, None, None, None


def _norm(weight: Tensor, bias: Tensor | None, epsilon: float, n: int) -> NormRecord:
    return NormRecord(address(weight, (n,)), optional_address(bias, (n,)), epsilon)
