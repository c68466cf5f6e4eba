"""Metrics: which way is better, and BLEU and chrF by sacrebleu, each with the signature of its computation."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cutaway.errors import InputError

Scores = dict[str, float]
"""Name of a metric -> its value."""


@dataclass(frozen=True)
class Metric:
    """One number of a validation; `noise`: values below it say nothing."""

    name: str
    lower_is_better: bool = False
    noise: float = 0.0

    def rank(self, scores: Scores) -> tuple[float, float]:
        """The larger, the better. Where values are equal, or noise, the loss decides."""
        value = -scores[self.name] if self.lower_is_better else scores[self.name]
        return 0.0 if 0.0 <= value < self.noise else value, -scores["loss"]

    def better(self, new: Scores, old: Scores) -> bool:
        return self.rank(new) > self.rank(old)


NOISE = 1.0
"""BLEU below this says nothing."""
LOSS, PERPLEXITY = Metric("loss", lower_is_better=True), Metric("perplexity", lower_is_better=True)
ACCURACY, BLEU, CHRF = Metric("accuracy"), Metric("bleu", noise=NOISE), Metric("chrf")


@dataclass(frozen=True)
class Score:
    value: float
    signature: str


def _sacrebleu() -> Any:
    try:
        import sacrebleu
    except ImportError:
        raise InputError(
            "BLEU and chrF are computed by sacrebleu, which is not installed: pip install 'cutaway[train]'"
        ) from None
    return sacrebleu


def check_installed(tokenized: bool = False) -> None:
    """Checks for sacrebleu, and for sacremoses, before hours of training."""
    _sacrebleu()
    if tokenized:
        _sacremoses()


def _sacremoses() -> Any:
    try:
        import sacremoses
    except ImportError:
        raise InputError(
            "tokenised BLEU needs Moses' tokeniser, sacremoses, which is not installed: pip install 'cutaway[train]'"
        ) from None
    return sacremoses


def translation_scores(written: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, Score]:
    """bleu (13a, cased) and chrf of translations; `references`: for each reference its texts, in the same order."""
    metrics = _sacrebleu().metrics
    found = {}
    for name, metric in (("bleu", metrics.BLEU()), ("chrf", metrics.CHRF())):
        value = metric.corpus_score(list(written), [list(texts) for texts in references]).score
        found[name] = Score(float(value), str(metric.get_signature()))
    return found


def tokenized_bleu(written: Sequence[str], references: Sequence[Sequence[str]], language: str) -> Score:
    """BLEU as older papers report it, by Moses: both sides lowercased, punctuation normalised, tokenised."""
    moses = _sacremoses()
    normalizer, tokenizer = moses.MosesPunctNormalizer(language), moses.MosesTokenizer(language)

    def prepared(texts: Sequence[str]) -> list[str]:
        normalized = (normalizer.normalize(text.lower()) for text in texts)
        return [tokenizer.tokenize(text, return_str=True, escape=False) for text in normalized]

    metric = _sacrebleu().metrics.BLEU(tokenize="none", force=True)
    value = metric.corpus_score(prepared(written), [prepared(texts) for texts in references]).score
    return Score(float(value), f"{metric.get_signature()}|moses:{language}|lowercased|normalised")
