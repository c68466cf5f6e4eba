"""The cross-entropy of a language model; the logits of a batch never exist all at once."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cutaway.kernels.loss import agreeing_loss, vocabulary_loss
from cutaway.models.heads import LanguageModelHead, MaskedLanguageModelHead
from cutaway.models.network import Network

IGNORED = -100
"""The label of a position without a loss."""
_ROWS = 512  # tokens whose logits exist at once: with 10,000 words 20 MB, which stay in a cache of that size


@dataclass(frozen=True)
class Loss:
    """Sums over `n` tokens, so that a step's micro-batches are added before the division."""

    total: Tensor  # the objective: label smoothing and R-Drop included
    nll: float  # -log p(label) alone, the logarithm of the perplexity
    n: int


def language_loss(
    network: Network, hidden_BTD: Tensor, labels_BT: Tensor, *, smoothing: float = 0.0, r_drop: float = 0.0
) -> Loss:
    """Σ -log p(label), label smoothing ε: the label gets 1 - ε, all V words share ε (§5.4).

    `r_drop` α: the second half of the batch is the first one again, with other dropout; α · ½ (KL(p‖q) + KL(q‖p)) of
    the two outputs is added.
    """
    hidden_ND = hidden_BTD.flatten(0, 1)
    labels_N = labels_BT.flatten()
    rows = (labels_N != IGNORED).nonzero().squeeze(1)
    if len(rows) < len(labels_N):
        hidden_ND, labels_N = hidden_ND[rows], labels_N[rows]
    head = network.head
    assert isinstance(head, LanguageModelHead | MaskedLanguageModelHead)
    if isinstance(head, MaskedLanguageModelHead):
        hidden_ND = head.norm(head.activation(head.dense(hidden_ND)))
    words = head.vocabulary
    if words.scale != 1.0:
        hidden_ND = hidden_ND * words.scale
    weight_VD = network.table if words.weight is None else words.weight
    total, nll = _VocabularyLoss.apply(hidden_ND, weight_VD, words.bias, labels_N, smoothing, r_drop)  # type: ignore[no-untyped-call]
    return Loss(total, float(nll), len(labels_N))


class _VocabularyLoss(torch.autograd.Function):
    """hidden [N, D], table [V, D], labels [N] -> the loss and -log p, summed.

    Some rows at a time: logits, their softmax, and at once their gradient: softmax minus the target distribution, times
    the table and times the hidden states. Nothing of size N · V is kept for the backward pass.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        smoothing: float,
        r_drop: float,
    ) -> tuple[Tensor, Tensor]:
        device = hidden.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype
        exact = torch.promote_types(dtype, torch.float32)  # for sums, and for the softmax
        wanted = any(ctx.needs_input_grad)
        total, nll = hidden.new_zeros((), dtype=exact), hidden.new_zeros((), dtype=exact)
        d_hidden = torch.empty_like(hidden) if wanted else None
        d_weight = torch.zeros_like(weight, dtype=exact) if wanted else None
        d_bias = torch.zeros_like(bias, dtype=exact) if wanted and bias is not None else None
        with torch.autocast(device, enabled=False):
            table = weight.to(dtype)
            for rows in _chunks(len(labels), r_drop > 0.0, labels.device):
                h = hidden[rows].to(dtype)
                logits = h @ table.T if bias is None else torch.addmm(bias.to(dtype), h, table.T)
                grad = logits.to(exact)
                if r_drop:
                    of_label, of_all, apart = agreeing_loss(grad, labels[rows], smoothing, r_drop)
                    total += r_drop * apart.sum()
                else:
                    of_label, of_all = vocabulary_loss(grad, labels[rows], smoothing)
                nll += of_label.sum()  # logits are gradients now
                total += (1.0 - smoothing) * of_label.sum() + smoothing * of_all.sum()
                if d_hidden is None or d_weight is None:
                    continue
                if d_bias is not None:
                    d_bias += grad.sum(0)
                grad = grad.to(dtype)
                d_hidden[rows] = (grad @ table).to(hidden.dtype)
                if dtype == exact:
                    d_weight.addmm_(grad.T, h)
                else:
                    d_weight += grad.T @ h
        if d_hidden is not None:
            ctx.save_for_backward(d_hidden, d_weight, d_bias)
        ctx.mark_non_differentiable(nll)
        return total, nll

    @staticmethod
    def backward(ctx: Any, by_total: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        found = [None if grad is None else grad * by_total for grad in ctx.saved_tensors]
        return (*found, None, None, None)


def _chunks(n: int, paired: bool, device: torch.device) -> list[Any]:
    """Slices of at most _ROWS rows; paired: row i of the first half always with row i of the second."""
    if not paired:
        return [slice(start, min(start + _ROWS, n)) for start in range(0, n, _ROWS)]
    half = n // 2
    starts = range(0, half, _ROWS // 2)
    firsts = [torch.arange(start, min(start + _ROWS // 2, half), device=device) for start in starts]
    return [torch.cat((first, first + half)) for first in firsts]
