"""What a step makes of the scores of the next token before one is chosen, in the order of transformers' processors.

The order is part of the result: a penalty multiplies what a bias has added, a forced token is as likely as can be
whatever was banned before it, and what is suppressed after that is not written at all.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cutaway.decoding import filters

if TYPE_CHECKING:
    from cutaway.decoding.state import DecodingState

LARGEST_FACTOR = 1e30  # of an end's score: its power would be no number


def process_logits(state: "DecodingState", scores_RV: Tensor) -> Tensor:
    """The scores of tokens that may not come next are -inf, others higher or lower, as the options say.

    What is hidden in all rows is hidden in place: a copy of all scores would cost more than the rest.
    """
    options = state.plan.options
    if state.plan.looks_back:
        scores_RV = _by_history(state, scores_RV)
    scores_RV = _forced(state, _too_short(state, _hidden(scores_RV, state.plan.never)))
    if options.remove_invalid:
        scores_RV = filters.finite(scores_RV)
    if options.exponential_decay is not None:
        scores_RV = _ends_raised(state, scores_RV, *options.exponential_decay)
    scores_RV = _hidden(scores_RV, options.suppress)
    if options.begin_suppress:
        first = [state.begins_to_choose(text) for text in range(state.n_texts)]
        scores_RV = _hidden_in(state, scores_RV, first, options.begin_suppress)
    return scores_RV


def _by_history(state: "DecodingState", scores_RV: Tensor) -> Tensor:
    """What depends on the tokens so far, or on those of the source."""
    plan, options, history_RT = state.plan, state.plan.options, state.ids()
    first_R = state.first_columns() if any(state.first) else None
    if options.bias:
        scores_RV = filters.biased(scores_RV, history_RT, options.bias, first_R)
    if options.encoder_repetition_penalty != 1.0:
        source_RS = state.sources_by_row()
        scores_RV = filters.repetition_penalty(scores_RV, source_RS, 1 / options.encoder_repetition_penalty)
    if options.repetition_penalty != 1.0:
        scores_RV = filters.repetition_penalty(scores_RV, history_RT, options.repetition_penalty)
    if options.no_repeat_ngram:
        scores_RV = filters.no_repeat_ngram(scores_RV, history_RT, options.no_repeat_ngram, first_R)
    if options.encoder_no_repeat_ngram:
        scores_RV = _not_from_the_source(state, scores_RV, options.encoder_no_repeat_ngram)
    if plan.phrases:
        scores_RV = filters.banned(scores_RV, history_RT, plan.phrases, first_R)
    return scores_RV


def _not_from_the_source(state: "DecodingState", scores_RV: Tensor, n: int) -> Tensor:
    """No n tokens in a row stand in the text as they do in its source."""
    histories = state.ids().tolist()
    hidden: list[tuple[int, int]] = []
    for text, source in enumerate(state.sources):
        for row in range(text * state.width, (text + 1) * state.width):
            before = tuple(histories[row][max(state.first[text], state.length + 1 - n) : state.length])
            places = range(len(source) - n + 1) if len(before) == n - 1 else ()
            hidden += [(row, source[i + n - 1]) for i in places if source[i : i + n - 1] == before]
    if not hidden:
        return scores_RV
    where = torch.tensor(hidden, device=scores_RV.device)
    return scores_RV.index_put((where[:, 0], where[:, 1]), scores_RV.new_tensor(-torch.inf))


def _too_short(state: "DecodingState", scores_RV: Tensor) -> Tensor:
    """While a text is too short it does not end."""
    if not any(state.least):
        return scores_RV
    short = [state.written(text) < least for text, least in enumerate(state.least)]
    return _hidden_in(state, scores_RV, short, state.plan.ends)


def _forced(state: "DecodingState", scores_RV: Tensor) -> Tensor:
    """The tokens that must stand in the first and in the last place."""
    for token, places in ((state.plan.usage.first, state.first_places), (state.plan.usage.last, state.last_places)):
        if token is not None and any(forced := places()):
            only_V = torch.full_like(scores_RV[0], -torch.inf)
            only_V[token] = 0.0
            scores_RV = torch.where(_by_row(state, forced), only_V, scores_RV)
    return scores_RV


def _ends_raised(state: "DecodingState", scores_RV: Tensor, after: int, factor: float) -> Tensor:
    """Ends become likelier by |score| · (factor ** n - 1), n tokens after so many (below 1: less likely)."""
    if not state.plan.ends:
        return scores_RV
    n_late = [max(0, state.written(text) - after) for text in range(state.n_texts)]
    more_R1 = _by_row(state, [_power(factor, n) - 1 for n in n_late]).to(scores_RV)
    ends = torch.tensor(sorted(state.plan.ends), device=scores_RV.device)
    ends_RE = scores_RV[:, ends]
    raised_RE = torch.where(ends_RE.isfinite(), ends_RE + ends_RE.abs() * more_R1, ends_RE)
    return scores_RV.index_copy(1, ends, raised_RE)


def _power(factor: float, n: int) -> float:
    try:
        return min(factor**n, LARGEST_FACTOR)
    except OverflowError:
        return LARGEST_FACTOR


def _hidden(scores_RV: Tensor, tokens: Iterable[int]) -> Tensor:
    if hidden := sorted(tokens):
        scores_RV.index_fill_(1, torch.tensor(hidden, device=scores_RV.device), -torch.inf)
    return scores_RV


def _hidden_in(state: "DecodingState", scores_RV: Tensor, texts: Sequence[bool], tokens: Iterable[int]) -> Tensor:
    """These tokens are hidden in some of the texts only."""
    if all(texts):
        return _hidden(scores_RV, tokens)
    if not any(texts) or not (hidden := sorted(tokens)):
        return scores_RV
    without_RV = filters.hidden(scores_RV, torch.tensor(hidden, device=scores_RV.device))
    return torch.where(_by_row(state, texts), without_RV, scores_RV)


def _by_row(state: "DecodingState", values: Sequence[bool] | Sequence[float]) -> Tensor:
    """One value for each text, as a column of its rows."""
    return torch.tensor(values, device=state.plan.device).repeat_interleave(state.width)[:, None]
