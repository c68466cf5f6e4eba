"""What every bench shares: contestants in processes of their own, and rounds taken in turn.

A contestant is a function that sets up some work. It runs in a fresh process, so that its allocator settings, threads
and peak memory are its own. Exactly one works at a time; between turns it gives its memory back, so that all fit.
"""

import ctypes
import gc
import multiprocessing as mp
import os
import platform
import signal
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_QUIET = 0.1  # share of the cores that others may use; two threads that share a core with a third run at a tenth
_TRIES = 3  # how often a disturbed turn is taken at most


@dataclass(frozen=True)
class Work:
    """What a contestant has set up. Each step is one iteration and gives the number of units (tokens) it processed."""

    steps: Sequence[Callable[[], int]]
    rest: Callable[[], None]  # drops what can be made anew: gradients
    facts: Mapping[str, Any] = field(default_factory=dict)  # goes into the result, e.g. parameters and the first loss


@dataclass(frozen=True)
class Contestant:
    """`setup(*arguments)` runs in its own process, so both must pickle: a function of a module, and plain data."""

    name: str
    setup: Callable[..., Work]
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Turn:
    """`rate`: units a second. `others`: which share of the cores other processes used meanwhile, 0 to 1."""

    rate: float
    others: float
    peak_mb: float


@dataclass
class Result:
    """One turn for each round. `error`: why there are no more of them; None if all went well."""

    name: str
    turns: list[Turn] = field(default_factory=list)
    setup_seconds: float = 0.0
    facts: dict[str, Any] = field(default_factory=dict)
    error: str | None = None

    @property
    def rate(self) -> float | None:
        """The median; None if the contestant failed, even if some rounds went well: they would flatter it."""
        return None if self.error or not self.turns else statistics.median(turn.rate for turn in self.turns)

    @property
    def spread(self) -> str:
        rates = [turn.rate for turn in self.turns]
        return f"{min(rates):.0f}–{max(rates):.0f}" if rates else "–"

    @property
    def peak_mb(self) -> float:
        return max((turn.peak_mb for turn in self.turns), default=0.0)


def disturbance(results: Sequence[Result]) -> str:
    """How much of the cores others took while we measured: a note for below the table."""
    shares = [turn.others for result in results for turn in result.turns] or [0.0]
    return f"others used {statistics.median(shares):.0%} of the cores during a turn, {max(shares):.0%} at worst"


def best(results: Sequence[Result]) -> float | None:
    """The highest median among those that have one."""
    return max((result.rate for result in results if result.rate is not None), default=None)


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# In the contestant's process


def _peak_mb() -> float:
    """The most memory that this process had resident; VmHWM, as getrusage also counts the parent before exec."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    import resource  # no /proc: macOS, which counts in bytes

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def _busy() -> tuple[float, float]:
    """Seconds of work on all cores so far: of everybody (stolen time included), and of this process."""
    own = sum(os.times()[:2])
    try:
        user, nice, system, _idle, _wait, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
    except OSError:
        return own, own
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK"), own


def _give_back() -> None:
    gc.collect()
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)


def _turn(work: Work, seconds: float, first: bool) -> Turn:
    """Whole cycles of all steps: at least one cycle, and at least `seconds`.

    Untimed before it: every step the first time, later the last one, to have again the memory that was given back.
    """
    for step in work.steps if first else work.steps[-1:]:
        step()
    units, busy, start = 0, _busy(), time.perf_counter()
    while (took := time.perf_counter() - start) < seconds or not units:
        units += sum(step() for step in work.steps)
    (all_busy, own_busy), (all_before, own_before) = _busy(), busy
    others = ((all_busy - all_before) - (own_busy - own_before)) / (took * cores())
    work.rest()
    _give_back()
    return Turn(units / took, max(others, 0.0), _peak_mb())


def _serve(pipe: Connection, setup: Callable[..., Work], arguments: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # nor outlive it, whatever ends it
    try:
        work = setup(*arguments)
        work.rest()
        _give_back()
        pipe.send(dict(work.facts))
        first = True
        while True:
            seconds = pipe.recv()
            pipe.send(_turn(work, seconds, first))
            first = False
    except EOFError:  # the parent is done
        return
    except Exception as error:
        words = str(error).strip().splitlines() or [""]
        pipe.send(f"{type(error).__name__}: {words[0]}")


# In the parent


class _Worker:
    """One contestant's process, and what it has shown so far."""

    def __init__(self, contestant: Contestant, limit: float) -> None:
        self.result = Result(contestant.name)
        self.limit = limit
        context = mp.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        arguments = (theirs, contestant.setup, contestant.arguments)
        self.process = context.Process(target=_serve, args=arguments, daemon=True)
        start = time.perf_counter()
        self.process.start()
        theirs.close()  # so that its death ends the pipe
        self.result.facts = self._answer() or {}
        self.result.setup_seconds = time.perf_counter() - start

    def turn(self, seconds: float, patience: float) -> None:
        """The quietest of a few tries; the first, if nobody else was at work."""
        tries: list[Turn] = []
        most = _TRIES if patience else 1
        while not self.result.error and len(tries) < most and all(turn.others > _QUIET for turn in tries):
            _wait_for_quiet(patience)
            with suppress(OSError):  # it has died: _answer says how
                self.pipe.send(seconds)
            if turn := self._answer():
                tries.append(turn)
        if tries and not self.result.error:
            self.result.turns.append(min(tries, key=lambda turn: turn.others))

    def _answer(self) -> Any:
        """What the process sends; None, and the reason in the result, if it fails, dies or takes too long."""
        try:
            if not self.pipe.poll(self.limit):
                return self._fail(f"no answer within {self.limit:.0f} s")
            answer = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join(10)
            code = self.process.exitcode
            killed = code is not None and code == -signal.SIGKILL
            return self._fail("killed: out of memory?" if killed else f"its process ended with exit code {code}")
        return self._fail(answer) if isinstance(answer, str) else answer

    def _fail(self, reason: str) -> None:
        self.result.error = reason
        self.stop()

    def stop(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


def _wait_for_quiet(patience: float) -> None:
    """Until others leave the cores alone, but at most `patience` seconds. Our own contestants are all waiting now."""
    end = time.monotonic() + patience
    while time.monotonic() < end:
        before, _ = _busy()
        time.sleep(0.5)
        if _busy()[0] - before < _QUIET * 0.5 * cores():
            return


def compete(
    contestants: Sequence[Contestant], *, rounds: int, seconds: float, limit: float = 900.0, patience: float = 60.0
) -> list[Result]:
    """Every contestant has one turn in each round; who goes first moves on by one from round to round.

    `limit`: seconds that a set-up or a turn may take before it counts as failed. `patience`: seconds to wait, before
    each turn, for others to leave the machine alone; 0: take no notice of them. Progress goes to stderr.
    """
    workers: list[_Worker] = []
    try:
        for contestant in contestants:
            _say(f"setting up {contestant.name}")
            workers.append(_Worker(contestant, limit))
        for i in range(rounds):
            first = i % len(workers)
            for worker in workers[first:] + workers[:first]:
                _say(f"round {i + 1} of {rounds}: {worker.result.name}")
                worker.turn(seconds, patience)
    finally:
        for worker in workers:
            worker.stop()
        _say("")
    return [worker.result for worker in workers]


def _say(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def stop_on_signals() -> None:
    """Ctrl-C and `kill` end a bench quietly, and its contestants with it."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
