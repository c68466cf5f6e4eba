"""A user's mistakes, each told in one sentence."""

from collections.abc import Callable, Iterable

import pytest

from cutaway.errors import CutawayError


def assert_mistakes(mistakes: Iterable[tuple[Callable[[], object], str]]) -> None:
    """Each call raises an error of cutaway that begins with its sentence and is one line."""
    for call, sentence in mistakes:
        with pytest.raises(CutawayError) as caught:
            call()
        assert str(caught.value).startswith(sentence), str(caught.value)
        assert "\n" not in str(caught.value)
