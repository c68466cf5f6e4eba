"""What contestants of bench.train learn: the same pairs of texts, or the same windows of one text, for all of them.

A step's texts are given as ids, so that everybody pads and cuts them in his own way. Ids 0 to 4 mean what they mean in
cutaway's tokenizers: <pad>, <unk>, <s>, </s>, <mask>.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from bench.data import IGNORED, Batch, text_batches, translation_batches
from cutaway.data.batches import batches_of
from cutaway.data.clean import DropReport, Rules, clean
from cutaway.data.pairs import PairSpec, read_pairs
from cutaway.models.config import TransformerConfig
from cutaway.text.train import train_tokenizer

PAD, START, END, FIRST = 0, 2, 3, 5  # FIRST: the first id that is a word
Pair = tuple[list[int], list[int]]
"""Source and target, each with its end."""


@dataclass(frozen=True)
class Lesson:
    """One model, what it learns step by step, and how. Goes to each contestant's process."""

    config: TransformerConfig
    steps: Sequence[Sequence[Pair]] = ()  # of a translator
    windows: Sequence[Sequence[list[int]]] = ()  # of a language model: each a token longer than what is read
    precision: str = "float32"
    smoothing: float = 0.0
    place: Path | None = None  # a folder for files

    @property
    def batches(self) -> list[Batch]:
        """Each step padded into one batch, for those who want it so."""
        if self.windows:
            ids = [torch.tensor(rows) for rows in self.windows]
            return [Batch(rows[:, :-1], rows[:, 1:]) for rows in ids]
        return [padded(pairs) for pairs in self.steps]

    @property
    def n_tokens(self) -> list[int]:
        """Real target tokens of each step: what rates count."""
        if self.windows:
            return [sum(len(row) - 1 for row in rows) for rows in self.windows]
        return [sum(len(target) for _, target in pairs) for pairs in self.steps]

    @property
    def length(self) -> int:
        """Tokens of a target, on average."""
        return round(sum(self.n_tokens) / sum(len(step) for step in self.windows or self.steps))


def padded(pairs: Sequence[Pair]) -> Batch:
    def stacked(rows: Sequence[list[int]], value: int) -> Tensor:
        return pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=value)

    source = stacked([source for source, _ in pairs], PAD)
    labels = stacked([target for _, target in pairs], IGNORED)
    tokens = stacked([[START, *target[:-1]] for _, target in pairs], PAD)
    return Batch(tokens, labels, source, source != PAD)


def made_up(vocabulary: int, n_tokens: int) -> list[list[Pair]]:
    """A short, a typical and a long batch of random words, shaped like Multi30k's."""
    found = []
    for batch in translation_batches(vocabulary, n_tokens):
        assert batch.source is not None
        assert batch.source_mask is not None
        sources = zip(batch.source, batch.source_mask.sum(1), strict=True)
        targets = zip(batch.labels, (batch.labels != IGNORED).sum(1), strict=True)
        sides = [[[*ids[: n - 1].clamp_min(FIRST).tolist(), END] for ids, n in side] for side in (sources, targets)]
        found.append(list(zip(*sides, strict=True)))
    return found


def from_files(source: Path, target: Path, vocabulary: int, n_tokens: int, n_batches: int) -> list[list[Pair]]:
    """Batches of like length, as `cutaway train` makes them, from the shortest to the longest: the middle ones of as
    many parts of all. The vocabulary is learnt from the files; a small corpus may give fewer words."""
    spec = PairSpec(source=(str(source),), target=(str(target),))
    pairs = list(clean(read_pairs(spec), Rules(), DropReport()))
    texts = [[pair.source for pair in pairs], [pair.target for pair in pairs]]
    tokenizer = train_tokenizer((text for side in texts for text in side), "bpe", vocabulary, frame="end")
    sides = [tokenizer.encode_ids(side) for side in texts]
    lengths = torch.tensor([[len(ids) for ids in side] for side in sides]).T
    fits = (lengths <= min(256, n_tokens)).all(dim=1).nonzero()[:, 0]
    batches = [fits[rows] for rows in batches_of(lengths[fits], n_tokens, seed=0)]
    batches.sort(key=lambda rows: float(lengths[rows, 1].float().mean()))
    n = min(n_batches, len(batches))
    chosen = [batches[len(batches) * (2 * part + 1) // (2 * n)] for part in range(n)]
    return [[(sides[0][row], sides[1][row]) for row in rows.tolist()] for rows in chosen]


def text(vocabulary: int, n_rows: int, length: int) -> list[list[list[int]]]:
    batches = text_batches(vocabulary, n_rows, length)
    return [torch.cat((batch.tokens, batch.labels[:, -1:]), dim=1).tolist() for batch in batches]


def shares_of(steps: Sequence[Sequence[Any]], n: int) -> list[list[list[int]]]:
    """The rows of each step's shares, all steps' rows counted on: of a step's batch share 1 stays with it, share 2 goes
    to the next step, share 3 to the one after. So shares of one step differ in length, as in `cutaway train`, and all
    steps together hold what they hold."""
    shares: list[list[list[int]]] = []
    first = 0
    for step in steps:
        rows = list(range(first, first + len(step)))
        cuts = [len(rows) * i // n for i in range(n + 1)]
        shares.append([rows[a:b] for a, b in pairwise(cuts)])
        first += len(step)
    return [[shares[(number - i) % len(shares)][i] for i in range(n)] for number in range(len(shares))]
