"""The queue of requests: a few are computed at a time, a bounded number waits, and each has a deadline."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

from cutaway.studio.limits import Limits

T = TypeVar("T")
_POLL = 0.05  # seconds between two checks of whether the client is still there
_END = object()


class HTTPRefusal(Exception):  # noqa: N818  # a refusal is not a bug
    """An HTTP error: a status, and a sentence for the client."""

    def __init__(self, status: int, sentence: str, *, retry_after: int | None = None) -> None:
        super().__init__(sentence)
        self.status, self.retry_after = status, retry_after

    @property
    def headers(self) -> dict[str, str]:
        if self.status == 401:
            return {"WWW-Authenticate": "Bearer"}
        return {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}


class Stopped(Exception):  # noqa: N818
    """Raised inside work that is late, or whose client has left."""


class Deadline:
    """The end of a request's time: work calls `check` now and then, which raises `Stopped` when it should end."""

    def __init__(self, seconds: float) -> None:
        self.end = time.monotonic() + seconds
        self.stopped = False

    @property
    def is_late(self) -> bool:
        return time.monotonic() > self.end

    def check(self) -> None:
        if self.stopped or self.is_late:
            raise Stopped


Left = Callable[[], Awaitable[bool]]
"""Whether the client has left."""


class WorkQueue:
    """Runs work in a few threads; what comes while they are busy waits."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.threads = ThreadPoolExecutor(limits.working, thread_name_prefix="studio")
        self.n_inside = 0

    def close(self) -> None:
        self.threads.shutdown(wait=False, cancel_futures=True)

    def _enter(self) -> Deadline:
        if self.n_inside >= self.limits.working + self.limits.waiting:
            raise HTTPRefusal(
                429, f"{self.n_inside} requests are being answered already; try again soon", retry_after=1
            )
        self.n_inside += 1
        return Deadline(self.limits.seconds)

    def _leave(self, *_: object) -> None:
        self.n_inside -= 1

    def _late(self) -> HTTPRefusal:
        return HTTPRefusal(503, f"this took longer than {self.limits.seconds:g} s; ask for less", retry_after=1)

    async def do(self, work: Callable[[Deadline], T], left: Left) -> T:
        """The result of `work`, which is stopped when it is late or the client leaves."""
        deadline = self._enter()

        def begin() -> T:
            deadline.check()
            return work(deadline)

        done = asyncio.get_running_loop().run_in_executor(self.threads, begin)
        done.add_done_callback(self._leave)  # a place is free when the thread is, not when the client has gone
        try:
            while not done.done():
                await asyncio.wait({done}, timeout=_POLL)
                if not done.done() and (deadline.is_late or await left()):
                    raise self._late()
            return done.result()
        except Stopped:
            raise self._late() from None
        finally:
            deadline.stopped = True
            done.add_done_callback(_forget)

    async def stream(self, work: Callable[[Deadline], Iterator[T]]) -> AsyncIterator[T]:
        """The results of `work`, as it yields them; closing the iterator stops the work."""
        deadline = self._enter()
        loop = asyncio.get_running_loop()
        found: asyncio.Queue[T | BaseException | object] = asyncio.Queue()

        def run() -> None:
            try:
                deadline.check()
                for each in work(deadline):
                    deadline.check()
                    loop.call_soon_threadsafe(found.put_nowait, each)
            except BaseException as error:
                with suppress(RuntimeError):  # the loop is closed: there is no client
                    loop.call_soon_threadsafe(found.put_nowait, error)
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(found.put_nowait, _END)

        done = loop.run_in_executor(self.threads, run)
        done.add_done_callback(self._leave)
        try:
            while (each := await found.get()) is not _END:
                if isinstance(each, Stopped):
                    raise self._late()
                if isinstance(each, BaseException):
                    raise each
                yield each  # type: ignore[misc]  # _END and errors are gone
        finally:
            deadline.stopped = True


def _forget(done: "asyncio.Future[Any]") -> None:
    """Retrieves an error whose client has left, so that asyncio does not report it."""
    if not done.cancelled():
        done.exception()
