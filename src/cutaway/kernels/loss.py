"""The loss over a vocabulary and its gradient, in one pass."""

import torch
from torch import Tensor

from cutaway.errors import InputError
from cutaway.kernels.arguments import address
from cutaway.kernels.choice import kernels_for


def vocabulary_loss(logits_NV: Tensor, labels_N: Tensor, smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
    """Turns logits into their gradients, softmax(logits) - ((1 - smoothing) · onehot(label) + smoothing / V), in place.

    Returns the two parts of the loss, (1 - smoothing) · first + smoothing · second: -log p of each label, and the mean
    of -log p over the whole vocabulary, which is infinite if a word is masked (-inf).
    """
    (N, V), built = logits_NV.shape, kernels_for(logits_NV)
    if logits_NV.device.type == "cpu":  # GPUs check labels themselves, and the result would have to be waited for
        _check_labels(labels_N, N, V)
    if built is None or not logits_NV.is_contiguous():
        logs_NV = logits_NV.log_softmax(-1)
        of_label_N, of_all_N = -logs_NV.gather(1, labels_N[:, None])[:, 0], -logs_NV.mean(-1)
        torch.exp(logs_NV, out=logits_NV).sub_(smoothing / V)
        logits_NV[torch.arange(N, device=labels_N.device), labels_N] -= 1.0 - smoothing
        return of_label_N, of_all_N
    labels_N = labels_N.contiguous()
    of_label_N, of_all_N = logits_NV.new_empty(N), logits_NV.new_empty(N)
    built.vocabulary_loss(
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
    """`vocabulary_loss` of rows of which row i and row i + N/2 are of the same example, and R-Drop's third part of the
    loss: the divergence of each two [N/2], ½ (KL(p‖q) + KL(q‖p)). Its gradient, times `agreement`, is in the logits."""
    (N, V), built = logits_NV.shape, kernels_for(logits_NV)
    if built is None or not logits_NV.is_contiguous():
        divergence, pull_NV = _symmetric_kl(logits_NV.log_softmax(-1))
        of_label_N, of_all_N = vocabulary_loss(logits_NV, labels_N, smoothing)
        logits_NV.add_(pull_NV, alpha=agreement)
        return of_label_N, of_all_N, divergence
    _check_labels(labels_N, N, V)
    labels_N = labels_N.contiguous()
    of_label_N, of_all_N, divergence = logits_NV.new_empty(N), logits_NV.new_empty(N), logits_NV.new_empty(N // 2)
    built.agreeing_loss(
        address(logits_NV, (N, V)), address(labels_N, (N,), torch.int64), N, V, smoothing, agreement,
        of_label_N.data_ptr(), of_all_N.data_ptr(), divergence.data_ptr(),
    )  # fmt: skip
    return of_label_N, of_all_N, divergence


def _symmetric_kl(log_p: Tensor) -> tuple[Tensor, Tensor]:
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
    """Checks the labels: the kernel writes at their indices."""
    if labels_N.dtype != torch.int64 or labels_N.shape != (n,):
        dtype = str(labels_N.dtype).removeprefix("torch.")
        raise InputError(f"labels have shape {list(labels_N.shape)} and dtype {dtype}; expected [{n}] and int64")
    wrong = labels_N[(labels_N < 0) | (labels_N >= n_words)]
    if len(wrong):
        raise InputError(
            f"label {int(wrong[0])} is outside the vocabulary of {n_words} (0 to {n_words - 1}); "
            "leave out the positions that have no label"
        )
