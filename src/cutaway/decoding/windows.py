"""A stream of inputs, taken some thousand at a time: enough to be sorted by length, few enough for the memory."""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

WINDOW = 4096
"""Inputs that are sorted by length together."""
WINDOW_LENGTH = 4_000_000
"""Of all inputs of a window, so that long ones do not fill the memory."""
PATIENCE = 0.1
"""Seconds to wait for more inputs before those at hand are answered: a slow stream is answered line by line."""

X = TypeVar("X")
R = TypeVar("R")


class Materialized(Iterator[X]):
    """Inputs that are all there already: windows need not start small so that the first answer comes soon."""

    def __init__(self, inputs: Iterable[X]) -> None:
        self._inputs = iter(inputs)

    def __next__(self) -> X:
        return next(self._inputs)


def prepared(inputs: Iterator[X], prepare: Callable[[X], R]) -> Iterator[R]:
    """`prepare` on each input as it is taken; what fails here fails alone, after all that came before was answered."""
    results = map(prepare, inputs)
    return Materialized(results) if isinstance(inputs, Materialized) else results


def windows(inputs: Iterator[X], length: Callable[[X], int], longest: int = WINDOW_LENGTH) -> Iterator[list[X]]:
    """The inputs in order, up to `WINDOW` at a time; a window is closed when its inputs are `longest` together.

    A stream's first window is one input and each next twice as many, so that the first answer comes at once; after the
    stream has paused, again. If the stream fails, what it gave before comes first.
    """
    most = WINDOW if isinstance(inputs, Materialized) else 1
    window: list[X] = []
    total, asked = 0, time.monotonic()
    failed: Exception | None = None
    while True:
        try:
            item = next(inputs)
        except StopIteration:
            break
        except Exception as error:
            failed = error
            break
        window.append(item)
        total += length(item)
        slow = time.monotonic() - asked > PATIENCE and not isinstance(inputs, Materialized)
        if len(window) >= most or total >= longest or slow:
            yield window
            window, total, asked = [], 0, time.monotonic()
            most = 1 if slow else min(2 * most, WINDOW)
    if window:
        yield window
    if failed is not None:
        raise failed
