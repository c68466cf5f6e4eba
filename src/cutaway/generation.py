"""Generation, the settings of a search, and its input and output: plain records for search, engines and tasks."""

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, Literal, Self

from cutaway.aliases import unknown_option
from cutaway.checks import Count, NumberRule, Positive, Probability, Size, check_fields
from cutaway.errors import ConfigError

Share = Annotated[float, NumberRule("above 0 and at most 1", lambda number: 0 < number <= 1)]
Exponent = Annotated[float, NumberRule("from -10 to 10", lambda number: -10 <= number <= 10)]
Penalty = Annotated[float, NumberRule("above 0", lambda number: number > 0)]
EarlyStopping = bool | Literal["never"]


@dataclass(frozen=True, kw_only=True)
class Generation:
    """The settings of a search. The defaults are greedy search; None leaves the choice to the model (see `Usage`)."""

    # length, in tokens that are written (a forced prefix counts, a decoder-only model's prompt does not)
    max_new_tokens: Size | None = None
    min_new_tokens: Count | None = None
    # beam search
    beams: Size | None = None
    n_best: Size = 1  # how many texts to give, best first; fewer, if no more are possible
    length_penalty: Exponent = 1.0  # score = sum of log-probabilities / length ** length_penalty
    early_stopping: EarlyStopping = False  # True: stop at `beams` finished texts; "never": only if none can be better
    beam_groups: Size = 1  # groups that are kept apart by `diversity`
    diversity: float = 0.0
    # sampling
    sample: bool = False
    temperature: Positive = 1.0
    top_k: Size | None = None
    top_p: Share | None = None
    min_p: Share | None = None
    typical_p: Share | None = None
    top_h: Share | None = None
    epsilon_cutoff: Probability = 0.0
    eta_cutoff: Probability = 0.0
    seed: Count | None = None
    # what may be written
    repetition_penalty: Penalty = 1.0
    encoder_repetition_penalty: Penalty = 1.0  # above 1: tokens of the source (or the prompt) become likelier
    no_repeat_ngram: Count = 0
    encoder_no_repeat_ngram: Count = 0  # no so many tokens in a row from the source (or the prompt)
    exponential_decay: tuple[int, float] | None = None  # (n, factor): after n tokens an end becomes likelier at each
    bias: tuple[tuple[tuple[int, ...], float], ...] = ()  # what is added to the score of the last of some tokens
    suppress: tuple[int, ...] = ()  # tokens that are never written, not even as an end
    begin_suppress: tuple[int, ...] = ()  # tokens that no text begins with
    remove_invalid: bool = False  # a score that is not a number counts as 0
    renormalize: bool = False  # beam search: probabilities add up to 1 again after all of this
    stop: tuple[str, ...] = ()  # a text ends before the first of these
    stop_ids: tuple[int, ...] = ()  # besides the model's own end tokens
    prefix: tuple[int, ...] = ()  # every text begins with these tokens
    force: tuple[tuple[int, ...], ...] = ()  # token sequences that must occur (beam search only)
    ban: tuple[tuple[int, ...], ...] = ()  # token sequences that must not
    # reported for each token
    scores: bool = True  # False: greedy search and sampling leave out log-probabilities (NaN), which saves some time
    alternatives: Count = 0  # the number of likeliest tokens of each step to report
    # work
    cached: bool = True  # False computes every step from the start: slow, for comparison
    batch_tokens: Size = 2048  # how many tokens go into one batch: sources (or prompts and what is written) × beams

    def __new__(cls, **options: Any) -> Self:
        """Names are checked here, before the dataclass's own __init__ answers an unknown one with a TypeError."""
        _check_names(options)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        check_fields(self)


def changed(generation: Generation, changes: dict[str, Any]) -> Generation:
    """`generation` with these fields changed; an unknown name is an error that suggests a field."""
    _check_names(changes)
    return replace(generation, **changes)


SAMPLING = ("temperature", "top_k", "top_p", "min_p", "typical_p", "top_h", "epsilon_cutoff", "eta_cutoff")
"""The fields that change the distribution that is drawn from."""

_IDLE: dict[str, Any] = {each.name: each.default for each in fields(Generation) if each.name in SAMPLING}


def sampling_options_in_use(generation: Generation) -> dict[str, Any]:
    """The fields of SAMPLING that differ from their defaults."""
    return {name: getattr(generation, name) for name, idle in _IDLE.items() if getattr(generation, name) != idle}


def without_sampling(generation: Generation) -> Generation:
    """The same search without sampling: it looks for the likeliest text."""
    return replace(generation, sample=False, seed=None, **_IDLE)


def limited(generation: Generation, n: int) -> Generation:
    """The same with at most n new tokens, and no more than n at least."""
    least = generation.min_new_tokens
    return replace(generation, max_new_tokens=n, min_new_tokens=None if least is None else min(least, n))


def _check_names(options: Iterable[str]) -> None:
    known = [field.name for field in fields(Generation)]
    for name in options:
        if name not in known:
            raise ConfigError(unknown_option(name, known))


@dataclass(frozen=True)
class Prompt:
    """The input of one text: the source of an encoder-decoder, or the beginning of the text."""

    ids: tuple[int, ...]
    room: int | None = None  # tokens that may follow it at most, whatever the options allow


@dataclass(frozen=True)
class Token:
    """One written token, its log-probability, and the likeliest tokens there: (id, log-probability), best first."""

    id: int
    logprob: float
    alternatives: tuple[tuple[int, float], ...] = ()


Ended = Literal["end", "stop", "length"]
"""By an end token, by a stop string or id, or at the limit of length."""


@dataclass(frozen=True)
class Written:
    """A text that a search has written, token by token: without the prompt, the start token and the end token."""

    tokens: tuple[Token, ...]
    score: float  # sum of log-probabilities (the end's too) / length ** length_penalty
    ended: Ended
    end: int | None = None  # the end token, if it was written
    text: str | None = None  # the text before a stop string, which may begin within a token; else None

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(token.id for token in self.tokens)
