"""A trace: every named value of one run of a network."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from cutaway.checks import named
from cutaway.errors import InputError, UnknownNameError, unknown
from cutaway.parts.tap import Listener, Tap, listening, matching


class Trace(Mapping[str, Tensor]):
    """name -> value, with its axes and its formula; `output` is what the network returned.

    >>> trace = cutaway.trace(network, tokens, keep="*.weights")
    >>> trace["decoder.blocks.0.self_attention.weights"]          # [batch, head, query, key]

    A value computed several times (a recurrent layer, step by step) is laid side by side along its time axis, in the
    order of the text: also that of a layer which reads it backwards.
    """

    def __init__(self, taps: Mapping[str, Tap]) -> None:
        self._taps = dict(taps)
        self._values: dict[str, list[Tensor]] = {}
        self.output: Tensor | None = None

    def hear(self, value: Tensor, name: str) -> None:
        """The listener that collects."""
        self._values.setdefault(name, []).append(value.detach())

    def every(self, name: str) -> list[Tensor]:
        """All values of that name, in the order they were computed."""
        if name not in self._values:
            raise UnknownNameError(unknown("value", name, self._values, limit=12))
        return self._values[name]

    def axes(self, name: str) -> str:
        """One letter an axis, e.g. "BHTS"; `cutaway.parts` has the legend."""
        return self._tap(name).axes

    def formula(self, name: str) -> str:
        return self._tap(name).formula

    def _tap(self, name: str) -> Tap:
        if name not in self._taps:
            raise UnknownNameError(unknown("value", name, self._taps, limit=12))
        return self._taps[name]

    def __getitem__(self, name: str) -> Tensor:
        values = self.every(name)
        if len(values) == 1:
            return values[0]
        time = self.axes(name).find("T")
        shapes = {tuple(value.shape[:time] + value.shape[time + 1 :]) for value in values}
        if time < 0 or len(shapes) > 1:
            raise InputError(f"'{name}' was computed {len(values)} times, in unlike shapes; see trace.every('{name}')")
        return torch.cat(values[::-1] if self._tap(name).last_first else values, dim=time)

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Trace({len(self)} values)"


def trace(
    network: nn.Module,
    *inputs: Tensor,
    keep: str | Sequence[str] = "*",
    replace: Mapping[str, Listener] | None = None,
    **options: Any,
) -> Trace:
    """Runs `network(*inputs, **options)`, or one part of a network, and keeps the values whose names match `keep`.

    `keep` is a shell pattern or several. A long text through a large model has many numbers: `keep="*.weights"` holds
    only what you came for. `replace` are listeners that are asked first; what they put in a value's place is kept.
    """
    if not isinstance(network, nn.Module):
        raise InputError(f"trace takes a network or a part of one, not {named(network)}; see cutaway.build")
    patterns = [keep] if isinstance(keep, str) else keep
    if not isinstance(patterns, Iterable) or not all(isinstance(pattern, str) for pattern in patterns):
        raise InputError(f"keep is {named(keep)}; give a pattern such as '*.weights', or a list of them")
    taps = {name: tap for pattern in patterns for name, tap in matching(network, pattern).items()}
    result = Trace(taps)
    with torch.no_grad(), listening(network, replace or {}), listening(network, dict.fromkeys(taps, result.hear)):
        result.output = network(*inputs, **options)
    if taps and not result and any(map(_is_compiled, network.modules())):
        raise InputError("a compiled network tells nothing of what it computes; trace the one you gave torch.compile")
    return result


def _is_compiled(module: nn.Module) -> bool:
    return hasattr(module, "_orig_mod") or module._compiled_call_impl is not None
