"""A trace: every named value of one run of a network."""

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from cutaway.checks import describe
from cutaway.errors import InputError, UnknownNameError, unknown
from cutaway.parts.tap import Listener, Tap, listening, matching, taps
from cutaway.seeing.trace.labels import Words

if TYPE_CHECKING:
    from cutaway.model import Model
    from cutaway.models.config import Config
    from cutaway.seeing.explain.explanation import Explanation
    from cutaway.seeing.trace.search_trace import SearchTrace


@dataclass(frozen=True)
class TapInfo:
    """A value's axes, one letter each ("BHTS"; `cutaway.parts` has the legend), and its formula. `last_first`: computed
    by a layer that reads the text backwards."""

    axes: str
    formula: str
    last_first: bool = False

    @classmethod
    def of(cls, tap: Tap) -> "TapInfo":
        return cls(tap.axes, tap.formula, tap.last_first)


@dataclass
class Run:
    """The run of a trace: the network's weights and config (None: a part of one), and its inputs by name."""

    weights: Mapping[str, Tensor] = field(default_factory=dict)
    config: "Config | None" = None
    inputs: Mapping[str, Any] = field(default_factory=dict)


class Trace(Mapping[str, Tensor]):
    """name -> value, with its axes and its formula; `output` is the network's.

    >>> trace = model.trace("The cat sat.", keep="*.weights")
    >>> trace["decoder.blocks.0.self_attention.weights"]          # [batch, head, query, key]

    A value computed several times (a recurrent layer, step by step) is laid side by side along its time axis, in the
    order of the text: also that of a layer which reads it backwards. Values, inputs and output are on the CPU, wherever
    the network computes; its weights (`run.weights`) stay where they are. `words`: the tokens on the axes; `search`:
    the search of `model` for its text; all three are empty in the trace of a bare network.
    """

    def __init__(self, info: Mapping[str, TapInfo], run: Run | None = None) -> None:
        self._info = dict(info)
        self._values: dict[str, list[Tensor]] = {}
        self.run = run or Run()
        self.output: Tensor | None = None
        self.words = Words()
        self.search: SearchTrace | None = None
        self.model: Model | None = None

    def hear(self, value: Tensor, name: str) -> None:
        """The listener that collects the values."""
        self._values.setdefault(name, []).append(value.detach().cpu())

    def every(self, name: str) -> list[Tensor]:
        """All values of that name, in the order they were computed."""
        if name not in self._values:
            raise UnknownNameError(unknown("value", name, self._values, limit=12))
        return self._values[name]

    def axes(self, name: str) -> str:
        """One letter an axis, e.g. "BHTS"; `cutaway.parts` has the legend."""
        return self.info(name).axes

    def formula(self, name: str) -> str:
        return self.info(name).formula

    def labels(self, name: str) -> tuple[Sequence[str] | None, ...]:
        """The labels of each axis: tokens, classes or patches; None for an axis without labels."""
        return self.words.along(name, self.axes(name), self[name].shape)

    def explain(self, name: str, **place: int) -> "Explanation":
        """The sum behind one number, written out and added up again by code that knows the weights only.

        >>> trace.explain("decoder.blocks.0.cross_attention.weights", head=2, query=3, key=5)

        The cell is given by axis, as a word (`batch`, `head`, `query`, `key`, `width`, `token`) or as its letter; an
        axis that is left out is 0.
        """
        from cutaway.seeing.explain import explain

        return explain(self, name, **place)

    def save(self, folder: str | Path) -> Path:
        """Writes the values (safetensors) and their metadata (JSON); `Trace.load` reads them back."""
        from cutaway.seeing.trace.files import write

        return write(self, Path(folder).expanduser())

    @classmethod
    def load(cls, folder: str | Path) -> "Trace":
        """Reads a saved trace. Weights are not saved with it: sums that need them can't be explained."""
        from cutaway.seeing.trace.files import read

        return read(Path(folder).expanduser())

    def to_html(self, path: str | Path) -> Path:
        """Writes a self-contained page, with up to 40 MB of the values; larger ones are left out."""
        from cutaway.seeing.render.html import write_page

        return write_page(self, Path(path).expanduser())

    def info(self, name: str) -> TapInfo:
        if name not in self._info:
            raise UnknownNameError(unknown("value", name, self._info, limit=12))
        return self._info[name]

    def __getitem__(self, name: str) -> Tensor:
        values = self.every(name)
        if len(values) == 1:
            return values[0]
        info = self.info(name)
        time = info.axes.find("T")
        shapes = {tuple(value.shape[:time] + value.shape[time + 1 :]) for value in values}
        if time < 0 or len(shapes) > 1:
            raise InputError(f"'{name}' was computed {len(values)} times, in other shapes; see trace.every('{name}')")
        joined = torch.cat(values[::-1] if info.last_first else values, dim=time)
        self._values[name] = [joined]
        return joined

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Trace({len(self)} values)"

    def _repr_html_(self) -> str:
        """The trace in a notebook: a self-contained page of at most 3 MB."""
        from cutaway.seeing.render.html import framed

        return framed(self)


def trace(
    network: nn.Module,
    *inputs: Tensor,
    keep: str | Sequence[str] = "*",
    replace: Mapping[str, Listener] | None = None,
    **options: Any,
) -> Trace:
    """Runs `network(*inputs, **options)`, or one part of a network, and keeps the values whose names match `keep`.

    `keep` is a shell pattern or several: a long text through a large model has many numbers, and `keep="*.weights"`
    keeps attention weights only. `replace`: listeners that are called first; the trace has the values they return.
    """
    if not isinstance(network, nn.Module):
        raise InputError(f"trace takes a network or a part of one, not {describe(network)}; see cutaway.build")
    patterns = [keep] if isinstance(keep, str) else keep
    if not isinstance(patterns, Iterable) or not all(isinstance(pattern, str) for pattern in patterns):
        raise InputError(f"keep is {describe(keep)}; give a pattern such as '*.weights', or a list of them")
    known = taps(network)
    wanted = {name: tap for pattern in patterns for name, tap in matching(network, pattern, known).items()}
    result = Trace({name: TapInfo.of(tap) for name, tap in wanted.items()})
    with torch.no_grad(), listening(network, replace or {}), listening(network, dict.fromkeys(wanted, result.hear)):
        result.output = _on_cpu(network(*inputs, **options))
    if wanted and not result and any(map(_is_compiled, network.modules())):
        raise InputError("a compiled network has no taps; trace the one you gave torch.compile")
    given = inspect.signature(network.forward).bind(*inputs, **options).arguments
    given = {name: _on_cpu(value) for name, value in given.items()}
    result.run = Run(network.state_dict(), getattr(network, "config", None), given)
    return result


def _on_cpu(value: Any) -> Any:
    return value.cpu() if isinstance(value, Tensor) else value


def _is_compiled(module: nn.Module) -> bool:
    return hasattr(module, "_orig_mod") or module._compiled_call_impl is not None
