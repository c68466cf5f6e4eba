"""What is asked of a search, and what it gives: plain records that search, engines and tasks share."""

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, Literal, Self, TypedDict

from cutaway.aliases import unknown_option
from cutaway.checks import Count, Positive, Rule, Size, check_fields
from cutaway.errors import ConfigError

Share = Annotated[float, Rule("above 0 and at most 1", lambda number: 0 < number <= 1)]
Exponent = Annotated[float, Rule("from -10 to 10", lambda number: -10 <= number <= 10)]
Penalty = Annotated[float, Rule("above 0", lambda number: number > 0)]


@dataclass(frozen=True, kw_only=True)
class Generation:
    """How to write. The defaults are greedy search; None leaves the choice to the model (see `Usage`)."""

    # length, in tokens that are written (a forced prefix counts, a decoder-only model's prompt does not)
    max_new_tokens: Size | None = None
    min_new_tokens: Count = 0
    # beam search
    beams: Size | None = None
    n_best: Size = 1  # how many texts to give, best first; fewer, if no more are possible
    length_penalty: Exponent = 1.0  # score = sum of log-probabilities / length ** length_penalty
    early_stopping: bool = False  # stop at `beams` finished texts; otherwise while a better one is possible
    beam_groups: Size = 1  # groups that are kept apart by `diversity`
    diversity: float = 0.0
    # sampling
    sample: bool = False
    temperature: Positive = 1.0
    top_k: Size | None = None
    top_p: Share | None = None
    min_p: Share | None = None
    seed: Count | None = None
    # what may be written
    repetition_penalty: Penalty = 1.0
    no_repeat_ngram: Count = 0
    stop: tuple[str, ...] = ()  # a text ends before the first of these
    stop_ids: tuple[int, ...] = ()  # besides the model's own end tokens
    prefix: tuple[int, ...] = ()  # every text begins with these tokens
    force: tuple[tuple[int, ...], ...] = ()  # token sequences that must occur (beam search only)
    ban: tuple[tuple[int, ...], ...] = ()  # token sequences that must not
    # what is told of each token
    scores: bool = True  # False: greedy search and sampling leave out log-probabilities (NaN), which saves some time
    alternatives: Count = 0  # how many of the likeliest tokens of each step to give
    # work
    cached: bool = True  # False computes every step from the start: slow, for comparison
    batch_tokens: Size = 2048  # how many tokens go into one batch: sources (or prompts and what is written) × beams

    def __new__(cls, **options: Any) -> Self:
        """Names are checked here, before the dataclass's own __init__ answers an unknown one with a TypeError."""
        _check_names(options)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        check_fields(self)


class Numbers(TypedDict, total=False):
    """The fields of Generation that say nothing of words."""

    max_new_tokens: int | None
    min_new_tokens: int
    beams: int | None
    n_best: int
    length_penalty: float
    early_stopping: bool
    beam_groups: int
    diversity: float
    sample: bool
    temperature: float
    top_k: int | None
    top_p: float | None
    min_p: float | None
    seed: int | None
    repetition_penalty: float
    no_repeat_ngram: int
    stop_ids: tuple[int, ...]
    scores: bool
    alternatives: int
    cached: bool
    batch_tokens: int


class Changes(Numbers, total=False):
    """The fields of Generation, as keyword arguments; a test holds the two equal. Tasks take words as text instead."""

    stop: tuple[str, ...]
    prefix: tuple[int, ...]
    force: tuple[tuple[int, ...], ...]
    ban: tuple[tuple[int, ...], ...]


def changed(generation: Generation, changes: dict[str, Any]) -> Generation:
    """`generation` with these fields changed; a name that is none of its fields is an error that suggests one."""
    _check_names(changes)
    return replace(generation, **changes)


def _check_names(options: Iterable[str]) -> None:
    known = [field.name for field in fields(Generation)]
    for name in options:
        if name not in known:
            raise ConfigError(unknown_option(name, known))


@dataclass(frozen=True)
class Prompt:
    """What one text is written from: the source of an encoder-decoder, or the beginning of a text."""

    ids: tuple[int, ...]


@dataclass(frozen=True)
class Token:
    """One written token, how likely it was, and what else was likely there: (id, log-probability), best first."""

    id: int
    logprob: float
    alternatives: tuple[tuple[int, float], ...] = ()


Ended = Literal["end", "stop", "length"]
"""By an end token, a stop string or id, or for want of room."""


@dataclass(frozen=True)
class Written:
    """One text, as tokens: without the prompt, the start token and the end token."""

    tokens: tuple[Token, ...]
    score: float  # sum of log-probabilities (the end's too) / length ** length_penalty
    ended: Ended
    end: int | None = None  # the end token, if it was written
    text: str | None = None  # what stands before a stop string, which may begin within a token; else None

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(token.id for token in self.tokens)
