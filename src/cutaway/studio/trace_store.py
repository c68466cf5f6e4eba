"""The traces of a studio, by id; the least recently used are dropped when they are too many or too large."""

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
    """A trace, its model's name, and its description for the page."""

    trace: Trace
    model: str
    info: dict[str, Any] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return sum(part.numel() * part.element_size() for name in self.trace for part in self.trace.every(name))


class TraceStore:
    """Bounded in number and bytes."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._kept: OrderedDict[str, tuple[StoredTrace, int]] = OrderedDict()
        self._lock = Lock()

    @property
    def size(self) -> int:
        return sum(size for _, size in self._kept.values())

    def add(self, stored: StoredTrace) -> StoredTrace:
        """Stores a trace under a new id, which its `info` then has."""
        size = stored.size
        if size > self.limits.trace_bytes:
            most = self.limits.trace_bytes / 1e6
            raise HTTPRefusal(
                413, f"the values take {size / 1e6:.0f} MB, at most {most:.0f} are kept; give a shorter one"
            )
        number = stored.info["id"] = secrets.token_urlsafe(9)
        with self._lock:
            self._kept[number] = stored, size
            while len(self._kept) > self.limits.traces or self.size > self.limits.all_trace_bytes:
                self._kept.popitem(last=False)
        return stored

    def get(self, number: str) -> StoredTrace:
        with self._lock:
            if number not in self._kept:
                raise HTTPRefusal(404, "this trace is no longer here; run the text again")
            self._kept.move_to_end(number)
            return self._kept[number][0]
