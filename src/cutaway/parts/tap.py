"""Taps: named points where a value can be seen, or replaced, while the network runs.

A tap is an identity: without a listener it returns its argument. Listeners are kept in a context variable, so nothing
hangs on the modules afterwards and two threads on one network do not hear each other.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from fnmatch import translate
from threading import Lock

import torch
from torch import Tensor, nn

from cutaway.checks import describe
from cutaway.errors import InputError, unknown

Listener = Callable[[Tensor, str], Tensor | None]
"""Called with a value and its name; what it returns, unless None, takes the value's place."""

LONGEST = 200
"""Characters of a pattern."""

_lock = Lock()
_n_listening = 0
"""In all threads: while it is 0, a tap looks at nothing else."""
_listeners: ContextVar[Mapping["Tap", tuple[tuple[str, Listener], ...]] | None] = ContextVar("listeners", default=None)


class Tap(nn.Module):
    """tap(x) = x, unless a listener replaces it. It knows the axes of its value and the formula it came from.

    `replaceable=False` marks a value that is computed only for looking (nothing downstream reads it). `last_first` one
    of a layer that reads the text from its end.
    """

    last_first = False

    def __init__(self, axes: str, formula: str, *, replaceable: bool = True) -> None:
        super().__init__()
        self.axes = axes
        self.formula = formula
        self.replaceable = replaceable

    # Not `forward`: nn.Module's own __call__ would cost many times the look-up below, on every value of every block.
    def __call__(self, value: Tensor) -> Tensor:
        return self._heard(value) if _n_listening else value

    def _heard(self, value: Tensor) -> Tensor:
        """The value, or what the listeners of this context replace it by."""
        if torch.compiler.is_compiling():  # a compiled graph has no ears
            return value
        for name, listener in (_listeners.get() or {}).get(self, ()):
            replacement = listener(value, name)
            if replacement is not None:
                value = self._checked(replacement, value, name)
        return value

    def _checked(self, replacement: Tensor, value: Tensor, name: str) -> Tensor:
        if not self.replaceable:
            raise InputError(f"'{name}' is only for looking, nothing reads it afterwards; replace an earlier value")
        if not isinstance(replacement, Tensor):
            raise InputError(
                f"a listener put {describe(replacement)} in the place of '{name}'; return a tensor, or None to leave it"
            )
        if replacement.shape != value.shape:
            raise InputError(
                f"a listener replaced '{name}' by a tensor of shape {list(replacement.shape)}; "
                f"it must keep the shape {list(value.shape)} ({self.axes})"
            )
        return replacement.to(value)

    def extra_repr(self) -> str:
        return f"{self.axes}: {self.formula}"


def heard(*taps: Tap) -> bool:
    """Whether one of these taps has a listener: if so, compute the value step by step so that it can be seen."""
    if not _n_listening or torch.compiler.is_compiling():
        return False
    listeners = _listeners.get()
    return listeners is not None and any(tap in listeners for tap in taps)


def anybody_listens() -> bool:
    """Whether any tap has a listener, which may keep values that we would else change in place."""
    return _listeners.get() is not None


def cache_taps(network: nn.Module) -> None:
    """Every tap as a plain attribute of its module too: nn.Module looks for its children last, and in Python."""
    for module in network.modules():
        module.__dict__.update({name: child for name, child in module.named_children() if isinstance(child, Tap)})


def taps(network: nn.Module) -> dict[str, Tap]:
    """Every tap of a network by its path, e.g. `decoder.blocks.3.cross_attention.weights`. These names are public."""
    return {name: module for name, module in network.named_modules() if isinstance(module, Tap)}


def matcher(pattern: str) -> Callable[[str], bool]:
    """Whether a name matches a shell pattern. Compiling one takes the square of its length, so that is bounded; the
    cache of `fnmatch` would keep every pattern that a request ever had."""
    if len(pattern) > LONGEST:
        raise InputError(f"a pattern of {len(pattern):,} characters is too long; names have at most {LONGEST}")
    match = re.compile(translate(pattern)).match
    return lambda name: match(name) is not None


def matching(network: nn.Module, pattern: str, known: Mapping[str, Tap] | None = None) -> dict[str, Tap]:
    """The taps whose name matches a shell pattern (`*.weights`); an error if there are none.

    `known`: its taps, where they were found before.
    """
    known = taps(network) if known is None else known
    if pattern in known:
        return {pattern: known[pattern]}
    matches = matcher(pattern)
    found = {name: tap for name, tap in known.items() if matches(name)}
    if not found:
        raise InputError(unknown("tap", pattern, known, limit=12))
    return found


@contextmanager
def listening(network: nn.Module, listeners: Mapping[str, Listener]) -> Iterator[None]:
    """While this lasts, `listeners[pattern](value, name)` is called for every tap whose name matches the pattern.

    Only the code run in this context (this thread, this task) is heard. Contexts nest: the outer one is called first.
    """
    table = dict(_listeners.get() or {})
    known = taps(network) if listeners else {}
    for pattern, listener in listeners.items():
        for name, tap in matching(network, pattern, known).items():
            table[tap] = (*table.get(tap, ()), (name, listener))
    token = _listeners.set(table)
    _count(1)
    try:
        yield
    finally:
        _count(-1)
        _listeners.reset(token)


def _count(more: int) -> None:
    global _n_listening
    with _lock:
        _n_listening += more
