"""Watch, the interface for observers of a run: steps, validations, states and warnings."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cutaway.progress import Pace
from cutaway.training.metrics import Scores

Stop = Callable[[], str | None]
"""The reason to stop, or None: called after every step."""


@dataclass(frozen=True)
class StepReport:
    """The numbers of one step."""

    number: int
    of: int
    loss: float  # the objective, for each token (or text: `unit`)
    nll: float  # -log p of the label, in training mode
    recent: float  # the mean of that over the last steps, as shown
    norm: float  # of the gradient, before it was clipped
    factor: float  # of the highest learning rate
    tokens: int  # or texts
    seconds: float
    epochs: float
    unit: str = "token"  # "text" for a classifier


class Watch:
    """Ignores every event of a run; subclasses override the methods that they need."""

    def step(self, step: StepReport) -> None: ...

    def validated(self, step: int, scores: Scores, is_best: bool, seconds: float) -> None: ...

    def saved(self, step: int) -> None: ...

    def resumed(self, step: int, logged: Sequence[Mapping[str, Any]] = ()) -> None:
        """The run was resumed after this step; `logged`: the lines of metrics.jsonl up to it."""

    def busy(self, text: str, pace: Pace | None = None) -> None:
        """A long activity other than a step, and its progress; an empty text: it has ended."""

    def say(self, text: str) -> None: ...

    def warn(self, text: str) -> None: ...

    def close(self) -> None: ...
