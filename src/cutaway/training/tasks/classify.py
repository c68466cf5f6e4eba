"""Learning to classify: texts and the names of their classes, by an encoder with a classifier on top."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from cutaway.data.batches import batches_of
from cutaway.data.clean import DropReport
from cutaway.data.encoding import Encode, EncodedTexts
from cutaway.errors import InputError
from cutaway.models.config import Classifier
from cutaway.models.network import Network
from cutaway.models.usage import Usage
from cutaway.parts import masks
from cutaway.text.tokenizer import Tokenizer
from cutaway.training import defaults, setup
from cutaway.training.config import TrainConfig
from cutaway.training.corpus import PairCorpus
from cutaway.training.loss import Loss
from cutaway.training.metrics import ACCURACY, LOSS, Scores
from cutaway.training.task import ANY_SIZE, Baseline, Prepared, Seen, SizeDefaults, Task, unseen
from cutaway.training.watch import Watch

if TYPE_CHECKING:
    from cutaway.model import Model

MOST_CLASSES = 10_000


@dataclass(frozen=True)
class LabelBatch:
    """Texts [B, T], which of their tokens are real, and their classes [B]."""

    tokens: Tensor
    mask: Tensor
    labels: Tensor


class Classification(Task):
    title, command, pipeline_tag = "A classifier of texts", "classify", "text-classification"
    halves = "encoder"
    unit = "text"
    metrics, metric = (LOSS, ACCURACY), ACCURACY
    sizes = (SizeDefaults(ANY_SIZE, "bert-tiny", 8_000, 0.1, 4096, 1e-3, 0.0, 5.0, 5.0, "adamw"),)
    least_classes = 2

    @classmethod
    def prepare(cls, config: TrainConfig, watch: Watch, kept: "Model | None") -> Prepared:
        corpus = PairCorpus(config.data, max_ratio=0.0, any_length=True)  # a class is always shorter than its text
        n_texts = corpus.count() if kept is None else 0
        if kept is None:
            config = defaults.with_model(config, n_texts, watch.say)
            texts = (pair.source for pair in islice(corpus.pairs("train", DropReport()), setup.FOR_TOKENIZER))
            tokenizer = setup.tokenizer_for(config, lambda: texts, "both", watch)
            labels = tuple(sorted({pair.target for pair in corpus.pairs("train", DropReport())}))
        else:
            tokenizer, labels = setup.tokenizer_of(kept), kept.usage.labels
        if not cls.least_classes <= len(labels) <= MOST_CLASSES:
            raise InputError(f"there are {len(labels):,} classes; a classifier needs 2 to {MOST_CLASSES:,} of them")
        corpus.only, most = frozenset(labels), config.data.max_tokens
        sides: dict[str, Encode] = {
            "source": lambda texts: tokenizer.encode_ids(texts, max_length=most),
            "target": lambda texts: _numbers(texts, labels),
        }
        train, valid = setup.encoded_examples(corpus, sides, tokenizer)
        n, lengths = len(train.sides["source"]), train.sides["source"].lengths
        watch.say(
            f"{n:,} texts of {len(labels)} classes to learn from, of each the first {most} tokens (data.max_tokens): "
            f"{setup.summary(train)}"
        )
        setup.tell_left_out(valid, watch)
        config = setup.with_steps(config, n_texts or n, lengths, watch)
        task = cls(
            train.sides["source"], train.sides["target"].ids.tolist(), valid.sides["source"],
            valid.sides["target"].ids.tolist(), pad=tokenizer.special.pad or 0,
            smoothing=config.regularization.smoothing,
        )  # fmt: skip
        model = kept or _model(config, tokenizer, labels, lengths)
        setup.check_memory(config, kept, lengths)
        return Prepared(config, model, task, setup.facts(config, corpus.digests, n, setup.summary(train)))

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
        return LabelBatch(tokens, masks.of_lengths(texts.lengths[rows], tokens.shape[1]), labels[rows])

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

    def baseline(self) -> Baseline:
        commonest = self.labels.mode().values
        right = int((self.valid_labels == commonest).sum())
        return Baseline("the commonest class, always", {"accuracy": 100 * right / len(self.valid_labels)})


def _numbers(texts: list[str], labels: Sequence[str]) -> list[list[int]]:
    """The number of each class, as a text of one token."""
    numbers = {label: number for number, label in enumerate(labels)}
    unknown = next((text for text in texts if text not in numbers), None)
    if unknown is not None:
        raise InputError(
            f"the class {unknown[:60]!r} is of a text to validate on, but of none to learn from; leave that text "
            f"out, or give some of its class to learn from"
        )
    return [[numbers[text]] for text in texts]


def _model(config: TrainConfig, tokenizer: Tokenizer, labels: tuple[str, ...], lengths: Tensor) -> "Model":
    if config.model.start is None:
        usage = Usage(task="classify", pad=tokenizer.special.pad, labels=labels)
        return setup.new_model(config, tokenizer, lengths, usage, len(labels))
    head = Classifier(n_classes=len(labels), hidden="tanh", dropout=0.1)
    model = setup.model_to_start_from(config, tokenizer, lengths, head)
    model.usage = Usage(task="classify", pad=model.usage.pad, labels=labels, max_tokens=model.usage.max_tokens)
    return model
