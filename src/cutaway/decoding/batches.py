"""Many prompts through a batch that stays full: windows of the stream, sorted by length, answered as asked."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Protocol, Self

import torch

from cutaway.decoding.plan import Plan, Request
from cutaway.generation import Prompt, Written
from cutaway.machine.threads import AdaptiveThreads
from cutaway.parts.tap import anybody_listens

WINDOW = 4096  # prompts that are taken from the stream and sorted at a time
MANY = 8  # texts for each core that are worth a batch of its own
LOW = 0.5  # a batch is filled up again when only this part of it is left: fewer prompts at a time are read slowly


class Search(Protocol):
    """Texts in the making: `Sampling` or `Beams`."""

    @property
    def n_texts(self) -> int: ...
    def step(self) -> None: ...
    def join(self, other: Self) -> None: ...
    def take_finished(self) -> Sequence[tuple[Request, Sequence[Written]]]: ...


Start = Callable[[Sequence[Request]], Search]


def generate_in_order(plan: Plan, prompts: Iterable[Prompt], start: Start) -> Iterator[list[Written]]:
    """For each prompt its texts, in the order asked; no more than a window of prompts is held at a time."""
    asked = (plan.ask(index, prompt) for index, prompt in enumerate(prompts))
    while window := list(islice(asked, WINDOW)):
        yield from _in_order(plan, window, start)


def _in_order(plan: Plan, window: Sequence[Request], start: Start) -> Iterator[list[Written]]:
    found: dict[int, list[Written]] = {}
    missing = {asked.index: plan.copies for asked in window}
    next_index = window[0].index
    for asked, texts in run(plan, window, start):
        missing[asked.index] -= 1
        found[asked.index] = [*found.get(asked.index, ()), *texts]
        while missing.get(next_index) == 0:
            yield sorted(found.pop(next_index), key=lambda written: -written.score)
            next_index += 1


def run(plan: Plan, window: Sequence[Request], start: Start) -> Iterator[tuple[Request, Sequence[Written]]]:
    """Each prompt with its texts, as they are finished. The longest prompts come first: what joins later is no longer,
    so it fits where others left.

    Enough of them for two batches a core are searched side by side: cores that share one batch wait for each other
    after every product.
    """
    n = torch.get_num_threads()
    on_cpu = plan.device.type == "cpu"
    if n == 1 or len(window) * plan.copies < 2 * n * MANY or not on_cpu or anybody_listens():
        threads = AdaptiveThreads(n) if n > 1 and on_cpu else None
        try:
            yield from _batch(PromptQueue(plan, window, 1), start, threads)
        finally:
            if threads is not None:
                threads.set(n)
        return
    waiting = PromptQueue(plan, window, n)
    found: SimpleQueue[tuple[Request, Sequence[Written]] | BaseException | None] = SimpleQueue()

    def work() -> None:
        torch.set_num_threads(1)
        try:
            for each in _batch(waiting, start):
                found.put(each)
        except BaseException as error:  # it is raised where the texts are awaited
            found.put(error)
        finally:
            found.put(None)

    workers = [Thread(target=work, name="cutaway", daemon=True) for _ in range(n)]
    for worker in workers:
        worker.start()
    try:
        for _ in workers:
            while (each := found.get()) is not None:
                if isinstance(each, BaseException):
                    raise each
                yield each
    finally:
        waiting.stop()
        for worker in workers:
            worker.join()
        torch.set_num_threads(n)  # part of what a thread sets holds for all


class PromptQueue:
    """Prompts that nobody has begun with, the longest first; several batches may take from them."""

    def __init__(self, plan: Plan, window: Sequence[Request], n_batches: int) -> None:
        self.plan, self.n_batches = plan, n_batches
        by_length = sorted(window, key=lambda asked: -len(asked.ids))
        self.prompts = deque(copy for asked in by_length for copy in plan.copied(asked))
        self.stopped = False
        self._lock = Lock()

    def take(self, n_texts: int) -> list[Request]:
        """The next for a batch that has `n_texts`: none until it is worth reading some."""
        with self._lock:
            if not self.prompts:
                return []
            n_fit = max(1, self.plan.options.batch_tokens // self.plan.cost(self.prompts[0]))
            wanted = n_fit - n_texts if n_texts < n_fit and n_texts <= n_fit * LOW else 0
            share = -(-len(self.prompts) // self.n_batches)  # of the last ones, so that no core is left without
            return [self.prompts.popleft() for _ in range(min(wanted, share))]

    def stop(self) -> None:
        """Nobody waits for the texts any more."""
        self.prompts.clear()
        self.stopped = True


def _batch(
    waiting: PromptQueue, start: Start, threads: AdaptiveThreads | None = None
) -> Iterator[tuple[Request, Sequence[Written]]]:
    """One batch, filled up as its texts end, until there is nothing left."""
    search: Search | None = None
    while not waiting.stopped:
        if threads is not None:
            threads.adjust()
        if taken := waiting.take(0 if search is None else search.n_texts):
            new = start(taken)
            yield from new.take_finished()
            if search is None or not search.n_texts:
                search = new
            elif new.n_texts:
                search.join(new)
        elif search is None or not search.n_texts:
            return
        if search.n_texts:
            search.step()
            yield from search.take_finished()
