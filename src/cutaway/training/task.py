"""What the loop asks of a task: examples, a loss, and how good the model has become."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from cutaway.models.network import Network
from cutaway.models.usage import Usage
from cutaway.progress import Pace
from cutaway.training.loss import Loss

if TYPE_CHECKING:
    from cutaway.model import Model

Scores = dict[str, float]
"""Name of a metric -> its value."""
LOWER_IS_BETTER = ("loss", "perplexity")
NOISE = 1.0
"""BLEU below this says nothing."""
Seen = Callable[[Pace], None]
"""Shows how far a task is with translating; may raise to end it."""


def unseen(_: Pace) -> None: ...


def rank(metric: str, scores: Scores) -> tuple[float, float]:
    """The larger, the better. BLEU may be noise: there, and where scores are equal, the loss decides."""
    value = -scores[metric] if metric in LOWER_IS_BETTER else scores[metric]
    return 0.0 if metric == "bleu" and value < NOISE else value, -scores["loss"]


def better(metric: str, new: Scores, old: Scores) -> bool:
    return rank(metric, new) > rank(metric, old)


class Task(ABC):
    """Examples are known by their row; a batch is whatever the task makes of some rows."""

    name: ClassVar[str]
    unit: ClassVar[str] = "token"
    """What the loss is the mean over."""
    metrics: tuple[str, ...]
    """What `validate` gives."""
    lengths: Tensor
    """Tokens of each training example: [n], or [n, sides]; the last side is the one that is learnt."""

    @abstractmethod
    def batch(self, rows: Tensor, generator: torch.Generator | None = None) -> Any:
        """Some training examples as tensors; what is left to chance is drawn from `generator`."""

    def n_tokens(self, rows: Tensor) -> int:
        """How many units of these examples are learnt: tokens, or the texts of a classifier."""
        return int((self.lengths if self.lengths.dim() == 1 else self.lengths[:, -1])[rows].sum())

    @abstractmethod
    def loss(self, network: Network, batch: Any) -> Loss:
        """Of one batch, in the mode the network is in."""

    @abstractmethod
    def validate(self, model: "Model", seen: Seen = unseen) -> Scores:
        """The loss and the metrics on examples that are never learnt; the model is in evaluation mode."""

    def tunable(self, usage: Usage, scores: Scores) -> bool:
        """Whether a finished model with these scores has a search that is worth tuning."""
        return False

    def tuned(self, model: "Model", seen: Seen = unseen) -> Usage:
        """How the finished model is best used, as the validation examples have it."""
        return model.usage

    def signatures(self) -> dict[str, str]:
        """How each metric was computed, in the words of its library."""
        return {}
