"""Who is served when: a few requests at a time, a bounded number waiting, each with a deadline."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

from cutaway.studio.limits import Limits

T = TypeVar("T")
_LOOK = 0.05  # seconds between two looks at whether somebody still waits
_END = object()


class HTTPRefusal(Exception):  # noqa: N818  # it is no error of ours
    """A sentence for the client, and the status that goes with it."""

    def __init__(self, status: int, sentence: str, *, retry_after: int | None = None) -> None:
        super().__init__(sentence)
        self.status, self.retry_after = status, retry_after

    @property
    def headers(self) -> dict[str, str]:
        if self.status == 401:
            return {"WWW-Authenticate": "Bearer"}
        return {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}


class Stopped(Exception):  # noqa: N818
    """Raised inside work that nobody waits for any more."""


class Deadline:
    """What work asks from time to time: `check` raises when it should stop."""

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
    """Work is done in threads; what is asked for here waits for a free one."""

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
        """What `work` gives. It is stopped when it is late, or when the client leaves."""
        ticket = self._enter()

        def begin() -> T:
            ticket.check()
            return work(ticket)

        done = asyncio.get_running_loop().run_in_executor(self.threads, begin)
        done.add_done_callback(self._leave)  # a place is free when the thread is, not when the client has gone
        try:
            while not done.done():
                await asyncio.wait({done}, timeout=_LOOK)
                if not done.done() and (ticket.is_late or await left()):
                    raise self._late()
            return done.result()
        except Stopped:
            raise self._late() from None
        finally:
            ticket.stopped = True
            done.add_done_callback(_forget)

    async def stream(self, work: Callable[[Deadline], Iterator[T]]) -> AsyncIterator[T]:
        """What `work` yields, as it comes. Who stops listening stops the work."""
        ticket = self._enter()
        loop = asyncio.get_running_loop()
        found: asyncio.Queue[T | BaseException | object] = asyncio.Queue()

        def run() -> None:
            try:
                ticket.check()
                for each in work(ticket):
                    ticket.check()
                    loop.call_soon_threadsafe(found.put_nowait, each)
            except BaseException as error:
                with suppress(RuntimeError):  # the loop is closed: nobody listens
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
            ticket.stopped = True


def _forget(done: "asyncio.Future[Any]") -> None:
    """Takes note of an error that nobody waits for."""
    if not done.cancelled():
        done.exception()
