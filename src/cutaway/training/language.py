"""Learning to write: running text, by any model that has a decoder alone."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from cutaway.models.network import Network
from cutaway.training.loss import Loss, language_loss
from cutaway.training.task import Scores, Seen, Task, unseen

if TYPE_CHECKING:
    from cutaway.model import Model


@dataclass(frozen=True)
class TextBatch:
    """What is read [B, T], and the token that follows each."""

    tokens: Tensor
    labels: Tensor


class Language(Task):
    """An example is a window of `length` tokens of one long text, and the token after each of them."""

    name: ClassVar[str] = "complete"
    metrics = ("loss", "perplexity")

    def __init__(self, train: Tensor, valid: Tensor, length: int, *, smoothing: float = 0.0) -> None:
        """`train` and `valid` are ids [n], one text after another."""
        self.train, self.valid, self.length, self.smoothing = train, valid, length, smoothing
        self.lengths = torch.full((max(1, (len(train) - 1) // length),), min(length, len(train) - 1))

    def batch(self, rows: Tensor, generator: torch.Generator | None = None) -> TextBatch:
        return self._batch(self.train, rows)

    def _batch(self, ids: Tensor, rows: Tensor) -> TextBatch:
        places = rows.unsqueeze(1) * self.length + torch.arange(min(self.length, len(ids) - 1))
        return TextBatch(ids[places].long(), ids[places + 1].long())

    def loss(self, network: Network, batch: TextBatch) -> Loss:
        device = next(network.parameters()).device
        smoothing = self.smoothing if network.training else 0.0
        return language_loss(
            network, network.hidden(batch.tokens.to(device)), batch.labels.to(device), smoothing=smoothing
        )

    def validate(self, model: "Model", seen: Seen = unseen) -> Scores:
        """Over whole windows of the validation text."""
        nll, n = 0.0, 0
        with torch.no_grad():
            windows = torch.arange(max(1, (len(self.valid) - 1) // self.length))
            for start in range(0, len(windows), 8):
                loss = self.loss(model.network, self._batch(self.valid, windows[start : start + 8]))
                nll, n = nll + loss.nll, n + loss.n
        return {"loss": nll / n, "perplexity": math.exp(min(nll / n, 700.0))}
