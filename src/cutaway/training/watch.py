"""Who watches a run: told of every step, look, state and trouble."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cutaway.training.task import Scores


@dataclass(frozen=True)
class Step:
    """What there is to say about a step."""

    number: int
    of: int
    loss: float  # what is minimised, for each token
    nll: float  # -log p of the right token, in training mode
    norm: float  # of the gradient, before it was clipped
    factor: float  # of the highest learning rate
    tokens: int
    seconds: float
    epochs: float


class Watch:
    """Hears everything and says nothing; others override what they care about."""

    def step(self, step: Step) -> None: ...

    def look(self, step: int, scores: Scores, is_best: bool, seconds: float) -> None: ...

    def saved(self, step: int) -> None: ...

    def resumed(self, step: int, logged: Sequence[Mapping[str, Any]] = ()) -> None:
        """Going on after this step; `logged` are the lines of metrics.jsonl up to it."""

    def busy(self, text: str) -> None:
        """What is done now, if it takes a while and is no step."""

    def say(self, text: str) -> None: ...

    def warn(self, text: str) -> None: ...

    def close(self) -> None: ...
