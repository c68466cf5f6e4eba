"""Threads that share a product step back while others keep the cores busy."""

import os
import subprocess
import sys
import time
from contextvars import ContextVar

import pytest
import torch

from cutaway.machine import threads
from cutaway.machine.threads import AdaptiveThreads, ThreadPool, side_by_side

SHOWN = "import os, cutaway; print(os.environ.get('GOMP_SPINCOUNT'))"


@pytest.mark.parametrize(
    ("given", "expected"),
    [({}, "10000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, "None")],
)
def test_threads_that_wait_sleep_soon(given: dict[str, str], expected: str) -> None:
    """Unless the user has decided about it."""
    kept = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    done = subprocess.run([sys.executable, "-c", SHOWN], env=kept | given, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == expected


class Machine:
    """Its clock, and how long this thread has run and waited; what a step of the work adds to them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.run, self.wait, self.n = 100.0, 0.0, 0.0, 4
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(threads, "_run_and_wait", lambda: (int(self.run * 1e9), int(self.wait * 1e9)))
        monkeypatch.setattr(torch, "set_num_threads", self.set)

    def set(self, n: int) -> None:
        self.n = n

    def steps(self, adaptive: AdaptiveThreads, seconds: float, busy: float) -> list[int]:
        """`busy`: which share of the time it waits. The threads at each look."""
        seen = []
        end = self.now + seconds
        while self.now < end:
            self.now += 0.12
            self.run, self.wait = self.run + 0.12 * (1 - busy), self.wait + 0.12 * busy
            adaptive.adjust()
            seen.append(self.n)
        return seen


def test_a_quiet_machine_gives_all(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    adaptive = AdaptiveThreads(4)
    assert machine.n == 4
    assert set(machine.steps(adaptive, 5.0, busy=0.02)) == {4}


def test_a_busy_machine_gives_one(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    adaptive = AdaptiveThreads(4)
    assert set(machine.steps(adaptive, 5.0, busy=0.4)) == {1}
    seen = machine.steps(adaptive, 10.0, busy=0.0)
    assert seen[0] == 1
    assert seen[-1] == 4, "the others are gone"


def test_what_was_before_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading a model took its time: whether cores were free is known when the work begins."""
    machine = Machine(monkeypatch)
    machine.run, machine.wait = 1.0, 0.6
    AdaptiveThreads(4)
    assert machine.n == 1


def test_tries_become_rare(monkeypatch: pytest.MonkeyPatch) -> None:
    """One other program on several cores: alone we never wait, together we do."""
    machine = Machine(monkeypatch)
    machine.n, tries = 2, 0
    adaptive = AdaptiveThreads(2)
    for _ in range(1000):
        before = machine.n
        machine.steps(adaptive, 0.05, busy=0.3 if machine.n == 2 else 0.0)
        tries += machine.n == 2 and before == 1
    assert 10 < tries < 50  # in two minutes


def test_a_system_that_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    monkeypatch.setattr(threads, "_run_and_wait", lambda: (0, 0))
    adaptive = AdaptiveThreads(4)
    assert set(machine.steps(adaptive, 1.0, busy=0.9)) == {4}


def test_linux_tells() -> None:
    run, wait = threads._run_and_wait()
    assert run >= 0
    assert wait >= 0


@pytest.mark.parametrize("parallel", [True, False])
def test_side_by_side_keeps_the_order(parallel: bool) -> None:
    torch.set_num_threads(2)
    try:
        assert list(side_by_side(lambda x: x * x, range(20), parallel=parallel)) == [x * x for x in range(20)]
    finally:
        torch.set_num_threads(1)


def test_a_pool_keeps_few_results_at_a_time() -> None:
    """Each may be large: no further call begins before an earlier result was taken. Results come in order."""
    begun: list[int] = []
    with ThreadPool(2) as pool:
        results = pool.map(lambda x: begun.append(x) or x, range(6), at_once=2)  # type: ignore[func-returns-value]
        for i in range(6):
            assert next(results) == i
            assert len(begun) <= i + 2
    assert sorted(begun) == list(range(6))


def test_a_pool_calls_in_the_context_of_its_caller_and_leaves_threads_as_they_were() -> None:
    name: ContextVar[str] = ContextVar("name", default="nothing")
    torch.set_num_threads(2)
    try:
        with ThreadPool(2) as pool:
            name.set("something")
            assert pool.submit(name.get).result() == "something"
            assert pool.submit(torch.get_num_threads).result() == 1
            with pytest.raises(ZeroDivisionError):
                list(pool.map(lambda x: 1 // x, [1, 0]))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
