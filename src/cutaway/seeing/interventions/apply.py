"""Edits applied to a running network: changes at taps, and the listeners that make them."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from torch import Tensor

from cutaway.models.network import Network
from cutaway.parts.tap import Listener, taps

_BEGIN = ("embedding.token_vectors", "embedding.pixels")


@dataclass(frozen=True)
class TapValue:
    """A value at its tap. `first`: the position of its first token among the `length` tokens of its side.

    `heard`: the values that changes read. `grows`: the axes that lengthen while a text is written, so that an index
    beyond their end may still come; all rows are then beams of one text.
    """

    value: Tensor
    name: str
    axes: str
    first: int
    length: int
    heard: Mapping[str, Tensor]
    grows: str = ""
    writes: bool = False

    @property
    def full_shape(self) -> list[int]:
        """The shape of this value with all tokens of the text."""
        return [self.length if axis == "T" else n for axis, n in zip(self.axes, self.value.shape, strict=True)]


@dataclass(frozen=True)
class Change:
    """A change at one tap: `apply` returns the new value (None: unchanged) and may read the values of other taps."""

    name: str
    apply: Callable[[TapValue], Tensor | None]
    reads: tuple[str, ...] = ()


def listeners_of(network: Network, changes: Iterable[Change], *, writes: bool = False) -> dict[str, Listener]:
    """Listeners for changes, by tap name; each tap's apply in the order given. A run needs its own: they count steps.

    `writes`: the run writes its text, without a cache, so that values grow with it.
    """
    active = ActiveChanges(network, changes, writes)
    return dict.fromkeys(active.names, active.hear)


class ActiveChanges:
    def __init__(self, network: Network, changes: Iterable[Change], writes: bool) -> None:
        self.writes = writes
        self.taps = taps(network)
        self.last = "decoder" if network.has_decoder else "encoder"
        self.changes: dict[str, list[Change]] = {}
        for change in changes:
            self.changes.setdefault(change.name, []).append(change)
        self.read = {name for each in self.changes.values() for change in each for name in change.reads}
        begin = {name for name in self.taps if name.endswith(_BEGIN)}
        self.names = sorted(begin | self.changes.keys() | self.read) if self.changes else []
        self.heard: dict[str, Tensor] = {}
        self.rows: dict[str, int] = {}  # of each side, rows and tokens of this pass
        self.length: dict[str, int] = {}
        self.passed: dict[str, dict[str, int]] = {}  # of its values, how many tokens have passed

    def hear(self, value: Tensor, name: str) -> Tensor | None:
        side, _, part = name.partition(".")
        if part in _BEGIN:
            self.rows[side] = value.shape[0]
            self.length[side] = value.shape[1] + (part == "embedding.pixels")  # the class token is no patch
            self.passed[side] = {}
        axes, new = self.taps[name].axes, value
        if name.startswith("decoder.attention.") and "T" in axes:  # beams that share a memory are queries of one row
            new = value.reshape(self.rows[side], -1, value.shape[-1])
        first = self._first(name, new.shape[axes.index("T")] if "T" in axes else 0)
        length, grows = self.length[self._side(name)], self._grows(name)
        for change in self.changes.get(name, ()):
            found = change.apply(TapValue(new, name, axes, first, length, self.heard, grows, self.writes))
            new = new if found is None else found.to(value)
        if name in self.read:
            self.heard[name] = new  # as it is after its own changes
        return None if new is value else new.reshape(value.shape)

    def _side(self, name: str) -> str:
        side = name.partition(".")[0]
        return self.last if side == "head" else side

    def _first(self, name: str, n: int) -> int:
        """The position of the first of `n` tokens at a tap. Recurrent layers go step by step, some from the end; in a
        search the head reads only the newest tokens."""
        side = self._side(name)
        passed = self.passed[side].get(name, 0)
        self.passed[side][name] = passed + n
        from_end = name.startswith("head.") or self.taps[name].last_first
        return self.length[side] - passed - n if from_end else passed

    def _grows(self, name: str) -> str:
        if not self.writes or name.startswith("encoder."):
            return ""
        return "TS" if ".self_attention." in name or ".relative_bias." in name else "T"
