"""Who watches a run: told of every step, look, state and trouble."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cutaway.progress import Pace
from cutaway.training.metrics import Scores

Stop = Callable[[], str | None]
"""Why to stop, or None: asked after every step."""


@dataclass(frozen=True)
class StepReport:
    """What there is to say about a step."""

    number: int
    of: int
    loss: float  # what is minimised, for each token (or text: `unit`)
    nll: float  # -log p of what is right, in training mode
    recent: float  # the mean of that over the last steps, as shown
    norm: float  # of the gradient, before it was clipped
    factor: float  # of the highest learning rate
    tokens: int  # or texts
    seconds: float
    epochs: float
    unit: str = "token"  # "text" for a classifier


class Watch:
    """Hears everything and says nothing; others override what they care about."""

    def step(self, step: StepReport) -> None: ...

    def look(self, step: int, scores: Scores, is_best: bool, seconds: float) -> None: ...

    def saved(self, step: int) -> None: ...

    def resumed(self, step: int, logged: Sequence[Mapping[str, Any]] = ()) -> None:
        """Going on after this step; `logged` are the lines of metrics.jsonl up to it."""

    def busy(self, text: str, pace: Pace | None = None) -> None:
        """What is done now, if it takes a while and is no step, and how far it is; an empty text: it is over."""

    def say(self, text: str) -> None: ...

    def warn(self, text: str) -> None: ...

    def close(self) -> None: ...
