"""Learning to write: running text, by any model that has a decoder alone."""

import math
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cutaway.errors import InputError
from cutaway.models.network import Network
from cutaway.training import defaults, setup
from cutaway.training.config import TrainConfig
from cutaway.training.corpus import TextCorpus
from cutaway.training.loss import Loss, language_loss
from cutaway.training.metrics import LOSS, PERPLEXITY, Scores
from cutaway.training.task import ANY_SIZE, Baseline, Prepared, Seen, SizeDefaults, Task, unseen
from cutaway.training.watch import Watch

if TYPE_CHECKING:
    from cutaway.model import Model


@dataclass(frozen=True)
class TextBatch:
    """What is read [B, T], and the token that follows each."""

    tokens: Tensor
    labels: Tensor


class Completion(Task):
    """An example is a window of `length` tokens of one long text, and the token after each of them."""

    title, command, pipeline_tag = "A language model", "complete", "text-generation"
    halves = "decoder"
    metrics, metric = (LOSS, PERPLEXITY), LOSS
    sizes = (
        SizeDefaults(200_000, "gpt2-tiny", 4_000, 0.2, 8192, 2e-3, 20.0, 2.0, 30.0),
        SizeDefaults(ANY_SIZE, "gpt2", 32_000, 0.1, 32_768, 6e-4, 500.0, 1.0, 10.0),
    )

    @classmethod
    def prepare(cls, config: TrainConfig, watch: Watch, kept: "Model | None") -> Prepared:
        corpus = TextCorpus(config.data)
        n_lines = sum(1 for _ in corpus.lines("train")) if kept is None else 0
        if kept is None:
            config = defaults.with_model(config, n_lines, watch.say)
            texts = islice(corpus.lines("train"), setup.FOR_TOKENIZER)
            tokenizer = setup.tokenizer_for(config, lambda: texts, "none", watch)
        else:
            tokenizer = setup.tokenizer_of(kept)
        train, valid = (corpus.encoded(which, tokenizer).sides["text"].ids for which in ("train", "valid"))
        if len(train) < 2 or len(valid) < 2:
            raise InputError(
                f"there are {len(train)} tokens to learn from and {len(valid)} to validate on; give more text"
            )
        watch.say(f"{len(train):,} tokens to learn from")
        task = cls(train, valid, config.data.max_tokens, smoothing=config.regularization.smoothing)
        config = setup.with_steps(config, n_lines or len(train) // 10, task.lengths, watch)
        model = kept or setup.generative_model(config, tokenizer, task.lengths)
        setup.check_memory(config, kept, task.lengths)
        facts = setup.facts(config, corpus.digests, len(task.lengths), f"{len(train):,} tokens")
        return Prepared(config, model, task, facts)

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
        return _scores(nll / n)

    def baseline(self) -> Baseline:
        """How often each token occurs in the training text; one that does not counts as half an occurrence."""
        ids, valid = self.train.long(), self.valid[1:].long()
        counts = torch.bincount(ids, minlength=int(torch.maximum(ids.max(), valid.max())) + 1).double().clamp(min=0.5)
        nll = float(-(counts / counts.sum()).log()[valid].mean())
        return Baseline("how often each token occurs, whatever stands before it", _scores(nll))


def _scores(nll: float) -> Scores:
    return {"loss": nll, "perplexity": math.exp(min(nll, 700.0))}
