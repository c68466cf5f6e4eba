"""From the rows of a search to the texts that are given."""

from dataclasses import replace

from cutaway.decoding.plan import Plan
from cutaway.decoding.state import IDS, LOGPROBS, OTHER_IDS, OTHER_LOGPROBS, DecodingState
from cutaway.decoding.stops import Stop
from cutaway.generation import Ended, Token, Written


def tokens_of(state: DecodingState, row: int, start: int) -> tuple[Token, ...]:
    """What one row holds from a column on."""
    ids, logprobs = (state.history[track][row, start:].tolist() for track in (IDS, LOGPROBS))
    if not state.plan.options.alternatives:
        return tuple(map(Token, ids, logprobs))
    others = zip(*(state.history[track][row, start:].tolist() for track in (OTHER_IDS, OTHER_LOGPROBS)), strict=True)
    return tuple(
        Token(id, logprob, tuple(zip(*other, strict=True)))
        for id, logprob, other in zip(ids, logprobs, others, strict=True)  # noqa: A001
    )


def finished(tokens: tuple[Token, ...], score: float, plan: Plan, room: int) -> Written:
    """A text as a record; an end token at its end is kept apart."""
    if not tokens or tokens[-1].id not in plan.ends:
        return Written(tokens, score, "length")
    end = tokens[-1].id
    ended: Ended = "end" if end in plan.usage.end else "stop"
    if end == plan.usage.last and len(tokens) == room:
        ended = "length"  # it had to be written there
    return Written(tokens[:-1], score, ended, end)


def stopped(written: Written, stop: Stop) -> Written:
    """A written text, cut off before a stop string that was found in it."""
    return replace(written, tokens=written.tokens[: stop.n_tokens], ended="stop", end=None, text=stop.text)


def score_of(tokens: tuple[Token, ...], length_penalty: float) -> float:
    """Sum of log-probabilities / length ** length_penalty"""
    return sum(token.logprob for token in tokens) / max(1, len(tokens)) ** length_penalty
