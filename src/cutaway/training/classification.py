"""Learning to classify: texts and the names of their classes, by an encoder with a classifier on top."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from cutaway.data.batches import batches_of
from cutaway.data.encoding import EncodedTexts
from cutaway.models.network import Network
from cutaway.training.loss import Loss
from cutaway.training.task import Scores, Seen, Task, unseen

if TYPE_CHECKING:
    from cutaway.model import Model


@dataclass(frozen=True)
class LabelBatch:
    """Texts [B, T], which of their tokens are real, and their classes [B]."""

    tokens: Tensor
    mask: Tensor
    labels: Tensor


class Classification(Task):
    name: ClassVar[str] = "classify"
    unit: ClassVar[str] = "text"
    metrics = ("loss", "accuracy")

    def __init__(
        self, train: EncodedTexts, labels: Sequence[int], valid: EncodedTexts, valid_labels: Sequence[int], *, pad: int,
        smoothing: float = 0.0,
    ) -> None:  # fmt: skip
        self.train, self.labels = train, torch.tensor(labels)
        self.valid, self.valid_labels = valid, torch.tensor(valid_labels)
        self.pad, self.smoothing = pad, smoothing
        self.lengths = train.lengths

    def n_tokens(self, rows: Tensor) -> int:
        """One class for each text."""
        return len(rows)

    def batch(self, rows: Tensor, generator: torch.Generator | None = None) -> LabelBatch:
        return self._batch(self.train, self.labels, rows)

    def _batch(self, texts: EncodedTexts, labels: Tensor, rows: Tensor) -> LabelBatch:
        tokens = texts.padded(rows.tolist(), self.pad)
        mask = torch.arange(tokens.shape[1]) < texts.lengths[rows].unsqueeze(1)
        return LabelBatch(tokens, mask, labels[rows])

    def loss(self, network: Network, batch: LabelBatch) -> Loss:
        logits, labels = self._logits(network, batch)
        smoothing = self.smoothing if network.training else 0.0
        total = F.cross_entropy(logits, labels, reduction="sum", label_smoothing=smoothing)
        nll = float(F.cross_entropy(logits.detach(), labels, reduction="sum"))
        return Loss(total, nll, len(labels))

    def _logits(self, network: Network, batch: LabelBatch) -> tuple[Tensor, Tensor]:
        device = next(network.parameters()).device
        return network(batch.tokens.to(device), mask=batch.mask.to(device)).float(), batch.labels.to(device)

    def validate(self, model: "Model", seen: Seen = unseen) -> Scores:
        nll, right, n = 0.0, 0, 0
        with torch.no_grad():
            for rows in batches_of(self.valid.lengths, max(4096, int(self.valid.lengths.max())), seed=0):
                logits, labels = self._logits(model.network, self._batch(self.valid, self.valid_labels, rows))
                nll += float(F.cross_entropy(logits, labels, reduction="sum"))
                right += int((logits.argmax(-1) == labels).sum())
                n += len(labels)
        return {"loss": nll / n, "accuracy": 100 * right / n}
