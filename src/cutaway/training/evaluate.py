"""Evaluation of a translator: BLEU and chrF of all sentences, and by sentence length."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cutaway.decoding.windows import Materialized
from cutaway.errors import InputError
from cutaway.tasks.options import Options
from cutaway.training.metrics import Score, check_installed, tokenized_bleu, translation_scores

if TYPE_CHECKING:
    from cutaway.model import Model

LENGTHS = (10, 20, 30, 40, 50, 60, 80, 100)
"""Words of the source at which each bucket but the first begins."""
ENOUGH = 20
"""Sentences of a bucket from which its BLEU is meaningful: with fewer, it is no point of a curve."""
ShowProgress = Callable[[Iterator[str], Sequence[int]], Iterator[str]]
"""Translations and the sizes of their sources -> the same translations, with progress shown as they come."""


@dataclass(frozen=True)
class Bucket:
    """The sentences of `least` to `most` words (None: or more)."""

    least: int
    most: int | None
    n: int
    words: float  # the mean
    bleu: float
    chrf: float

    def __str__(self) -> str:
        return f"{self.least}+" if self.most is None else f"{self.least}–{self.most}"


@dataclass(frozen=True)
class Evaluation:
    scores: dict[str, Score]
    buckets: list[Bucket]
    written: list[str]
    seconds: float

    @property
    def curve(self) -> list[tuple[float, float]]:
        """BLEU by words of a sentence: of the buckets with enough sentences, or of all if there are few such."""
        enough = [bucket for bucket in self.buckets if bucket.n >= ENOUGH]
        return [(bucket.words, bucket.bleu) for bucket in (enough if len(enough) > 1 else self.buckets)]


def evaluate(
    model: "Model",
    sources: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    beams: int | None = None,
    tokenized: str | None = None,
    engine: str | None = None,
    precision: str | None = None,
    show_progress: ShowProgress = lambda texts, _: texts,
) -> Evaluation:
    """Translates and scores. `references`: one or more lists of translations, each as long as `sources`.

    `tokenized`, a language's code, adds BLEU on lowercased text cut by Moses' tokeniser, as older papers report it.
    """
    for each in references:
        if len(each) != len(sources):
            raise InputError(f"there are {len(sources):,} sentences and {len(each):,} translations; give as many")
    if not sources:
        raise InputError("there are no sentences to evaluate on")
    check_installed(tokenized is not None)
    began = time.monotonic()
    options: Options = {"engine": engine, "precision": precision}
    if beams is not None:
        options["beams"] = beams
    order = longest_first(sources)
    texts = Materialized(sources[row] for row in order)
    found = show_progress(model.translate(texts, **options), work([sources[row] for row in order]))
    written = [text for _, text in sorted(zip(order, found, strict=True))]
    seconds = time.monotonic() - began
    scores = translation_scores(written, references)
    if tokenized is not None:
        scores["bleu, lowercased, tokenised"] = tokenized_bleu(written, references, tokenized)
    return Evaluation(scores, by_length(sources, references, written), written, seconds)


def longest_first(texts: Sequence[str]) -> list[int]:
    """Rows by decreasing length, the order in which a search begins with them: results come early, not at the end."""
    return sorted(range(len(texts)), key=lambda row: -len(texts[row]))


def work(texts: Sequence[str]) -> list[int]:
    """The estimated work of translating each text: its length and the mean length, as a model early in training writes
    equally much for any text."""
    mean = sum(map(len, texts)) // max(1, len(texts))
    return [len(text) + mean for text in texts]


def by_length(sources: Sequence[str], references: Sequence[Sequence[str]], written: Sequence[str]) -> list[Bucket]:
    lengths = [len(source.split()) for source in sources]
    edges = [1, *LENGTHS]
    found = []
    for i, least in enumerate(edges):
        most = edges[i + 1] - 1 if i + 1 < len(edges) else None
        rows = [row for row, n in enumerate(lengths) if max(n, 1) >= least and (most is None or n <= most)]
        if rows:
            scores = translation_scores(
                [written[row] for row in rows], [[texts[row] for row in rows] for texts in references]
            )
            mean = sum(lengths[row] for row in rows) / len(rows)
            found.append(Bucket(least, most, len(rows), mean, scores["bleu"].value, scores["chrf"].value))
    return found


def new_figure() -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError(
            "pictures are drawn by matplotlib, which is not installed: pip install 'cutaway[train]'"
        ) from None
    return Figure(figsize=(7, 4.2), layout="constrained")


def draw_by_length(named: dict[str, Evaluation]) -> Any:
    """A matplotlib figure of BLEU against sentence length, a line for each model."""
    figure = new_figure()
    axes = figure.subplots()
    for name, found in named.items():
        axes.plot(*zip(*found.curve, strict=True), marker="o", label=name)
    axes.set(xlabel="words of the source sentence", ylabel="BLEU", title="BLEU against sentence length")
    axes.set_ylim(bottom=0)
    axes.legend()
    return figure
