"""Progress of long work: its count, its rate and the time left."""

import time
from collections.abc import Sequence

_BASE = 2.0  # seconds of results that a rate needs
_SAMPLES = 1000  # samples that are kept, at most


class Pace:
    """Counts results as they come, and estimates the time left.

    The first result waits for the model, and the first windows of a stream are small: the rate is that of the last
    three quarters of the finished work, and there is none before these took two seconds. Results of different sizes
    count by their size.
    """

    def __init__(self, total: int | None = None, sizes: Sequence[float] | None = None) -> None:
        """`sizes`: of the results, in the order in which they come; without them, all are equal."""
        self.n, self.total, self.done = 0, total, 0.0
        self._sizes = sizes
        self.all: float | None = sum(sizes) if sizes is not None else total
        self._samples: list[tuple[float, int, float]] = []  # time, results, their size

    def add(self) -> float:
        """Counts one more result; returns its size."""
        size = 1.0 if self._sizes is None else float(self._sizes[self.n])
        self.n, self.done = self.n + 1, self.done + size
        self._samples.append((time.monotonic(), self.n, self.done))
        if len(self._samples) > _SAMPLES:
            del self._samples[:-1:2]
        return size

    def _since(self) -> tuple[float, int, float] | None:
        """Seconds, results and their sizes in the last three quarters; None before these took two seconds."""
        if not self._samples:
            return None
        now, n, done = self._samples[-1]
        then, n_then, done_then = next(sample for sample in self._samples if sample[2] >= done / 4)
        return None if now - then < _BASE else (now - then, n - n_then, done - done_then)

    @property
    def left(self) -> float | None:
        """Seconds to the end; None without a rate."""
        if self.all is None or (since := self._since()) is None or since[2] == 0:
            return None
        waited = time.monotonic() - self._samples[-1][0]
        return max(0.0, (self.all - self.done) * since[0] / since[2] - waited)

    def __str__(self) -> str:
        """`120 of 1,000, 12.3/s, 1:11 left`"""
        text = f"{self.n:,}" + ("" if self.total is None else f" of {self.total:,}")
        if (since := self._since()) is not None:
            text += f", {since[1] / since[0]:,.1f}/s"
        if (left := self.left) is not None:
            text += f", {duration(left)} left"
        return text


def duration(seconds: float) -> str:
    """59:59, or 1:00:00"""
    minutes, whole = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{whole:02}" if hours else f"{minutes}:{whole:02}"
