"""What changes the scores of the next token before one is chosen: pure functions, logits [B, V] -> logits [B, V].

A token that may not be written gets -inf. A history [B, T] holds the tokens so far; rows that begin later than column 0
(`first_B`) hold any token of their own before that, so that nothing foreign is penalised.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Filter = Callable[[Tensor], Tensor]
"""logits [B, V] -> logits [B, V]; how sampling changes a distribution."""


def temperature(logits_BV: Tensor, value: float) -> Tensor:
    """logits / temperature: below 1 the likely become likelier."""
    if value < 1e-3:  # or quotients may be too large for a number: next to 0 only the likeliest is left
        return (logits_BV - logits_BV.amax(-1, keepdim=True)) / max(value, 1e-30)
    return logits_BV / value


def top_k(logits_BV: Tensor, k: int) -> Tensor:
    """The k likeliest tokens, and those as likely as the last of them."""
    kth_B1 = logits_BV.topk(min(k, logits_BV.shape[-1])).values[:, -1:]
    return logits_BV.masked_fill(logits_BV < kth_B1, -torch.inf)


def top_p(logits_BV: Tensor, p: float) -> Tensor:
    """The fewest likeliest tokens that hold a share p of the probability (the nucleus); one at least."""
    rising_BV, order_BV = logits_BV.sort(descending=False)
    rare_BV = rising_BV.softmax(-1).cumsum(-1) <= 1 - p
    rare_BV[:, -1] = False
    return logits_BV.masked_fill(rare_BV.scatter(1, order_BV, rare_BV), -torch.inf)


def min_p(logits_BV: Tensor, share: float) -> Tensor:
    """The tokens at least `share` times as likely as the likeliest."""
    probabilities_BV = logits_BV.softmax(-1)
    least_B1 = share * probabilities_BV.amax(-1, keepdim=True)
    return logits_BV.masked_fill(probabilities_BV < least_B1, -torch.inf)


def top_h(logits_BV: Tensor, share: float) -> Tensor:
    """The likeliest tokens whose share of the entropy (of the 100 likeliest) is at most this; one at least.

    Potraka et al., 2025: top-H decoding.
    """
    top_BK, order_BK = logits_BV.topk(min(100, logits_BV.shape[-1]))
    probabilities_BK = top_BK.softmax(-1)
    entropy_BK = -(probabilities_BK * probabilities_BK.clamp(min=torch.finfo(top_BK.dtype).tiny).log())
    kept_BK = entropy_BK.cumsum(-1) <= share * entropy_BK.sum(-1, keepdim=True)
    kept_BK[:, 0] = True
    return logits_BV.masked_fill(
        ~torch.zeros_like(logits_BV, dtype=torch.bool).scatter(1, order_BK, kept_BK), -torch.inf
    )


def typical_p(logits_BV: Tensor, p: float) -> Tensor:
    """The tokens whose information is nearest to the entropy, until they hold a share p of the probability.

    Meister et al., 2023: locally typical sampling.
    """
    logprobs_BV = logits_BV.log_softmax(-1)
    entropy_B1 = -(logprobs_BV * logprobs_BV.exp()).nansum(-1, keepdim=True)
    distance_BV, order_BV = (-logprobs_BV - entropy_B1).abs().sort()
    held_BV = logits_BV.gather(1, order_BV).softmax(-1).cumsum(-1)
    last_B1 = (held_BV < p).sum(-1, keepdim=True).clamp(max=logits_BV.shape[-1] - 1)
    far_BV = distance_BV > distance_BV.gather(1, last_B1)
    far_BV[:, 0] = False
    return logits_BV.masked_fill(far_BV.scatter(1, order_BV, far_BV), -torch.inf)


def epsilon_cutoff(logits_BV: Tensor, epsilon: float) -> Tensor:
    """The tokens of at least this probability; the likeliest at least."""
    return _above(logits_BV, epsilon)


def eta_cutoff(logits_BV: Tensor, epsilon: float) -> Tensor:
    """The same, but a flat distribution keeps less likely tokens: min(ε, √ε · exp(-entropy)).

    Hewitt et al., 2022: truncation sampling as language model desmoothing.
    """
    logprobs_BV = logits_BV.log_softmax(-1)
    entropy_B1 = -(logprobs_BV.exp() * logprobs_BV.clamp(min=torch.finfo(logits_BV.dtype).min)).sum(-1, keepdim=True)
    return _above(logits_BV, (epsilon**0.5 * (-entropy_B1).exp()).clamp(max=epsilon))


def _above(logits_BV: Tensor, least: Tensor | float) -> Tensor:
    rare_BV = (logits_BV.softmax(-1) < least) & (logits_BV < logits_BV.amax(-1, keepdim=True))
    return logits_BV.masked_fill(rare_BV, -torch.inf)


def repetition_penalty(logits_BV: Tensor, history_BT: Tensor, penalty: float) -> Tensor:
    """Tokens of the history become less likely: positive scores are divided by the penalty, negative multiplied."""
    seen_BT = logits_BV.gather(1, history_BT)
    return logits_BV.scatter(1, history_BT, torch.where(seen_BT < 0, seen_BT * penalty, seen_BT / penalty))


def no_repeat_ngram(logits_BV: Tensor, history_BT: Tensor, n: int, first_B: Tensor | None = None) -> Tensor:
    """No n tokens in a row stand twice in a text."""
    T = history_BT.shape[1]
    if n > T:
        return logits_BV
    windows_BTN = history_BT.unfold(1, n, 1)
    ending_BN = history_BT[:, T + 1 - n :]
    again_BT = (windows_BTN[..., :-1] == ending_BN.unsqueeze(1)).all(-1)
    if first_B is not None:
        again_BT &= torch.arange(again_BT.shape[1], device=first_B.device) >= first_B[:, None]
    rows, places = again_BT.nonzero(as_tuple=True)
    return logits_BV.index_put((rows, windows_BTN[rows, places, -1]), logits_BV.new_tensor(-torch.inf))


def banned(
    logits_BV: Tensor, history_BT: Tensor, sequences: Sequence[Sequence[int]], first_B: Tensor | None = None
) -> Tensor:
    """None of these sequences is completed by the next token."""
    T = history_BT.shape[1]
    logits_BV = logits_BV.clone()
    for sequence in sequences:
        n = len(sequence) - 1
        if n > T:
            continue
        begun_B = (history_BT[:, T - n :] == history_BT.new_tensor(sequence[:-1])).all(-1)
        if first_B is not None:
            begun_B &= first_B <= T - n
        logits_BV[begun_B, sequence[-1]] = -torch.inf
    return logits_BV


def biased(
    logits_BV: Tensor,
    history_BT: Tensor,
    biases: Sequence[tuple[Sequence[int], float]],
    first_B: Tensor | None = None,
) -> Tensor:
    """A number is added to the score of a token that would complete a sequence; of a single token, always."""
    T = history_BT.shape[1]
    bias_BV = torch.zeros_like(logits_BV)
    for sequence, value in biases:
        n = len(sequence) - 1
        if n > T:
            continue
        begun_B = (history_BT[:, T - n :] == history_BT.new_tensor(sequence[:-1])).all(-1)
        if first_B is not None:
            begun_B &= first_B <= T - n
        bias_BV[begun_B, sequence[-1]] += value
    return logits_BV + bias_BV


def finite(logits_BV: Tensor) -> Tensor:
    """What is not a number becomes 0, what is infinite the largest or the smallest number."""
    return logits_BV.nan_to_num(0.0)


def hidden(logits_BV: Tensor, tokens: Tensor) -> Tensor:
    """None of these tokens is written: those a model must never write, or its ends while a text is too short."""
    return logits_BV.index_fill(1, tokens, -torch.inf)
