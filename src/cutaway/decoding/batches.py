"""Many prompts through a batch that stays full: windows of a stream, sorted by length, answered in order."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from threading import Lock

import torch

from cutaway.decoding.plan import Plan, Request
from cutaway.decoding.state import Finished, Search
from cutaway.decoding.windows import WINDOW_LENGTH, Materialized, prepared, windows
from cutaway.devices import memory_explained
from cutaway.generation import Prompt, Written
from cutaway.machine.threads import AdaptiveThreads, merged
from cutaway.parts.tap import anybody_listens

MANY = 8  # texts for each core that are worth a batch of its own
LOW = 0.5  # a batch is filled up again when only this part of it is left: fewer prompts at a time are read slowly

Start = Callable[[Sequence[Request]], Search]


def request_windows(
    plan: Plan, prompts: Iterable[Prompt | None], longest: int = WINDOW_LENGTH
) -> Iterator[list[Request | None]]:
    """Prompts as they are taken from a stream, checked and counted, `longest` tokens or some thousand at a time."""
    numbers = count()

    def request(prompt: Prompt | None) -> Request | None:
        index = next(numbers)
        return None if prompt is None else plan.request(index, prompt)

    stream = prompts if isinstance(prompts, Iterator) else Materialized(prompts)
    return windows(prepared(stream, request), lambda each: 1 if each is None else len(each.ids), longest)


def generate_in_order(plan: Plan, prompts: Iterable[Prompt | None], start: Start) -> Iterator[list[Written]]:
    """For each prompt its texts, best first, in the order asked; None has none. No more than a window is held."""
    with memory_explained(plan.device):
        for window in request_windows(plan, prompts):
            waiting = deque(window)
            found: dict[int, list[Written]] = {}
            missing = {request.index: plan.copies for request in window if request is not None}
            for request, texts in _search(plan, [request for request in window if request is not None], start):
                found[request.index] = [*found.get(request.index, ()), *texts]
                missing[request.index] -= 1
                while waiting and (waiting[0] is None or missing[waiting[0].index] == 0):
                    answered = waiting.popleft()
                    yield [] if answered is None else sorted(found.pop(answered.index), key=lambda text: -text.score)
            yield from ([] for _ in waiting)  # a window of nothing


def _search(plan: Plan, requests: Sequence[Request], start: Start) -> Iterator[Finished]:
    """Each request with its texts, as they are finished.

    Enough of them for two batches a core are searched side by side: cores that share one batch wait for each other
    after every product.
    """
    n = torch.get_num_threads()
    alone = n == 1 or len(requests) * plan.copies < 2 * n * MANY or plan.device.type != "cpu" or anybody_listens()
    if alone:
        return _batch(PromptQueue(plan, requests, 1), start)
    queue = PromptQueue(plan, requests, n)
    return merged([lambda: _batch(queue, start)] * n, queue.stop)


class PromptQueue:
    """Requests that wait, the longest first: what joins a batch later is no longer, so it fits where others left.
    Several batches may take from it."""

    def __init__(self, plan: Plan, requests: Sequence[Request], n_batches: int) -> None:
        self.plan, self.n_batches = plan, n_batches
        by_length = sorted(requests, key=lambda request: -len(request.ids))
        self.requests = deque(copy for request in by_length for copy in plan.copied(request))
        self.stopped = False
        self._lock = Lock()

    def take(self, n_texts: int) -> list[Request]:
        """The next for a batch that has `n_texts`: none until it is worth reading some."""
        with self._lock:
            if not self.requests:
                return []
            n_fit = max(1, self.plan.options.batch_tokens // self.plan.cost(self.requests[0]))
            wanted = n_fit - n_texts if n_texts < n_fit and n_texts <= n_fit * LOW else 0
            share = -(-len(self.requests) // self.n_batches)  # of the last ones, so that no core is left without
            return [self.requests.popleft() for _ in range(min(wanted, share))]

    def stop(self) -> None:
        """The texts are no longer wanted."""
        self.requests.clear()
        self.stopped = True


def _batch(queue: PromptQueue, start: Start) -> Iterator[Finished]:
    """One batch, filled up as its texts end, until there is nothing left."""
    search: Search | None = None
    with AdaptiveThreads(torch.get_num_threads()) as threads:
        while not queue.stopped:
            threads.adjust()
            if taken := queue.take(0 if search is None else search.n_texts):
                new = start(taken)
                new.step()
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
