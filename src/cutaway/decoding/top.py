"""The few largest of many numbers, and the logarithm of their sum: what a step of any search computes of its logits."""

import torch
from torch import Tensor

from cutaway.decoding.generation import Token

BLOCK = 64
NEAR = 2**18  # numbers that fit a processor's own memory, 1 MB of them
WORTH_BLOCKS = 2048  # numbers in a row; below, torch's own topk is as fast


def top(values_RV: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest values of each row, largest first, and their places: what `topk` gives, several times as fast.

    The k largest lie in the k blocks whose largest are largest. Finding the largest of a block needs no places, so it
    runs at the speed of memory; places are looked for in those blocks only.
    """
    R, V = values_RV.shape
    n_blocks = V // BLOCK
    if V < WORTH_BLOCKS or n_blocks < 4 * k or values_RV.device.type != "cpu":
        return values_RV.topk(min(k, V))
    blocks_RNX = values_RV[:, : n_blocks * BLOCK].view(R, n_blocks, BLOCK)
    chosen_RK = blocks_RNX.amax(-1).topk(k).indices
    found_RX = blocks_RNX.gather(1, chosen_RK[..., None].expand(-1, -1, BLOCK)).flatten(1)
    rest_RX = values_RV[:, n_blocks * BLOCK :]  # less than a block
    top_RK, places_RK = torch.cat((found_RX, rest_RX), 1).topk(k)
    block_RK = chosen_RK.gather(1, (places_RK // BLOCK).clamp(max=k - 1))
    in_rest_RK = n_blocks * BLOCK + places_RK - k * BLOCK
    return top_RK, torch.where(places_RK < k * BLOCK, block_RK * BLOCK + places_RK % BLOCK, in_rest_RK)


def log_total(logits_RV: Tensor) -> Tensor:
    """log Σ exp(logits) [R, 1]: what a logit lacks to be a log-probability.

    Half the time of torch's logsumexp or less: some rows at a time, so that the exponentials stay near the processor.
    """
    n_rows = max(1, NEAR // logits_RV.shape[1])
    if n_rows < len(logits_RV) and logits_RV.device.type == "cpu":
        return torch.cat([log_total(logits_RV[i : i + n_rows]) for i in range(0, len(logits_RV), n_rows)])
    highest_R1 = logits_RV.amax(-1, keepdim=True)
    return (logits_RV - highest_R1).exp_().sum(-1, keepdim=True).log_() + highest_R1


class Told:
    """What is told of a step's tokens: log-probabilities in the model's own eyes, before any filter, and the likeliest.

    `others`: of each row the ids and the log-probabilities of the likeliest `n_others` tokens; nothing if that is 0.
    """

    def __init__(self, logits_RV: Tensor, n_others: int) -> None:
        self.logits_RV, self.total_R1 = logits_RV, log_total(logits_RV)
        self.others: tuple[Tensor, ...] = ()
        if n_others:
            values_RA, ids_RA = top(logits_RV, n_others)
            self.others = ids_RA, values_RA - self.total_R1

    def logprobs(self, rows: Tensor, tokens: Tensor) -> Tensor:
        """Of one token in each of these rows."""
        return self.logits_RV[rows, tokens] - self.total_R1[rows, 0]

    def token(self, row: int, token: int) -> Token:
        logprob = float(self.logits_RV[row, token] - self.total_R1[row, 0])
        if not self.others:
            return Token(token, logprob)
        ids, values = (part[row].tolist() for part in self.others)
        return Token(token, logprob, tuple(zip(ids, values, strict=True)))
