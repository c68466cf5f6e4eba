"""A new task, whole in one file: to write the words of a text in reverse order. test_new_task.py adds its line."""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from cutaway.data.encoding import EncodedTexts
from cutaway.model import Model
from cutaway.models.network import Network
from cutaway.training import defaults, setup
from cutaway.training.config import TrainConfig
from cutaway.training.corpus import TextCorpus
from cutaway.training.loss import IGNORED, Loss, language_loss
from cutaway.training.metrics import LOSS, Metric, Scores
from cutaway.training.task import ANY_SIZE, Baseline, Prepared, Seen, SizeDefaults, Task, unseen
from cutaway.training.watch import Watch

WORDS = Metric("words")


def turned(text: str) -> str:
    return " ".join(reversed(text.split()))


class Reversal(Task):
    title, command, pipeline_tag = "A writer from right to left", "translate", "text2text-generation"
    halves = "encoder and decoder"
    metrics, metric = (LOSS, WORDS), WORDS
    sizes = (SizeDefaults(ANY_SIZE, "transformer-tiny", 330, 0.0, 512, 5e-3, 0.0, 40.0, 40.0, "adamw"),)
    preset_changes: ClassVar = {"n_blocks": 1, "d_model": 32, "n_heads": 2, "d_ff": 64}

    @classmethod
    def prepare(cls, config: TrainConfig, watch: Watch, kept: Model | None) -> Prepared:
        corpus = TextCorpus(config.data)
        train, valid = ([line.strip() for line in corpus.lines(which)] for which in ("train", "valid"))
        if kept is None:
            config = defaults.with_model(config, len(train), watch.say)
            tokenizer = setup.tokenizer_for(config, lambda: train, "end", watch)
        else:
            tokenizer = setup.tokenizer_of(kept)
        ids = [EncodedTexts.of(tokenizer.encode_ids(texts)) for texts in (train, list(map(turned, train)))]
        valid_ids = [EncodedTexts.of(tokenizer.encode_ids(texts)) for texts in (valid, list(map(turned, valid)))]
        lengths = ids[1].lengths
        config = setup.with_steps(config, len(train), lengths, watch)
        model = kept or setup.generative_model(config, tokenizer, lengths)
        facts = setup.facts(config, corpus.digests, len(train), f"{len(train):,} texts")
        return Prepared(config, model, cls(ids, valid_ids, valid, model), facts)

    def __init__(
        self, train: Sequence[EncodedTexts], valid: Sequence[EncodedTexts], texts: list[str], model: Model
    ) -> None:
        self.train, self.valid, self.texts, self.usage = train, valid, texts, model.usage
        self.lengths = train[1].lengths

    def batch(self, rows: Tensor, generator: torch.Generator | None = None) -> Any:
        return self._batch(self.train, rows.tolist())

    def _batch(self, sides: Sequence[EncodedTexts], rows: list[int]) -> tuple[Tensor, Tensor, Tensor]:
        pad = self.usage.pad or 0
        source, target = (side.padded(rows, pad) for side in sides)
        tokens = torch.cat((torch.full_like(target[:, :1], self.usage.start or 0), target[:, :-1]), dim=1)
        return source, tokens, sides[1].padded(rows, IGNORED)

    def loss(self, network: Network, batch: Any) -> Loss:
        source, tokens, labels = batch
        return language_loss(network, network.hidden(source, tokens, mask=source != self.usage.pad), labels)

    def validate(self, model: Model, seen: Seen = unseen) -> Scores:
        with torch.no_grad():
            loss = self.loss(model.network, self._batch(self.valid, list(range(len(self.texts)))))
        return {"loss": loss.nll / loss.n, "words": self._right(model.translate(self.texts, beams=1, engine="native"))}

    def baseline(self) -> Baseline:
        return Baseline("the text, as it is", {"words": self._right(self.texts)})

    def _right(self, written: Sequence[str]) -> float:
        """Per cent of the words that stand in their places."""
        places = [list(map(str.split, pair)) for pair in zip(written, map(turned, self.texts), strict=True)]
        right = sum(word == expected for one, other in places for word, expected in zip(one, other, strict=False))
        return 100 * right / sum(len(expected) for _, expected in places)
