"""Which class a text is of, with probabilities."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Unpack, overload

import torch
from torch import Tensor

from cutaway.checks import Size, check, describe
from cutaway.errors import InputError
from cutaway.models.config import Classifier
from cutaway.tasks.batching import BATCH_TOKENS, map_inputs, read_in_order
from cutaway.tasks.options import RuntimeOptions
from cutaway.tasks.reader import InputRow, Inputs, Pair, Reader
from cutaway.tasks.requirements import require

if TYPE_CHECKING:
    from cutaway.model import Model

OVERLAP = 0.125
"""Share of a window that the next one of a long text repeats, so that no phrase is cut in both."""


@dataclass(frozen=True)
class Label:
    """One class: its name (its number, if the model has no names), how likely it is, its number."""

    label: str
    probability: float
    number: int


class ClassifyOptions(RuntimeOptions, total=False):
    """Keyword arguments of classify."""

    top: int | None
    batch_tokens: int


@overload
def classify(model: "Model", texts: str | Pair, **options: Unpack[ClassifyOptions]) -> list[Label]: ...
@overload
def classify(model: "Model", texts: Inputs, **options: Unpack[ClassifyOptions]) -> list[list[Label]]: ...
@overload
def classify(
    model: "Model", texts: Iterator[str | Pair], **options: Unpack[ClassifyOptions]
) -> Iterator[list[Label]]: ...
def classify(
    model: "Model",
    texts: str | Pair | Inputs | Iterator[str | Pair],
    *,
    top: int | None = None,
    engine: str | None = None,
    precision: str | None = None,
    batch_tokens: int = BATCH_TOKENS,
) -> list[Label] | list[list[Label]] | Iterator[list[Label]]:
    """The `top` classes (None: all) of a text, or of a pair of texts, best first.

    Classes exclude each other (softmax) unless the checkpoint says that several may hold, or there is one only
    (sigmoid). A text that is longer than the model reads is read in overlapping windows of one size, and their
    probabilities are averaged. An empty text has no class: its list is empty.
    """
    require(model, "classify", Classifier)
    check("top", top, Size | None)
    check("batch_tokens", batch_tokens, Size)
    reader = Reader(model, "classify", engine, precision)

    def rows_of(window: list[str | Pair]) -> list[list[InputRow]]:
        single = iter(reader.texts([text for text in window if isinstance(text, str)], overlap=OVERLAP))
        found = [next(single) if isinstance(text, str) else _pair(reader, text) for text in window]
        return [rows if any(row.n for row in rows) else [] for rows in found]

    def read(rows: list[InputRow]) -> Sequence[Tensor]:
        return probabilities(model, reader.read(rows)).cpu().unbind()

    def run(stream: Iterator[str | Pair]) -> Iterator[list[Label]]:
        for one in read_in_order(
            stream, rows_of, len, read, length=_length, batch_tokens=batch_tokens, device=reader.engine.device
        ):
            yield labels(model, torch.stack(one.said).mean(0), top) if one.said else []

    return map_inputs(texts, run, is_text_or_pair)


def is_text_or_pair(inputs: object) -> bool:
    """A tuple of two texts is a pair; several texts come as a list."""
    pair = isinstance(inputs, tuple) and len(inputs) == 2 and all(isinstance(text, str) for text in inputs)
    return pair or isinstance(inputs, str)


def _pair(reader: Reader, pair: Pair) -> list[InputRow]:
    if not is_text_or_pair(pair):
        raise InputError(f"expected a text or a pair (text, text), found {describe(pair)}")
    first, second = (reader.tokenizer.encode(part, special=False).ids for part in pair)
    return reader.pair_rows(first, second, overlap=OVERLAP)


def _length(text: str | Pair) -> int:
    return sum(map(len, text)) if isinstance(text, tuple) else len(text)


def probabilities(model: "Model", logits_BC: Tensor) -> Tensor:
    """[B, C]; a model of one class that estimates a number (its checkpoint says regression) gives that number."""
    keys = {} if model.origin is None else model.origin.keys
    kind = keys.get("problem_type")
    if kind == "regression":
        return logits_BC
    if kind == "multi_label_classification" or logits_BC.shape[-1] == 1:
        return logits_BC.sigmoid()
    return logits_BC.softmax(-1)


def labels(model: "Model", probabilities_C: Tensor, top: int | None) -> list[Label]:
    """The likeliest classes, best first; of equals the first."""
    values = probabilities_C.tolist()
    order = sorted(range(len(values)), key=lambda number: -values[number])[:top]
    names = model.usage.labels
    return [Label(names[number] if names else str(number), values[number], number) for number in order]
