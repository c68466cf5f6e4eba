"""Answers as spans of a text: where each may begin and end, which is best, and whether there is one at all."""

from dataclasses import dataclass

import torch
from torch import Tensor

N_BEST = 20
"""Spans among which probabilities are shared, as in SQuAD's reference script."""


@dataclass(frozen=True)
class Span:
    """A part of the context, context[start:end]; None where a model answers in its own words."""

    text: str
    start: int | None
    end: int | None
    score: float
    """Its first token's start score plus its last token's end score; of an answer in own words, the text's score."""
    probability: float
    """Its share among the 20 best spans and "no answer"; of an answer in own words, that of the whole text."""


@dataclass(frozen=True)
class Answer(Span):
    """The best span, and the next best. An empty text says that the context does not have the answer."""

    others: tuple[Span, ...] = ()
    no_answer: float | None = None
    """How much better "there is no answer" scores than the best span (SQuAD 2.0); None: the model can't say."""


@dataclass(frozen=True)
class Window:
    """The best spans of one window: (score, first token, last token), counted in the context; and of no answer."""

    spans: list[tuple[float, int, int]]
    null: float | None


def best_spans(logits_S2: Tensor, first: int, max_tokens: int) -> list[tuple[float, int, int]]:
    """The best spans in a window whose first token is the `first` of the context."""
    start_S, end_S = logits_S2.unbind(-1)
    both_SS = start_S[:, None] + end_S[None, :]
    # the end is not before the start, nor max_tokens behind it
    allowed_SS = torch.ones_like(both_SS, dtype=torch.bool).triu().tril(max_tokens - 1)
    best = both_SS.masked_fill(~allowed_SS, -torch.inf).flatten().topk(min(N_BEST, int(allowed_SS.sum())))
    return [
        (score, first + place // len(start_S), first + place % len(start_S))
        for score, place in zip(best.values.tolist(), best.indices.tolist(), strict=True)
    ]


def best_answer(
    context: str, offsets: list[tuple[int, int]], windows: list[Window], top: int, no_answer_above: float | None
) -> Answer:
    """The best spans of all windows; one that lies in two counts once, by its better score.

    No answer scores as in the window that believes in it least: the others just do not hold the answer (SQuAD 2.0).
    """
    scores: dict[tuple[int, int], float] = {}
    for score, first, last in (span for window in windows for span in window.spans):
        place = offsets[first][0], offsets[last][1]
        scores[place] = max(score, scores.get(place, -torch.inf))
    best = sorted(scores.items(), key=lambda item: (-item[1], item[0]))[:N_BEST]
    if not best:
        return Answer("", 0, 0, 0.0, 0.0)
    null = min((window.null for window in windows if window.null is not None), default=-torch.inf)
    *shares, null_share = torch.tensor([*(score for _, score in best), null]).double().softmax(0).tolist()
    spans = [
        Span(context[start:end], start, end, score, share)
        for ((start, end), score), share in zip(best, shares, strict=True)
    ]
    chosen = spans[0]
    no_answer = None if null == -torch.inf else null - chosen.score
    if no_answer is not None and no_answer_above is not None and no_answer > no_answer_above:
        return Answer("", 0, 0, null, null_share, tuple(spans[: top - 1]), no_answer)
    return Answer(
        chosen.text, chosen.start, chosen.end, chosen.score, chosen.probability, tuple(spans[1:top]), no_answer
    )  # fmt: skip
