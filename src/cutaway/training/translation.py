"""Learning to translate: pairs of texts, by any model that has an encoder and a decoder."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Unpack

import torch
from torch import Tensor

from cutaway.data.batches import batches_of
from cutaway.data.encoded import Texts
from cutaway.machine import side_by_side
from cutaway.models.network import Network
from cutaway.models.usage import Usage
from cutaway.tasks.options import Options
from cutaway.training.loss import IGNORED, Loss, language_loss
from cutaway.training.metrics import Score, translation_scores
from cutaway.training.task import Scores, Task

if TYPE_CHECKING:
    from cutaway.model import Model

PENALTIES = (1.0, 0.6, 1.4, 1.8)  # the first of equals is taken


@dataclass(frozen=True)
class PairBatch:
    """source [B, S] and which of it is real; what the decoder reads [B, T] and what it should say."""

    source: Tensor
    mask: Tensor
    tokens: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Pairs:
    """Encoded sentence pairs."""

    source: Texts
    target: Texts

    @property
    def lengths(self) -> Tensor:
        return torch.stack((self.source.lengths, self.target.lengths), dim=1)


class Translation(Task):
    name: ClassVar[str] = "translate"
    metrics = ("loss", "bleu", "chrf")

    def __init__(
        self,
        train: Pairs,
        valid: Pairs,
        valid_texts: Sequence[tuple[str, str]],
        *,
        start: int,
        pad: int,
        smoothing: float = 0.0,
        agreement: float = 0.0,
        cut_anew: Callable[[Sequence[int], random.Random], list[int]] | None = None,
        beams: int = 1,
    ) -> None:
        """`start` is what the decoder reads before it has said anything; `valid_texts` are what `valid` encodes.

        `cut_anew` (BPE-dropout): the ids of a source to others of the same text."""
        self.train, self.valid, self.valid_texts = train, valid, valid_texts
        self.cut_anew = cut_anew
        self.start, self.pad, self.beams = start, pad, beams
        self.smoothing, self.agreement = smoothing, agreement
        self.lengths = train.lengths
        self._signatures: dict[str, str] = {}

    def batch(self, rows: Tensor, generator: torch.Generator | None = None) -> PairBatch:
        chosen = rows.tolist()
        if self.cut_anew is None:
            return self._batch(self.train, chosen)
        chance = random.Random(int(torch.empty((), dtype=torch.int64).random_(generator=generator)))
        source = Texts.of([self.cut_anew(self.train.source[row].tolist(), chance) for row in chosen])
        return self._batch(self.train, chosen, source)

    def _batch(self, pairs: Pairs, rows: list[int], cut: Texts | None = None) -> PairBatch:
        """`cut`: the sources of these rows, cut otherwise."""
        texts, places = (pairs.source, rows) if cut is None else (cut, list(range(len(rows))))
        source, labels = texts.padded(places, self.pad), pairs.target.padded(rows, IGNORED)
        mask = torch.arange(source.shape[1]) < texts.lengths[places].unsqueeze(1)
        said = labels[:, :-1].masked_fill(labels[:, :-1] == IGNORED, self.pad)
        tokens = torch.cat((torch.full_like(labels[:, :1], self.start), said), dim=1)
        return PairBatch(source, mask, tokens, labels)

    def loss(self, network: Network, batch: PairBatch) -> Loss:
        device = next(network.parameters()).device
        source, mask, tokens, labels = (
            each.to(device) for each in (batch.source, batch.mask, batch.tokens, batch.labels)
        )
        agreement = self.agreement if network.training else 0.0
        if agreement:  # R-Drop: the same once more, dropped out otherwise
            source, mask, tokens, labels = (torch.cat((each, each)) for each in (source, mask, tokens, labels))
        smoothing = self.smoothing if network.training else 0.0
        hidden = network.hidden(source, tokens, mask=mask)
        return language_loss(network, hidden, labels, smoothing=smoothing, agreement=agreement)

    def validate(self, model: "Model") -> Scores:
        def loss(rows: Tensor) -> Loss:
            with torch.no_grad():
                return self.loss(model.network, self._batch(self.valid, rows.tolist()))

        batches = batches_of(self.valid.lengths, max(2048, int(self.valid.lengths.max())), seed=0)
        losses = list((side_by_side if model.device.type == "cpu" else map)(loss, batches))
        scores = {"loss": sum(loss.nll for loss in losses) / sum(loss.n for loss in losses)}
        for name, score in self.scored(model, length_penalty=1.0).items():  # which is tuned in the end only
            scores[name] = score.value
            self._signatures[name] = score.signature
        return scores

    def scored(self, model: "Model", **search: Unpack[Options]) -> dict[str, Score]:
        """BLEU and chrF of the validation pairs, translated."""
        search = {"beams": self.beams, "engine": "native", "precision": "float32", **search}
        written = model.translate([source for source, _ in self.valid_texts], **search)
        return translation_scores(written, [[target for _, target in self.valid_texts]])

    def tuned(self, model: "Model") -> Usage:
        """With the length penalty that has the best BLEU; 1 unless another is better."""
        if model.usage.beams == 1:
            return model.usage

        def bleu(penalty: float) -> float:
            return self.scored(model, beams=model.usage.beams, length_penalty=penalty)["bleu"].value

        return replace(model.usage, length_penalty=max(PENALTIES, key=bleu))

    def signatures(self) -> dict[str, str]:
        return self._signatures
