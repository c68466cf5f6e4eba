"""Traces that were made, by number; the oldest are forgotten when there are too many, or too large ones."""

import secrets
from collections import OrderedDict
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from cutaway.seeing.trace.trace import Trace
from cutaway.studio.limits import Limits
from cutaway.studio.work_queue import HTTPRefusal


@dataclass
class StoredTrace:
    """A trace, the model it is of, and what the page is told of it."""

    trace: Trace
    model: str
    info: dict[str, Any] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return sum(part.numel() * part.element_size() for name in self.trace for part in self.trace.every(name))


class TraceStore:
    """At most so many, and so many bytes, as the limits say."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._kept: OrderedDict[str, tuple[StoredTrace, int]] = OrderedDict()
        self._lock = Lock()

    @property
    def size(self) -> int:
        return sum(size for _, size in self._kept.values())

    def add(self, kept: StoredTrace) -> StoredTrace:
        """The same, with the number that it is kept under."""
        size = kept.size
        if size > self.limits.trace_bytes:
            most = self.limits.trace_bytes / 1e6
            raise HTTPRefusal(
                413, f"the values take {size / 1e6:.0f} MB, at most {most:.0f} are kept; give a shorter one"
            )
        number = kept.info["id"] = secrets.token_urlsafe(9)
        with self._lock:
            self._kept[number] = kept, size
            while len(self._kept) > self.limits.traces or self.size > self.limits.all_trace_bytes:
                self._kept.popitem(last=False)
        return kept

    def get(self, number: str) -> StoredTrace:
        with self._lock:
            if number not in self._kept:
                raise HTTPRefusal(404, "this trace is no longer here; run the text again")
            self._kept.move_to_end(number)
            return self._kept[number][0]
