"""The few largest of many numbers, and the logarithm of their sum: what a step of any search computes of its logits."""

import torch
from torch import Tensor

from cutaway.generation import Token
from cutaway.kernels import Kernels, kernels
from cutaway.kernels.arguments import address

MANY = 64  # of which inserting one by one takes longer than torch's own way


def top(values_RV: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest values of each row, largest first, and their places: what `topk` gives, many times as fast. With
    k = 1 it is the first of several that are equal, as in transformers."""
    R, V = values_RV.shape
    k = min(k, V)
    built = _kernels(values_RV)
    if built is None and k == 1:
        places_R1 = values_RV.argmax(-1, keepdim=True)
        return values_RV.gather(1, places_R1), places_R1
    if built is None or k > MANY:
        return values_RV.topk(k)
    values_RV = values_RV.contiguous()
    top_RK, places_RK = values_RV.new_empty(R, k), values_RV.new_empty(R, k, dtype=torch.int64)
    built.top(address(values_RV, (R, V)), R, V, k, top_RK.data_ptr(), places_RK.data_ptr(), None)
    return top_RK, places_RK


def log_total(logits_RV: Tensor) -> Tensor:
    """log Σ exp(logits) [R, 1]: what a logit lacks to be a log-probability."""
    R, V = logits_RV.shape
    built = _kernels(logits_RV)
    if built is None:
        return logits_RV.logsumexp(-1, keepdim=True)
    logits_RV = logits_RV.contiguous()
    most_R1, place_R1 = logits_RV.new_empty(R, 1), logits_RV.new_empty(R, 1, dtype=torch.int64)
    total_R1 = torch.empty_like(most_R1)
    addresses = most_R1.data_ptr(), place_R1.data_ptr(), total_R1.data_ptr()
    built.top(address(logits_RV, (R, V)), R, V, 1, *addresses)
    return total_R1


def _kernels(values: Tensor) -> Kernels | None:
    return kernels() if values.device.type == "cpu" and values.dtype == torch.float32 else None


class LogProbs:
    """The log-probabilities of one step, by the model alone: before any filter.

    `others`: of each row the ids and the log-probabilities of the likeliest `n_others` tokens; nothing if that is 0.
    """

    def __init__(self, logits_RV: Tensor, n_others: int) -> None:
        self.logits_RV, self.total_R1 = logits_RV, log_total(logits_RV)
        self.others: tuple[Tensor, ...] = ()
        if n_others:
            values_RA, ids_RA = top(logits_RV, n_others)
            self.others = ids_RA, values_RA - self.total_R1

    def of(self, rows: Tensor, tokens: Tensor) -> Tensor:
        """Of one token in each of these rows."""
        return self.logits_RV[rows, tokens] - self.total_R1[rows, 0]

    def token(self, row: int, token: int) -> Token:
        logprob = float(self.logits_RV[row, token] - self.total_R1[row, 0])
        if not self.others:
            return Token(token, logprob)
        ids, values = (part[row].tolist() for part in self.others)
        return Token(token, logprob, tuple(zip(ids, values, strict=True)))
