"""Edits: small changes to what a network computes, as data. Listeners on taps make them; no weight is touched.

An edit names a value by its tap, or several by a shell pattern; what it does to each of them is a `Change`.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from cutaway import schema
from cutaway.checks import Count, NumberRule, check, check_fields, describe
from cutaway.errors import ConfigError, InputError, unknown
from cutaway.models.network import Network
from cutaway.parts.tap import Listener, matcher, matching
from cutaway.seeing.interventions.apply import Change, TapValue, listeners_of
from cutaway.seeing.interventions.switches import SWITCHES, Switch, switches
from cutaway.seeing.trace.trace import Trace

LARGEST = torch.finfo(torch.float32).max

Real = Annotated[
    float, NumberRule(f"from -{LARGEST:.2g} to {LARGEST:.2g}, as float32 is", lambda number: abs(number) <= LARGEST)
]


@dataclass(frozen=True)
class Edit(ABC):
    """One change to a run; see its kinds below."""

    kind: ClassVar[str]

    @abstractmethod
    def changes(self, network: Network) -> list[Change]:
        """The changes at the taps of a network; an error if it lacks the values or parts to change."""

    def to_json(self) -> dict[str, Any]:
        """{"kind": "zero", "value": …}: a field that is None is left out."""
        given = {each.name: getattr(self, each.name) for each in fields(self)}
        return {"kind": self.kind} | {name: schema.to_json(value) for name, value in given.items() if value is not None}

    @staticmethod
    def from_json(data: Any, traces: Mapping[str, Trace] | None = None) -> "Edit":
        """An edit of any kind. `traces`: those that a patch may name, by id."""
        if isinstance(data, Mapping) and data.get("kind") == Patch.kind:
            return Patch.named(data, traces or {})
        if isinstance(data, Mapping) and data.get("to") == "-inf":
            data = {**data, "to": -math.inf}
        kinds: tuple[type[Edit], ...] = (Zero, Scale, Set, Off, Patch)
        return schema.from_json_of(kinds, data, "edit")


@dataclass(frozen=True)
class Zero(Edit):
    """Sets a value, or one head of it, to zero."""

    kind: ClassVar[str] = "zero"
    value: str
    head: Count | None = None

    def __post_init__(self) -> None:
        check_fields(self)

    def changes(self, network: Network) -> list[Change]:
        return _for_each(network, self.value, self.head, torch.zeros_like)


@dataclass(frozen=True)
class Scale(Edit):
    """Multiplies a value, or one head of it, by a number; masked scores (-∞) stay."""

    kind: ClassVar[str] = "scale"
    value: str
    by: Real
    head: Count | None = None

    def __post_init__(self) -> None:
        check_fields(self)

    def changes(self, network: Network) -> list[Change]:
        return _for_each(network, self.value, self.head, lambda x: torch.where(x.isinf(), x, x * self.by))


@dataclass(frozen=True)
class Set(Edit):
    """Sets one cell of a value, e.g. the attention weight of one head between two tokens.

    `renormalise`: the other weights of the row keep their proportions, and the row sums to 1.
    """

    kind: ClassVar[str] = "set"
    value: str
    at: tuple[int, ...]
    to: Real
    renormalise: bool | None = None

    def __post_init__(self) -> None:
        if isinstance(self.at, list):
            object.__setattr__(self, "at", tuple(self.at))
        if self.to == -math.inf:
            check("Set.value", self.value, str)
        else:
            check_fields(self)
        if not isinstance(self.at, tuple) or any(type(i) is not int or i < 0 for i in self.at):
            raise ConfigError(f"Set.at is {describe(self.at)}; give an index for each axis, counted from 0")
        if self.renormalise and not 0 <= self.to <= 1:
            raise ConfigError(f"Set.to={self.to} is no weight of a row that sums to 1; choose a number from 0 to 1")
        if self.renormalise and not self.value.endswith(".weights"):
            raise ConfigError(f"'{self.value}' has no rows that sum to 1; leave out renormalise, or set a weight")

    def to_json(self) -> dict[str, Any]:
        return super().to_json() | ({"to": "-inf"} if self.to == -math.inf else {})

    def changes(self, network: Network) -> list[Change]:
        found = _replaceable(network, self.value)
        for name, axes in found.items():
            if len(axes) != len(self.at):
                raise InputError(
                    f"'{name}' has {len(axes)} axes ({axes}), but the index {list(self.at)} has {len(self.at)}"
                )
        return [Change(name, self._apply) for name in found]

    def _apply(self, now: TapValue) -> Tensor | None:
        at: list[int | slice] = []
        for axis, i, n in zip(now.axes, self.at, now.full_shape, strict=True):
            if i >= n and axis not in now.grows:
                raise InputError(f"'{now.name}' has shape {now.full_shape} ({now.axes}) here: no index {list(self.at)}")
            at.append(i - now.first if axis == "T" else i)
        if any(isinstance(i, int) and not 0 <= i < n for i, n in zip(at, now.value.shape, strict=True)):
            return None
        if now.writes:
            at[0] = slice(None)
        value = now.value.clone()
        value[tuple(at)] = self.to
        row = value[tuple(at[:-1])]
        if self.renormalise:
            others = row.sum(-1, keepdim=True) - self.to
            if bool((others <= 0).any()) and self.to < 1:
                raise InputError(
                    f"'{now.name}' at {list(self.at)}: the other weights of this row are 0, so it can't sum to 1 with "
                    f"{self.to} there; leave out renormalise"
                )
            row *= torch.where(others > 0, (1 - self.to) / others, 0.0)
            value[tuple(at)] = self.to
        elif bool((row == -math.inf).all(-1).any()):
            raise InputError(f"'{now.name}' at {list(self.at)}: with -∞ there all keys of this row are masked")
        return value


@dataclass(frozen=True)
class Off(Edit):
    """Switches off one idea of the network, everywhere or in the parts that a pattern matches.

    scaling    scores are not divided by √K
    mask       a decoder may look ahead
    positions  no position vectors, no rotation, no relative bias
    residual   a sublayer's output is not added to its input
    block      a block's output is its input

    `where` is a pattern of names: attentions (`decoder.blocks.0.self_attention`), sublayers, blocks, embeddings; a
    stack or block stands for all of its parts (`encoder`).
    """

    kind: ClassVar[str] = "off"
    what: Switch
    where: str = "*"

    def __post_init__(self) -> None:
        check_fields(self)

    def changes(self, network: Network) -> list[Change]:
        places = SWITCHES[self.what](network)
        if not places:
            has = ", ".join(switches(network))
            way_out = f"it has {has}" if has else "it has no switches; zero its values by name (Zero)"
            raise InputError(f"'{self.what}' is no switch of this model; {way_out}")
        patterns = matcher(self.where), matcher(f"{self.where}.*")
        found = [each for each in places if any(matches(each) for matches in patterns)]
        if not found:
            raise InputError(unknown(f"place for '{self.what}'", self.where, places, limit=12))
        return [change for each in found for change in places[each]]


@dataclass(frozen=True)
class Patch(Edit):
    """Replaces a value by that of another trace, of the same shape. `trace`: that trace's id, if it has one.

    While a text is written values grow: the positions that both have are patched.
    """

    kind: ClassVar[str] = "patch"
    value: str
    from_: Trace = field(compare=False, repr=False)
    trace: str | None = None

    def __post_init__(self) -> None:
        check("Patch.value", self.value, str)
        if not isinstance(self.from_, Trace):
            raise ConfigError(f"Patch.from_ is {describe(self.from_)}; give the trace that the value is taken from")

    @classmethod
    def named(cls, data: Mapping[str, Any], traces: Mapping[str, Trace]) -> "Patch":
        named_ = schema.from_json(_NamedPatch, {key: each for key, each in data.items() if key != "kind"}, "edit")
        if named_.trace not in traces:
            raise InputError(unknown("trace", named_.trace, traces))
        return cls(named_.value, traces[named_.trace], named_.trace)

    def to_json(self) -> dict[str, Any]:
        if self.trace is None:
            raise InputError(f"the trace that '{self.value}' is patched from has no id, so JSON can't name it")
        return {"kind": self.kind, "value": self.value, "trace": self.trace}

    def changes(self, network: Network) -> list[Change]:
        return [Change(name, _replacing(self.from_[name])) for name in _replaceable(network, self.value)]


@dataclass(frozen=True)
class _NamedPatch:
    value: str
    trace: str


@dataclass(frozen=True)
class Replace(Edit):
    """Replaces a value by a tensor of its shape, by a number, or by the result of a function of (value, name).

    A recurrent layer's values come step by step, and a function is called with each.
    """

    kind: ClassVar[str] = "replace"
    value: str
    by: Tensor | Real | Listener = field(compare=False)

    def __post_init__(self) -> None:
        check("Replace.value", self.value, str)
        if not callable(self.by) and not isinstance(self.by, Tensor):
            check("Replace.by", self.by, Real)

    def to_json(self) -> dict[str, Any]:
        raise InputError(f"the replacement of '{self.value}' can't be JSON; give zero, scale, set, off or patch")

    def changes(self, network: Network) -> list[Change]:
        found = _replaceable(network, self.value)
        if isinstance(self.by, Tensor):
            return [Change(name, _replacing(self.by)) for name in found]
        return [Change(name, self._apply) for name in found]

    def _apply(self, now: TapValue) -> Tensor | None:
        if not callable(self.by):
            return torch.full_like(now.value, float(self.by))
        found = self.by(now.value.clone(), now.name)  # a copy: other listeners may have kept the value
        if found is not None and (not isinstance(found, Tensor) or found.shape != now.value.shape):
            shape = list(found.shape) if isinstance(found, Tensor) else describe(found)
            raise InputError(f"the replacement of '{now.name}' is {shape}; expected a tensor {list(now.value.shape)}")
        return found


Editable = Edit | str | Mapping[str, Any]


def edits_of(given: Editable | Iterable[Editable]) -> tuple[Edit, ...]:
    """Edits in any form that users may give: one or several edits, JSON, the name of a switch ("scaling"), or a mapping
    of values to replacements: a number, a tensor, a function of (value, name) or another trace."""
    if isinstance(given, Edit | str | Mapping):
        given = [given]
    if not isinstance(given, Iterable):
        raise InputError(f"edits are {describe(given)}; give a list of them, or a mapping of values")
    return tuple(edit for each in given for edit in _one(each))


def read_edits(data: Any, traces: Mapping[str, Trace] | None = None) -> tuple[Edit, ...]:
    """Reads a JSON list of edits. `traces`: those that patches may name, by id."""
    if not isinstance(data, list):
        raise InputError(f"edits are {describe(data)}; expected a list of objects")
    return tuple(Edit.from_json(each, traces) for each in data)


def listeners(network: Network, edits: Iterable[Edit], *, writes: bool = False) -> dict[str, Listener]:
    """The listeners of edits, for `listening` or `trace(replace=…)` in one run. `writes`: it writes its text, uncached.

    An edit that does not fit the network is an error here; one that does not fit the text, when it runs.
    """
    return listeners_of(network, [change for edit in edits for change in edit.changes(network)], writes=writes)


def _one(given: Any) -> list[Edit]:
    if isinstance(given, Edit):
        return [given]
    if isinstance(given, str):
        if given not in SWITCHES:
            raise InputError(unknown("switch", given, SWITCHES))
        return [Off(given)]
    if not isinstance(given, Mapping) or isinstance(given, Trace):
        raise InputError(f"an edit is {describe(given)}; give Zero, Scale, Set, Off, Patch or Replace, or a mapping")
    if "kind" in given:
        return [Edit.from_json(given)]
    return [_replacement(name, value) for name, value in given.items()]


def _replacement(name: str, value: Any) -> Edit:
    if isinstance(value, Trace):
        return Patch(name, value)
    if isinstance(value, int | float) and not isinstance(value, bool) and value == 0:
        return Zero(name)
    return Replace(name, value)


def _replaceable(network: Network, pattern: str) -> dict[str, str]:
    """The values that a pattern matches, and their axes; an error if one of them can't be replaced."""
    found = matching(network, pattern)
    for name, tap in found.items():
        if not tap.replaceable:
            raise InputError(f"'{name}' can't be changed: no later value is computed from it; change an earlier one")
    return {name: tap.axes for name, tap in found.items()}


def _for_each(network: Network, pattern: str, head: int | None, f: Callable[[Tensor], Tensor]) -> list[Change]:
    """Changes by f of the whole value, or of one of its heads."""
    found = _replaceable(network, pattern)
    if head is None:
        return [Change(name, lambda now: f(now.value)) for name in found]
    for name, axes in found.items():
        if not set(axes) & set("HG"):
            raise InputError(f"'{name}' ({axes}) has no heads; leave out head, or change an attention's heads")

    def of_head(now: TapValue) -> Tensor:
        axis = next(i for i, letter in enumerate(now.axes) if letter in "HG")
        if head >= now.value.shape[axis]:
            raise InputError(f"'{now.name}' has {now.value.shape[axis]} heads, counted from 0: there is no head {head}")
        value = now.value.clone()
        value.select(axis, head).copy_(f(now.value.select(axis, head)))
        return value

    return [Change(name, of_head) for name in found]


def _replacing(other: Tensor) -> Callable[[TapValue], Tensor]:
    """A change that puts `other`, or the tokens of it that are computed now, in place of a value."""

    def apply(now: TapValue) -> Tensor:
        fits = other.dim() == len(now.axes) and all(
            a == b or axis in now.grows or (axis == "B" and now.writes and a == 1)
            for axis, a, b in zip(now.axes, other.shape, now.full_shape, strict=True)
        )
        if not fits:
            raise InputError(
                f"'{now.name}' has shape {now.full_shape} ({now.axes}) here, its replacement {list(other.shape)}; "
                f"give one of the same shape"
            )
        value = now.value.clone()
        here, there = [], []
        for axis, n, m in zip(now.axes, now.value.shape, other.shape, strict=True):
            first = now.first if axis == "T" else 0
            shared = max(0, min(n, m - first)) if axis in now.grows or axis == "T" else n
            here.append(slice(shared))
            there.append(slice(None) if axis == "B" else slice(first, first + shared))
        value[tuple(here)] = other[tuple(there)].to(value)
        return value

    return apply
