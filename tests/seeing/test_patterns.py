"""Patterns of names: bounded, so that none takes longer than it is worth."""

import contextlib
import time
import tracemalloc

import pytest

from cutaway.errors import InputError
from cutaway.parts.tap import matching
from cutaway.seeing.interventions.edits import listeners, read_edits
from tests.support import small_models as small

HARD = ["*" * 200, "*a" * 100, "*[!x]" * 40, "?*" * 100, "[" * 200, "[!" * 100, "**.*" * 50, "*e" * 99 + "z"]


@pytest.mark.parametrize("pattern", ["[!" * 10_000, "*" * 8_000_000, "a" * 201])
def test_a_long_pattern_is_refused_at_once(pattern: str) -> None:
    network, begin = small.model("gpt2").network, time.monotonic()
    for edit in ({"kind": "zero", "value": pattern}, {"kind": "off", "what": "mask", "where": pattern}):
        with pytest.raises(InputError, match=r"a pattern of [\d,]+ characters is too long; names have at most 200"):
            listeners(network, read_edits([edit]))
    assert time.monotonic() - begin < 1, "21 s before, for 20,000 characters"


@pytest.mark.parametrize("pattern", HARD)
def test_the_hardest_pattern_takes_no_time(pattern: str) -> None:
    network, begin = small.model("gpt2").network, time.monotonic()
    with contextlib.suppress(InputError):
        matching(network, pattern)
    assert time.monotonic() - begin < 0.5


def test_patterns_are_not_kept() -> None:
    """They come from requests, by the thousand; Python's own cache of expressions has 512 places."""
    network = small.model("gpt2").network

    def ask(numbers: range) -> int:
        for i in numbers:
            with pytest.raises(InputError):
                matching(network, "*[!x]" * 38 + str(i))
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        first = ask(range(600))
        assert ask(range(1000, 1600)) - first < 0.3 * first
    finally:
        tracemalloc.stop()
