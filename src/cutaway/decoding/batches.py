"""Many prompts through a batch that stays full: windows of the stream, sorted by length, answered as asked."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Protocol, Self

from cutaway.decoding.generation import Prompt, Written
from cutaway.decoding.plan import Asked, Plan

WINDOW = 4096  # prompts that are taken from the stream and sorted at a time
LOW = 0.5  # a batch is filled up again when only this part of it is left: fewer prompts at a time are read slowly


class Search(Protocol):
    """Texts in the making: `Sampling` or `Beams`."""

    @property
    def n_texts(self) -> int: ...
    def step(self) -> None: ...
    def join(self, other: Self) -> None: ...
    def take_finished(self) -> Sequence[tuple[Asked, Sequence[Written]]]: ...


Start = Callable[[Sequence[Asked]], Search]


def answers(plan: Plan, prompts: Iterable[Prompt], start: Start) -> Iterator[list[Written]]:
    """For each prompt its texts, in the order asked; no more than a window of prompts is held at a time."""
    asked = (plan.ask(index, prompt) for index, prompt in enumerate(prompts))
    while window := list(islice(asked, WINDOW)):
        yield from _in_order(plan, window, start)


def _in_order(plan: Plan, window: Sequence[Asked], start: Start) -> Iterator[list[Written]]:
    found: dict[int, list[Written]] = {}
    missing = {asked.index: plan.copies for asked in window}
    next_index = window[0].index
    for asked, texts in run(plan, window, start):
        missing[asked.index] -= 1
        found[asked.index] = [*found.get(asked.index, ()), *texts]
        while missing.get(next_index) == 0:
            yield sorted(found.pop(next_index), key=lambda written: -written.score)
            next_index += 1


def run(plan: Plan, window: Sequence[Asked], start: Start) -> Iterator[tuple[Asked, Sequence[Written]]]:
    """Each prompt with its texts, as they are finished. The longest prompts come first: what joins later is no longer,
    so it fits where others left."""
    waiting = deque(copy for asked in sorted(window, key=lambda asked: -len(asked.ids)) for copy in plan.copied(asked))
    search: Search | None = None
    while waiting or (search is not None and search.n_texts):
        if n := _free(plan, waiting, 0 if search is None else search.n_texts):
            new = start([waiting.popleft() for _ in range(n)])
            yield from new.take_finished()
            if search is None or not search.n_texts:
                search = new
            elif new.n_texts:
                search.join(new)
        if search is not None and search.n_texts:
            search.step()
            yield from search.take_finished()


def _free(plan: Plan, waiting: Sequence[Asked], n_texts: int) -> int:
    """How many prompts to read now: none until it is worth it."""
    if not waiting:
        return 0
    n_fit = max(1, plan.options.batch_tokens // plan.cost(waiting[0]))
    return min(n_fit - n_texts, len(waiting)) if n_texts < n_fit and n_texts <= n_fit * LOW else 0
