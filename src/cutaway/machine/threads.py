"""Threads: a worker for each core with one thread of torch's, and the number of threads that share a product."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from itertools import islice
from pathlib import Path
from queue import SimpleQueue
from typing import Self, TypeVar

import torch

from cutaway.machine.environment import THREADS, forced
from cutaway.machine.processor import cores

X = TypeVar("X")
R = TypeVar("R")


def limit() -> None:
    """Limits torch's threads to CUTAWAY_THREADS."""
    if (n := forced(THREADS)) is not None:
        torch.set_num_threads(min(int(n), cores()))


class ThreadPool:
    """Threads that compute side by side, with one thread of torch's each.

    A core that computes a batch of its own never waits for the others; torch's way, all of them on one batch, waits
    after each of a hundred operations.
    """

    def __init__(self, n: int) -> None:
        self.n, self.before = n, torch.get_num_threads()
        self._executor = ThreadPoolExecutor(n, "cutaway", initializer=torch.set_num_threads, initargs=(1,))

    def submit(self, function: Callable[..., R], *arguments: object) -> "Future[R]":
        """Calls it in the context that is the caller's now."""
        return self._executor.submit(copy_context().run, function, *arguments)

    def map(self, function: Callable[[X], R], items: Iterable[X], *, at_once: int | None = None) -> Iterator[R]:
        """Results in order; `at_once`: no more of them are there, or in the making, at a time."""
        left, running = iter(items), deque[Future[R]]()
        running.extend(self.submit(function, item) for item in islice(left, at_once))
        while running:
            yield running.popleft().result()
            running.extend(self.submit(function, item) for item in islice(left, 1))

    def close(self) -> None:
        """Waits for what runs, and forgets what has not begun."""
        self._executor.shutdown(cancel_futures=True)
        torch.set_num_threads(self.before)  # part of what a thread sets holds for all

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def side_by_side(function: Callable[[X], R], items: Sequence[X], *, parallel: bool = True) -> Iterator[R]:
    """`map` by a thread for each core, results in order. Few items are taken one by one, and all if not `parallel`."""
    n = torch.get_num_threads()
    if n == 1 or len(items) < 2 * n or not parallel:
        yield from map(function, items)
        return
    with ThreadPool(n) as pool:
        yield from pool.map(function, items)


def merged(makers: Sequence[Callable[[], Iterator[X]]], stop: Callable[[], None]) -> Iterator[X]:
    """What several iterators give, as it comes: each is made and read in a thread of its own, with one thread of
    torch's. `stop` makes them end early; an error in one of them is raised here."""
    found: SimpleQueue[tuple[X] | BaseException | None] = SimpleQueue()

    def work(make: Callable[[], Iterator[X]]) -> None:
        try:
            for each in make():
                found.put((each,))
        except BaseException as error:  # it is raised where the results are awaited
            found.put(error)
        finally:
            found.put(None)

    with ThreadPool(len(makers)) as pool:
        try:
            for make in makers:
                pool.submit(work, make)
            for _ in makers:
                while (each := found.get()) is not None:
                    if isinstance(each, BaseException):
                        raise each
                    yield each[0]
        finally:
            stop()


class AdaptiveThreads:
    """As many of torch's threads as cores are idle: all of them, or one while other programs keep the machine busy.

    Threads that compute one product together wait for the slowest of them. Where other programs keep the cores busy,
    one of them is always off its core, and 100 captions took 5.4, 4.6 and 135 s instead of 2.1. Linux reports how long
    this thread was ready to run and had no core; where it does not, all threads are used. Leaving the context restores
    them.
    """

    EVERY = 0.1  # seconds between two readings
    BUSY = 0.1  # waiting, as a share of the time that it could have run
    LONGEST = 3.2  # seconds until more threads are tried again, at most

    def __init__(self, n: int) -> None:
        """`n`: all of them, which torch uses now."""
        self.n = self.now = n
        self.pause = 4 * self.EVERY
        self.times = _run_and_wait()
        self.read_at = self.reduced = 0.0
        if self._was_busy((0, 0)):
            self.set(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.set(self.n)

    def set(self, n: int) -> None:
        """Sets the number of threads that share a product."""
        if n != self.now:
            self.now = n
            torch.set_num_threads(n)

    def adjust(self) -> None:
        """Adapts the number of threads; call it between two steps of the work."""
        now = time.monotonic()
        if now - self.read_at < self.EVERY:
            return
        self.read_at = now
        before, self.times = self.times, _run_and_wait()
        if self._was_busy(before):
            if self.now > 1:
                self.pause = min(2 * self.pause, self.LONGEST)
                self.set(1)
            self.reduced = now
        elif self.now == 1 and now - self.reduced > self.pause:
            self.set(self.n)

    def _was_busy(self, before: tuple[int, int]) -> bool:
        run, wait = (after - earlier for after, earlier in zip(self.times, before, strict=True))
        return wait > self.BUSY * (run + wait)


def _run_and_wait() -> tuple[int, int]:
    """Nanoseconds that this thread has run, and has waited for a core; 0 where the system does not report them."""
    try:
        run, wait, _ = Path("/proc/thread-self/schedstat").read_text(encoding="ascii").split()
        return int(run), int(wait)
    except (OSError, ValueError):
        return 0, 0
