"""Fill the blanks of a text: what a masked language model thinks stood there."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, overload

from torch import Tensor

from cutaway.checks import Size, check
from cutaway.decoding.windows import prepared
from cutaway.errors import InputError
from cutaway.models.config import MaskedLanguageModel
from cutaway.tasks.batching import is_text, map_inputs, read_in_order
from cutaway.tasks.reader import InputRow, Reader
from cutaway.tasks.requirements import require
from cutaway.text.tokenizer import Encoding, check_text

if TYPE_CHECKING:
    from cutaway.model import Model

BATCH_TOKENS = 256
"""Fewer than other tasks': every token of a batch gets a score for every word, 31 MB with BERT's vocabulary."""
_BLANKS = r"_{3,}|\[MASK\]|<mask>"


@dataclass(frozen=True)
class WordCandidate:
    """A word for a blank."""

    text: str
    probability: float
    id: int


@dataclass(frozen=True)
class Filled:
    """A text with its blanks filled by the likeliest words; and for each blank its candidates, best first."""

    text: str
    blanks: tuple[tuple[WordCandidate, ...], ...]


@overload
def fill(
    model: "Model", texts: str, *, top: int = 5, engine: str | None = None, precision: str | None = None
) -> Filled: ...
@overload
def fill(
    model: "Model",
    texts: list[str] | tuple[str, ...],
    *,
    top: int = 5,
    engine: str | None = None,
    precision: str | None = None,
) -> list[Filled]: ...
@overload
def fill(
    model: "Model", texts: Iterator[str], *, top: int = 5, engine: str | None = None, precision: str | None = None
) -> Iterator[Filled]: ...
def fill(
    model: "Model",
    texts: str | list[str] | tuple[str, ...] | Iterator[str],
    *,
    top: int = 5,
    engine: str | None = None,
    precision: str | None = None,
) -> Filled | list[Filled] | Iterator[Filled]:
    """The `top` words for every blank of a text. A blank is `___`, `[MASK]` or the tokenizer's own mask.

    Blanks of one text are filled independently of each other. An empty text has no blanks and stays empty; any other
    text without a blank is an error, and so is one that is longer than the model reads: windows would cut the sentence.
    """
    require(model, "fill", MaskedLanguageModel)
    check("top", top, Size)
    reader = Reader(model, "fill", engine, precision)
    mask = reader.tokenizer.special.mask
    if mask is None:
        raise InputError(f"the tokenizer of {model.name} has no mask token, so a text can't have blanks")
    name = reader.tokenizer.names["mask"]
    blank = re.compile(f"{re.escape(name)}|{_BLANKS}")

    def checked(text: str) -> str:
        check_text(text)
        if text.strip() and not blank.search(text):
            raise InputError(f"{_short(text)} has no blank; write ___ or [MASK] where a word is to be filled in")
        return text

    def rows_of(window: list[str]) -> list[list[InputRow]]:
        encoded = reader.tokenizer.encode_many([blank.sub(lambda _: name, text) for text in window])
        return [
            [_row(reader, text, found)] if text.strip() else [] for text, found in zip(window, encoded, strict=True)
        ]

    def read(rows: list[InputRow]) -> list[list[tuple[WordCandidate, ...]]]:
        logits_BTV = reader.read(rows)
        return [
            [_candidates(reader, logits_TV[place], top) for place, token in enumerate(row.ids) if token == mask]
            for row, logits_TV in zip(rows, logits_BTV, strict=True)
        ]

    def run(stream: Iterator[str]) -> Iterator[Filled]:
        for one in read_in_order(
            prepared(stream, checked),
            rows_of,
            len,
            read,
            length=len,
            batch_tokens=BATCH_TOKENS,
            device=reader.engine.device,
        ):
            blanks = tuple(one.said[0]) if one.said else ()
            yield Filled(_filled(one.input, blank, [candidates[0].text for candidates in blanks]), blanks)

    return map_inputs(texts, run, is_text)


def _row(reader: Reader, text: str, found: Encoding) -> InputRow:
    if reader.limit is not None and len(found.ids) > reader.limit:
        raise InputError(
            f"{_short(text)} has {len(found.ids)} tokens, and {reader.model.name} reads at most {reader.limit}; "
            f"give only the sentences around the blank"
        )
    return InputRow(found.ids, found.segments)


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}…")


def _candidates(reader: Reader, logits_V: Tensor, top: int) -> tuple[WordCandidate, ...]:
    best = logits_V.softmax(-1).topk(min(top, len(logits_V)))
    return tuple(
        WordCandidate(reader.tokenizer.decode([number], skip_special=False).strip(), probability, number)
        for probability, number in zip(best.values.tolist(), best.indices.tolist(), strict=True)
    )


def _filled(text: str, blank: re.Pattern[str], words: list[str]) -> str:
    """The text with words for its blanks; a piece that continues a word (##ing) is joined to it."""
    parts = blank.split(text)
    filled = parts[0]
    for word, part in zip(words, parts[1:], strict=True):
        filled = filled.rstrip() + word[2:] if word.startswith("##") else filled + word
        filled += part
    return filled
