"""The kernels of training, as functions of tensors that autograd knows. Without kernels, and for what they do not know
(other devices, other numbers than float32), torch does the same in more steps."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from cutaway.errors import InputError
from cutaway.kernels import Dropout, Kernels, Norm, choice, kernels
from cutaway.kernels.arguments import address, attention_sizes, axes, optional_address


def kernels_for(*tensors: Tensor | None) -> Kernels | None:
    """The kernels, if they are wanted here and can compute with all of these."""
    if torch.compiler.is_compiling() or not choice.current().own:
        return None
    for tensor in tensors:
        if tensor is not None and (tensor.dtype != torch.float32 or tensor.device.type != "cpu"):
            return None
    return kernels()


def attend(
    q_BHTK: Tensor,
    k_BGSK: Tensor,
    v_BGSK: Tensor,
    bias_BHTS: Tensor | None,
    scale: float,
    level: int = 0,
    seed: int = 0,
) -> Tensor:
    """softmax(q kᵀ · scale + bias) v, where `level` of 256 weights are dropped, by the random numbers of the seed.

    For tensors that `kernels_for` has kernels for. The bias gets no gradient. [B, H, T, K], of which the heads' numbers
    are side by side: merging heads copies nothing.
    """
    return _Attention.apply(q_BHTK, k_BGSK, v_BGSK, bias_BHTS, scale, level, seed)  # type: ignore[no-untyped-call]


class _Attention(torch.autograd.Function):
    """q, k and v are read where they are, usually [B, T, H, K]; their gradients are written in that order."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float, level: int, seed: int
    ) -> Tensor:
        made = kernels()
        assert made is not None
        (B, H, T, K), S = q.shape, k.shape[2]
        q, k, v = _without_gaps(q), _without_gaps(k), _without_gaps(v)
        added = None if bias is None else _without_gaps(bias.expand(B, H, T, S))
        y_BTHK, weights = q.new_empty(B, T, H, K), q.new_empty(B, H, S, made.padded(T))
        sizes, dropout, y = attention_sizes(q, k, v), Dropout(seed, level), y_BTHK.transpose(1, 2)
        made.attend_forward(
            axes(q), axes(k), axes(v), None if added is None else axes(added), weights.data_ptr(), axes(y),
            sizes, scale, dropout,
        )  # fmt: skip
        ctx.save_for_backward(q, k, v, weights)
        ctx.rest = sizes, scale, dropout
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        made = kernels()
        assert made is not None
        q, k, v, weights = ctx.saved_tensors
        dq, dk, dv = (torch.empty_like(x.transpose(1, 2), memory_format=torch.contiguous_format) for x in (q, k, v))
        dq, dk, dv = dq.transpose(1, 2), dk.transpose(1, 2), dv.transpose(1, 2)
        grad, (B, H, T, _), S = _without_gaps(grad.to(q.dtype)), q.shape, k.shape[2]
        if grad.shape != q.shape:
            raise ValueError(f"the gradient of {list(q.shape)} heads has shape {list(grad.shape)}")
        kept = address(weights, (B, H, S, made.padded(T)))
        made.attend_backward(axes(q), axes(k), axes(v), kept, axes(grad), axes(dq), axes(dk), axes(dv), *ctx.rest)
        return dq, dk, dv, None, None, None, None


def _without_gaps(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def add_dropped(x: Tensor | None, f: Tensor, level: int, seed: int) -> Tensor:
    """x + dropout(f), or dropout(f), where `level` of 256 numbers are dropped by the random numbers of the seed."""
    return _Dropped.apply(x, f, level, seed)  # type: ignore[no-untyped-call]


class _Dropped(torch.autograd.Function):
    """Nothing is kept but the seed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor | None, f: Tensor, level: int, seed: int) -> Tensor:
        ctx.dropout = Dropout(seed, level)
        return _dropped(x, f, ctx.dropout)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        to_x, to_f = ctx.needs_input_grad[:2]
        return grad if to_x else None, _dropped(None, grad, ctx.dropout) if to_f else None, None, None


def _dropped(x: Tensor | None, f: Tensor, dropout: Dropout) -> Tensor:
    made = kernels()
    assert made is not None
    x, f = None if x is None else x.contiguous(), f.contiguous()
    y = torch.empty_like(f)
    made.add_dropped(optional_address(x, f.shape), address(f, f.shape), f.numel(), dropout, y.data_ptr())
    return y


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
    """What is kept: the rows without weight and bias, what each was divided by, and the seed."""

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
        made = kernels()
        assert made is not None
        n = x.shape[-1]
        x, f, weight = x.contiguous(), None if f is None else f.contiguous(), weight.contiguous()
        bias = None if bias is None else bias.contiguous()
        y, normalized, shares = torch.empty_like(x), torch.empty_like(x), x.new_empty(x.shape[:-1])
        ctx.epsilon, ctx.dropout = epsilon, Dropout(seed, level)
        made.add_norm_forward(
            address(x, x.shape), optional_address(f, x.shape), _norm(weight, bias, epsilon, n), shares.numel(), n,
            ctx.dropout, y.data_ptr(), normalized.data_ptr(), shares.data_ptr(),
        )  # fmt: skip
        ctx.save_for_backward(normalized, shares, weight, bias)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        made = kernels()
        assert made is not None
        normalized, shares, weight, bias = ctx.saved_tensors
        grad, dx, n = grad.to(normalized.dtype).contiguous(), torch.empty_like(normalized), normalized.shape[-1]
        to_weight, to_bias = torch.zeros_like(weight), None if bias is None else torch.zeros_like(bias)
        df = torch.empty_like(dx) if ctx.needs_input_grad[1] and ctx.dropout.level else None
        made.add_norm_backward(
            address(grad, dx.shape), address(normalized, dx.shape), address(shares, dx.shape[:-1]),
            _norm(weight, bias, ctx.epsilon, n), shares.numel(), n, ctx.dropout, dx.data_ptr(),
            None if df is None else df.data_ptr(), to_weight.data_ptr(),
            None if to_bias is None else to_bias.data_ptr(),
        )  # fmt: skip
        if df is None and ctx.needs_input_grad[1]:
            df = dx
        return dx, df, to_weight, to_bias, None, None, None


def _norm(weight: Tensor, bias: Tensor | None, epsilon: float, n: int) -> Norm:
    return Norm(address(weight, (n,)), optional_address(bias, (n,)), epsilon)


def vocabulary_loss(logits_NV: Tensor, labels_N: Tensor, smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
    """Turns logits into their gradients, softmax(logits) - ((1 - smoothing) · onehot(label) + smoothing / V), in place.

    Returns what the loss is made of, (1 - smoothing) · first + smoothing · second: -log p of each label, and the mean
    of -log p over the whole vocabulary, which is infinite if a word is hidden (-inf).
    """
    (N, V), made = logits_NV.shape, kernels_for(logits_NV)
    if logits_NV.device.type == "cpu":  # others look for themselves, and would have to wait for the answer
        _check_labels(labels_N, N, V)
    if made is None or not logits_NV.is_contiguous():
        logs_NV = logits_NV.log_softmax(-1)
        of_label_N, of_all_N = -logs_NV.gather(1, labels_N[:, None])[:, 0], -logs_NV.mean(-1)
        torch.exp(logs_NV, out=logits_NV).sub_(smoothing / V)
        logits_NV[torch.arange(N, device=labels_N.device), labels_N] -= 1.0 - smoothing
        return of_label_N, of_all_N
    labels_N = labels_N.contiguous()
    of_label_N, of_all_N = logits_NV.new_empty(N), logits_NV.new_empty(N)
    made.vocabulary_loss(
        address(logits_NV, (N, V)),
        address(labels_N, (N,), torch.int64),
        N,
        V,
        smoothing,
        of_label_N.data_ptr(),
        of_all_N.data_ptr(),
    )
    return of_label_N, of_all_N


def agreeing_loss(
    logits_NV: Tensor, labels_N: Tensor, smoothing: float, agreement: float
) -> tuple[Tensor, Tensor, Tensor]:
    """`vocabulary_loss` of rows of which row i and row i + N/2 answer the same question, and R-Drop's third part of the
    loss, times `agreement`: how far each two are apart [N/2], ½ (KL(p‖q) + KL(q‖p)). Its gradient is in the logits."""
    (N, V), made = logits_NV.shape, kernels_for(logits_NV)
    if made is None or not logits_NV.is_contiguous():
        apart, pull_NV = _apart(logits_NV.log_softmax(-1))
        of_label_N, of_all_N = vocabulary_loss(logits_NV, labels_N, smoothing)
        logits_NV.add_(pull_NV, alpha=agreement)
        return of_label_N, of_all_N, apart
    _check_labels(labels_N, N, V)
    labels_N = labels_N.contiguous()
    of_label_N, of_all_N, apart = logits_NV.new_empty(N), logits_NV.new_empty(N), logits_NV.new_empty(N // 2)
    made.agreeing_loss(
        address(logits_NV, (N, V)), address(labels_N, (N,), torch.int64), N, V, smoothing, agreement,
        of_label_N.data_ptr(), of_all_N.data_ptr(), apart.data_ptr(),
    )  # fmt: skip
    return of_label_N, of_all_N, apart


def _apart(log_p: Tensor) -> tuple[Tensor, Tensor]:
    """½ (KL(p‖q) + KL(q‖p)) of each row of the upper half and its partner, and its gradient by the logits.

    ∂/∂z_p of KL(p‖q) is p (log p - log q - KL(p‖q)), that of KL(q‖p) is p - q; likewise the other way round.
    """
    upper, lower = log_p.chunk(2)
    p, q = upper.exp(), lower.exp()
    difference = upper - lower
    p_to_q = (p * difference).sum(1, keepdim=True)
    q_to_p = -(q * difference).sum(1, keepdim=True)
    by_upper = p * (difference - p_to_q) + p - q
    by_lower = q * (-difference - q_to_p) + q - p
    return 0.5 * (p_to_q + q_to_p)[:, 0], 0.5 * torch.cat((by_upper, by_lower))


def _check_labels(labels_N: Tensor, n: int, n_words: int) -> None:
    """The kernel writes where a label says."""
    if labels_N.dtype != torch.int64 or labels_N.shape != (n,):
        dtype = str(labels_N.dtype).removeprefix("torch.")
        raise InputError(f"labels have shape {list(labels_N.shape)} and dtype {dtype}; expected [{n}] and int64")
    wrong = labels_N[(labels_N < 0) | (labels_N >= n_words)]
    if len(wrong):
        raise InputError(
            f"label {int(wrong[0])} is outside the vocabulary of {n_words} (0 to {n_words - 1}); "
            "leave out the tokens that are not to be learnt"
        )
