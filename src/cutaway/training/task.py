"""What training asks of a task: data and defaults, how examples become batches, a loss, metrics and a baseline."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from cutaway.models.network import Network
from cutaway.models.usage import Usage
from cutaway.progress import Pace
from cutaway.training import optimizer
from cutaway.training.config import TrainConfig
from cutaway.training.loss import Loss
from cutaway.training.metrics import Metric, Scores
from cutaway.training.watch import Watch

if TYPE_CHECKING:
    from cutaway.model import Model

Seen = Callable[[Pace], None]
"""Shows how far a task is with translating; may raise to end it."""


def unseen(_: Pace) -> None: ...


@dataclass(frozen=True)
class SizeDefaults:
    """What suits data of up to `most` examples (pairs, lines of text, texts with a class)."""

    most: float
    preset: str
    vocabulary: int
    dropout: float
    tokens: int  # of one step
    rate: float  # AdamW's, or that of all but the matrices under Muon
    seen: float  # tokens to be seen in all, in millions …
    least: float  # … but at least so many epochs,
    longest: float  # and at most so many
    kind: optimizer.Kind = "muon"
    decay: float = 1e-4
    attention_dropout: float | None = None  # None: the preset's


ANY_SIZE = float("inf")


@dataclass(frozen=True)
class Prepared:
    """A run before its first step: `config` has no open choices left; `facts` tell data apart."""

    config: TrainConfig
    model: "Model"
    task: "Task"
    facts: dict[str, Any]


@dataclass(frozen=True)
class Baseline:
    """What a trivial model scores on the validation examples, such as one that always says the commonest class."""

    model: str
    scores: Scores


class Task(ABC):
    """Examples are known by their row; a batch is whatever the task makes of some rows."""

    title: ClassVar[str]
    """What a model of it is called: "A translator"."""
    command: ClassVar[str]
    """`cutaway COMMAND` runs such a model."""
    pipeline_tag: ClassVar[str]
    """What the hub calls it."""
    halves: ClassVar[str]
    """Which models can learn it: "encoder", "decoder" or "encoder and decoder"."""
    unit: ClassVar[str] = "token"
    """What the loss is the mean over."""
    settings: ClassVar[tuple[str, ...]] = ()
    """Keys of run.toml that not every task has, but this one: "regularization.r_drop"."""
    metrics: ClassVar[tuple[Metric, ...]]
    """What `validate` gives, the loss first."""
    metric: ClassVar[Metric]
    """What the best model is the best in, unless run.toml says otherwise."""
    sizes: ClassVar[tuple[SizeDefaults, ...]]
    """Defaults by how many examples there are, in ascending order."""
    preset_changes: ClassVar[Mapping[str, Any]] = {}
    """Keys of run.toml's [model] whose default is not the preset's value, where it is a Transformer."""
    least_classes: ClassVar[int] = 0
    """Of a classifier; 0: it is none."""
    lengths: Tensor
    """Tokens of each training example: [n], or [n, sides]; the last side is the one that is learnt."""

    @classmethod
    @abstractmethod
    def prepare(cls, config: TrainConfig, watch: Watch, kept: "Model | None") -> Prepared:
        """Data, tokenizer, network and the task itself; `kept` is the model of a run that goes on."""

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

    @abstractmethod
    def baseline(self) -> Baseline:
        """The scores that a model has to beat."""

    def search(self) -> str:
        """How `validate` writes texts, if it does: "translated greedily"."""
        return ""

    def tunable(self, usage: Usage, scores: Scores) -> bool:
        """Whether a finished model with these scores has a search that is worth tuning."""
        return False

    def tuned(self, model: "Model", seen: Seen = unseen) -> Usage:
        """How the finished model is best used, as the validation examples have it."""
        return model.usage

    def signatures(self) -> dict[str, str]:
        """How each metric was computed, in the words of its library."""
        return {}
