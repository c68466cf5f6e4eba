"""From a run's config to what the loop needs: the data read, cleaned and encoded, a tokenizer, a network, a task."""

import hashlib
import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from cutaway import schema
from cutaway.data.batches import check_fits
from cutaway.data.clean import Dropped, Rules, clean
from cutaway.data.encoded import Encoded, encoded
from cutaway.data.pairs import Pair, PairSpec, digest, read_pairs
from cutaway.errors import ConfigError, InputError
from cutaway.loading import load, locate
from cutaway.model import Model
from cutaway.models.build import build
from cutaway.models.usage import Usage
from cutaway.text.files import load_tokenizer
from cutaway.text.tokenizer import Tokenizer
from cutaway.text.train import train_tokenizer
from cutaway.training import choices, metrics
from cutaway.training.config import TrainConfig
from cutaway.training.translation import Pairs, Translation
from cutaway.training.watch import Watch

_FOR_TOKENIZER = 1_000_000  # pairs that a vocabulary is learnt from, at most


@dataclass(frozen=True)
class Prepared:
    """`config` has no open choices left; `facts` tell data apart."""

    config: TrainConfig
    model: Model
    task: Translation
    facts: dict[str, Any]


def prepare(config: TrainConfig, watch: Watch, kept: Model | None = None) -> Prepared:
    """`kept`: the model of a run that goes on; its tokenizer is not learnt again."""
    metrics.check_installed()
    corpus = Corpus(config)
    n_pairs = corpus.count() if kept is None else 0
    if kept is None:
        config = choices.with_model(config, n_pairs, watch.say)
    tokenizer = kept.tokenizer if kept is not None else _tokenizer(config, corpus, watch)
    assert tokenizer is not None
    train, valid = (corpus.encoded(tokenizer, which) for which in ("train", "valid"))
    watch.say(_told(train, "learn from"))
    valid_texts = [
        (pair.source, pair.target) for pair in islice(corpus.pairs("valid", Dropped()), config.validation.limit)
    ]
    if not len(train.sides["target"]) or not valid_texts or not len(valid.sides["target"]):
        what = "learn from" if not len(train.sides["target"]) else "validate on"
        raise InputError(f"no pair is left to {what}: {_told(train, what)}")
    n_tokens = int(train.sides["target"].lengths.sum())
    if kept is None:
        config = choices.with_steps(config, n_pairs, n_tokens, watch.say)
        model = _model(config, tokenizer)
    else:
        config = choices.with_steps(config, len(train.sides["target"]), n_tokens, watch.say)  # what --force took out
        model = kept
    special = tokenizer.special
    assert special.pad is not None
    task = Translation(
        Pairs(train.sides["source"], train.sides["target"]),
        Pairs(valid.sides["source"], valid.sides["target"]),
        valid_texts,
        start=model.usage.start if model.usage.start is not None else special.pad,
        pad=special.pad,
        smoothing=config.regularization.smoothing,
        agreement=config.regularization.agreement,
        beams=config.validation.beams,
    )  # fmt: skip
    if config.validation.metric not in task.metrics:
        names = ", ".join(task.metrics)
        raise ConfigError(f"validation.metric={config.validation.metric!r} does not judge a translator; choose {names}")
    check_fits(task.lengths, config.batches.share_tokens)
    facts = {
        "config": schema.to_json(config),
        "data": corpus.digests,
        "pairs": len(train.sides["target"]),
        "report": train.report,
    }
    return Prepared(config, model, task, facts)


class Corpus:
    """The pairs of a run: those to learn, and those to validate on, given or held out."""

    def __init__(self, config: TrainConfig) -> None:
        data = config.data
        self.config = data
        self.rules = Rules(max_ratio=data.max_ratio, duplicates=not data.duplicates)
        self.spec = PairSpec(source=data.source, target=data.target, pairs=data.pairs, columns=data.columns)
        self.valid_spec: PairSpec | None = None
        if data.valid_source or data.valid_target or data.valid_pairs:
            self.valid_spec = PairSpec(
                source=data.valid_source, target=data.valid_target, pairs=data.valid_pairs, columns=data.columns
            )
        self.digests = {"train": digest(self.spec)}
        if self.valid_spec is not None:
            self.digests["valid"] = digest(self.valid_spec)
        self._n: int | None = None

    def count(self) -> int:
        """Pairs that keep the rules, held-out ones included."""
        if self._n is None:
            self._n = sum(1 for _ in clean(read_pairs(self.spec), self.rules, Dropped()))
            if not self._n:
                raise InputError("the data holds no pair that can be learnt from")
        return self._n

    def pairs(self, which: str, dropped: Dropped) -> Iterator[Pair]:
        if which == "valid" and self.valid_spec is not None:
            yield from clean(read_pairs(self.valid_spec), self.rules, dropped)
            return
        share = 0.0
        if self.valid_spec is None:
            n = self.count()
            share = min(self.config.held_out, n / 10) / n
        for pair in clean(read_pairs(self.spec), self.rules, dropped):
            if self.valid_spec is not None or (_place(pair.source) < share) == (which == "valid"):
                yield pair

    def encoded(self, tokenizer: Tokenizer, which: str) -> Encoded:
        def read(report: dict[str, Any]) -> Iterator[tuple[str, str]]:
            dropped = Dropped()
            for pair in self.pairs(which, dropped):
                yield pair.source, pair.target
            report |= {"text": str(dropped), "read": dropped.n_read, "dropped": dropped.counts}

        sides = {
            "source": lambda texts: tokenizer.ids_many(texts),
            "target": lambda texts: tokenizer.ids_many(texts, target=True),
        }
        held = "" if self.valid_spec is not None else f"{self.config.held_out} held out"
        made_of = [
            which,
            held,
            json.dumps(self.digests),
            schema.to_json(self.rules).__repr__(),
            tokenizer_digest(tokenizer),
        ]
        return encoded(sides, made_of, read, self.config.max_tokens)


def _place(text: str) -> float:
    """A text's place between 0 and 1, by its hash: the same wherever it stands, so never on both sides."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big") / 2**56


def tokenizer_digest(tokenizer: Tokenizer) -> str:
    found = hashlib.sha256()
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save(Path(folder))
        for path in sorted(Path(folder).iterdir()):
            found.update(path.name.encode() + path.read_bytes())
    return found.hexdigest()


def _told(found: Encoded, what: str) -> str:
    text = f"{len(found.sides['target']):,} pairs to {what}: {found.report['text']}"
    if found.report["tokens"]:
        text += f"; left out {found.report['tokens']:,} of more than data.max_tokens tokens"
    return text


def _tokenizer(config: TrainConfig, corpus: Corpus, watch: Watch) -> Tokenizer:
    """Given, or learnt from the training texts."""
    given = config.tokenizer.start or config.model.start
    if given is not None:
        tokenizer = load_tokenizer(locate(given))
        if tokenizer is None:
            raise ConfigError(f"{given} has no tokenizer; leave tokenizer.start out, and one is learnt")
        return tokenizer
    if not config.tokenizer.joint:
        raise ConfigError("tokenizer.joint = false is not supported yet")
    assert config.tokenizer.vocabulary is not None

    def texts() -> Iterator[str]:
        for pair in islice(corpus.pairs("train", Dropped()), _FOR_TOKENIZER):
            yield pair.source
            yield pair.target

    chosen = config.tokenizer
    watch.say(f"learning a vocabulary ({chosen.kind}, at most {chosen.vocabulary:,} tokens)")
    return train_tokenizer(texts(), chosen.kind, config.tokenizer.vocabulary, lowercase=chosen.lowercase, start=False)


def _model(config: TrainConfig, tokenizer: Tokenizer) -> Model:
    if config.model.start is not None:
        model = load(config.model.start)
        return Model(model.network.float(), tokenizer, model.usage, model.name, model.origin)
    words = tokenizer.vocabulary_size
    special = tokenizer.special
    if special.end is None or special.pad is None:
        raise ConfigError("the tokenizer has no end or no pad token, which a translator needs; leave it out")
    start = special.start if special.start is not None else special.pad
    never = tuple(i for i in (special.pad, special.unknown, special.start, special.mask) if i is not None)
    usage = Usage(
        start=start, end=(special.end,), pad=special.pad, never=never, beams=5, max_length=config.data.max_tokens
    )  # fmt: skip
    return Model(build(choices.network_config(config.model, words, words), config.seed), tokenizer, usage, "model")
