"""Learning to translate: pairs of texts, by any model that has an encoder and a decoder."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, ClassVar, Unpack

import torch
from torch import Tensor

from cutaway.data.batches import batches_of
from cutaway.data.clean import DropReport
from cutaway.data.encoding import Encode, EncodedTexts
from cutaway.decoding.windows import Materialized
from cutaway.machine.threads import side_by_side
from cutaway.models.network import Network
from cutaway.models.usage import Usage
from cutaway.parts import masks
from cutaway.parts.tap import anybody_listens
from cutaway.progress import Pace
from cutaway.tasks.options import Options
from cutaway.text.bpe_dropout import BPEDropout
from cutaway.text.source_target import TwoTokenizers
from cutaway.text.tokenizer import Tokenizer
from cutaway.training import defaults, setup
from cutaway.training.config import TrainConfig
from cutaway.training.corpus import PairCorpus
from cutaway.training.evaluate import longest_first, work
from cutaway.training.loss import IGNORED, Loss, language_loss
from cutaway.training.metrics import BLEU, CHRF, LOSS, NOISE, Score, Scores, check_installed, translation_scores
from cutaway.training.task import ANY_SIZE, Baseline, Prepared, Seen, SizeDefaults, Task, unseen
from cutaway.training.watch import Watch

if TYPE_CHECKING:
    from cutaway.model import Model

PENALTIES = (1.0, 0.6, 1.4, 1.8)  # the first of equals is taken
TUNED_ON = 500  # pairs at most: four penalties and five beams are twenty times the work of a validation


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

    source: EncodedTexts
    target: EncodedTexts

    @property
    def lengths(self) -> Tensor:
        return torch.stack((self.source.lengths, self.target.lengths), dim=1)


class Translation(Task):
    title, command, pipeline_tag = "A translator", "translate", "translation"
    halves = "encoder and decoder"
    settings = ("regularization.r_drop", "regularization.bpe_dropout")
    metrics, metric = (LOSS, BLEU, CHRF), BLEU
    sizes = (  # in few steps Muon gets further than AdamW
        SizeDefaults(25_000, "transformer-tiny", 6_000, 0.3, 2048, 5e-3, 35.0, 4.0, 100.0),
        SizeDefaults(60_000, "transformer-tiny", 10_000, 0.3, 2048, 4e-3, 39.0, 4.0, 100.0, "adamw", 0.05, 0.1),
        SizeDefaults(1_000_000, "transformer-small", 10_000, 0.2, 8192, 2e-3, 80.0, 4.0, 60.0),
        SizeDefaults(ANY_SIZE, "transformer-base", 32_000, 0.1, 25_000, 7e-4, 1_000.0, 2.0, 40.0),
    )
    preset_changes: ClassVar = {"norm_place": "pre"}  # learns sooner, and with higher rates: docs/results.md

    @classmethod
    def prepare(cls, config: TrainConfig, watch: Watch, kept: "Model | None") -> Prepared:
        check_installed()
        corpus = PairCorpus(config.data, config.data.max_ratio, config.validation.limit)
        n_pairs = corpus.count() if kept is None else 0
        if kept is None:
            config = defaults.with_model(config, n_pairs, watch.say)
        tokenizer = _tokenizer(config, corpus, watch) if kept is None else setup.tokenizer_of(kept)
        sides: dict[str, Encode] = {
            "source": lambda texts: tokenizer.encode_ids(texts),
            "target": lambda texts: tokenizer.encode_ids(texts, target=True),
        }
        train, valid = setup.encoded_examples(corpus, sides, tokenizer)
        pairs = Pairs(train.sides["source"], train.sides["target"])
        n, lengths = len(pairs.target), pairs.lengths
        held_out = f", {len(valid.sides['target']):,} held out to judge by" if corpus.holds_out else ""
        watch.say(f"{n:,} pairs to learn from{held_out}: {setup.summary(train)}")
        setup.tell_left_out(valid, watch)
        config = setup.with_steps(config, n_pairs or n, lengths[:, 1], watch, longest=int(lengths.max()))
        model = kept or setup.generative_model(config, tokenizer, lengths, beams=5)
        setup.check_memory(config, kept, lengths)
        special, share = tokenizer.special, config.regularization.bpe_dropout
        assert special.pad is not None
        source = tokenizer.source if isinstance(tokenizer, TwoTokenizers) else tokenizer
        task = cls(
            pairs,
            Pairs(valid.sides["source"], valid.sides["target"]),
            [(source, target) for source, target in valid.report["shown"]],
            start=model.usage.start if model.usage.start is not None else special.pad,
            pad=special.pad,
            smoothing=config.regularization.smoothing,
            agreement=config.regularization.r_drop,
            cut_anew=BPEDropout(source, share, config.seed) if share else None,
            beams=config.validation.beams,
        )
        return Prepared(config, model, task, setup.facts(config, corpus.digests, n, setup.summary(train)))

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
        source = EncodedTexts.of([self.cut_anew(self.train.source[row].tolist(), chance) for row in chosen])
        return self._batch(self.train, chosen, source)

    def _batch(self, pairs: Pairs, rows: list[int], cut: EncodedTexts | None = None) -> PairBatch:
        """`cut`: the sources of these rows, cut otherwise."""
        texts, places = (pairs.source, rows) if cut is None else (cut, list(range(len(rows))))
        source, labels = texts.padded(places, self.pad), pairs.target.padded(rows, IGNORED)
        mask = masks.of_lengths(texts.lengths[places], source.shape[1])
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
        return language_loss(network, hidden, labels, smoothing=smoothing, r_drop=agreement)

    def validate(self, model: "Model", seen: Seen = unseen) -> Scores:
        def loss(rows: Tensor) -> Loss:
            with torch.no_grad():
                return self.loss(model.network, self._batch(self.valid, rows.tolist()))

        batches = batches_of(self.valid.lengths, max(2048, int(self.valid.lengths.max())), seed=0)
        parallel = model.device.type == "cpu" and not anybody_listens()
        losses = list(side_by_side(loss, batches, parallel=parallel))
        scores = {"loss": sum(loss.nll for loss in losses) / sum(loss.n for loss in losses)}
        pace, search = self._pace(self.valid_texts), Options(length_penalty=1.0)  # which is tuned in the end only
        for name, score in self.scored(model, self.valid_texts, pace, seen, **search).items():
            scores[name] = score.value
            self._signatures[name] = score.signature
        return scores

    def scored(
        self, model: "Model", pairs: Sequence[tuple[str, str]], pace: Pace, seen: Seen, **search: Unpack[Options]
    ) -> dict[str, Score]:
        """BLEU and chrF of these pairs, translated; `seen` hears of each."""
        search = {"beams": self.beams, "engine": "native", "precision": "float32", **search}
        order = longest_first([source for source, _ in pairs])
        written = []
        for text in model.translate(Materialized(pairs[row][0] for row in order), **search):
            written.append(text)
            pace.add()
            seen(pace)
        return translation_scores(written, [[pairs[row][1] for row in order]])

    def baseline(self) -> Baseline:
        sources, targets = ([pair[side] for pair in self.valid_texts] for side in (0, 1))
        scores = translation_scores(sources, [targets])
        return Baseline("the source, copied", {name: score.value for name, score in scores.items()})

    def search(self) -> str:
        return "translated greedily" if self.beams == 1 else f"by {self.beams} beams"

    def tunable(self, usage: Usage, scores: Scores) -> bool:
        return usage.beams > 1 and scores["bleu"] >= NOISE

    def tuned(self, model: "Model", seen: Seen = unseen) -> Usage:
        """With the length penalty that has the best BLEU; 1 unless another is better.

        On some of the validation pairs. A bad model writes until it is stopped: here, at twice the longest target.
        """
        pairs = self.valid_texts[:: -(-len(self.valid_texts) // TUNED_ON)]
        pace = self._pace(pairs, len(PENALTIES))
        most = [n for n in (model.usage.max_length, 2 * max(self.valid.target.lengths.tolist(), default=0)) if n]
        search = Options(beams=model.usage.beams)
        if most:
            search["max_new_tokens"] = min(most)

        def bleu(penalty: float) -> float:
            search["length_penalty"] = penalty
            return self.scored(model, pairs, pace, seen, **search)["bleu"].value

        generation = replace(model.usage.generation, length_penalty=max(PENALTIES, key=bleu))
        return replace(model.usage, generation=generation)

    def _pace(self, pairs: Sequence[tuple[str, str]], times: int = 1) -> Pace:
        """Of translating them, longest first, so many times."""
        sizes = sorted(work([source for source, _ in pairs]), reverse=True)
        return Pace(times * len(pairs), sizes * times)

    def signatures(self) -> dict[str, str]:
        return self._signatures


def _tokenizer(config: TrainConfig, corpus: PairCorpus, watch: Watch) -> Tokenizer:
    def texts(*sides: str) -> Iterator[str]:
        for pair in islice(corpus.pairs("train", DropReport()), setup.FOR_TOKENIZER):
            yield from (getattr(pair, side) for side in sides)

    if config.tokenizer.joint:
        return setup.tokenizer_for(config, lambda: texts("source", "target"), "end", watch)
    return TwoTokenizers(
        setup.tokenizer_for(config, lambda: texts("source"), "end", watch),
        setup.tokenizer_for(config, lambda: texts("target"), "end", watch),
    )
