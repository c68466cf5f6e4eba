"""How much memory of Python's own some work takes."""

import tracemalloc
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def peak_of(work: Callable[[], T]) -> tuple[T, int]:
    """What it gives, and the most bytes that were held at once meanwhile."""
    tracemalloc.start()
    try:
        return work(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
