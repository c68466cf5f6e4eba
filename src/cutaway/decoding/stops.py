"""Stop strings: where a text that is being written ends because of what it says."""

from collections.abc import Sequence
from dataclasses import dataclass

from cutaway.decoding.plan import Decode


@dataclass(frozen=True)
class Stop:
    """The text before a stop string, and how many tokens lie before it whole."""

    text: str
    n_tokens: int


def find_stop(ids: Sequence[int], stops: Sequence[str], decode: Decode) -> Stop | None:
    """The first stop string in what these tokens say, if there is one.

    It is looked for at the end first, so that a long text is not decoded whole at every step: a letter has at most four
    tokens (its bytes).
    """
    window = 4 * max(map(len, stops)) + 16
    if len(ids) > window:
        tail = decode(ids[-window:])
        if not any(stop in tail for stop in stops):
            return None
    text = decode(ids)
    places = [place for place in (text.find(stop) for stop in stops) if place >= 0]
    if not places:
        return None
    return Stop(text[: min(places)], n_whole_tokens(ids, min(places), decode))


def n_whole_tokens(ids: Sequence[int], n_letters: int, decode: Decode) -> int:
    """How many of the first tokens say no more than so many letters."""
    n = len(ids)
    while n and len(decode(ids[:n])) > n_letters:
        n -= 1
    return n


def n_streamable_tokens(ids: Sequence[int], stops: Sequence[str], decode: Decode) -> int:
    """How many of the first tokens no later token can make part of a stop string: what a stream may give away."""
    text = decode(ids)
    begun = max(
        (n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n])),
        default=0,
    )
    return n_whole_tokens(ids, len(text) - begun, decode)
