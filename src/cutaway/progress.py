"""How far long work is, how fast it goes and how long it will take."""

import time
from collections.abc import Sequence

_BASE = 2.0  # seconds of results from which a rate says something
_SAMPLES = 1000  # moments that are remembered, at most


class Pace:
    """Results counted as they come, and the time left.

    A first result waits until a model is ready, and the first windows of a stream are small: the rate is that of the
    last three quarters of what is done, and there is none before these took two seconds. Results of unlike size count
    by their size.
    """

    def __init__(self, total: int | None = None, sizes: Sequence[float] | None = None) -> None:
        """`sizes`: of each result, in the order in which they come; without them, all are alike."""
        self.n, self.total, self.done = 0, total, 0.0
        self._sizes = sizes
        self.all: float | None = sum(sizes) if sizes is not None else total
        self._seen: list[tuple[float, int, float]] = []  # when, how many, how much

    def add(self) -> float:
        """One more result; its size."""
        size = 1.0 if self._sizes is None else float(self._sizes[self.n])
        self.n, self.done = self.n + 1, self.done + size
        self._seen.append((time.monotonic(), self.n, self.done))
        if len(self._seen) > _SAMPLES:
            del self._seen[:-1:2]
        return size

    def _since(self) -> tuple[float, int, float] | None:
        """Seconds, results and their sizes in the last three quarters; None where there is no base yet."""
        if not self._seen:
            return None
        now, n, done = self._seen[-1]
        then, n_then, done_then = next(seen for seen in self._seen if seen[2] >= done / 4)
        return None if now - then < _BASE else (now - then, n - n_then, done - done_then)

    @property
    def left(self) -> float | None:
        """Seconds to the end, if there is a base to say."""
        if self.all is None or (since := self._since()) is None or since[2] == 0:
            return None
        waited = time.monotonic() - self._seen[-1][0]
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
