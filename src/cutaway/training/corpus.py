"""The data of a run: read, cleaned, split into training and validation, and encoded."""

import hashlib
import json
import tempfile
from collections.abc import Iterator
from heapq import nsmallest
from pathlib import Path
from typing import Any

from cutaway import schema
from cutaway.data.clean import DropReport, Rules, clean, join_neighbours
from cutaway.data.encoding import Encode, EncodedCorpus, encoded
from cutaway.data.files import file_digest, lines
from cutaway.data.pairs import Pair, PairSpec, digest, read_pairs
from cutaway.errors import InputError
from cutaway.text.lines import text_of
from cutaway.text.tokenizer import Tokenizer
from cutaway.training.config import Data

_ANY = 2**31 - 1


class PairCorpus:
    """Pairs for training, and pairs for validation, given or held out."""

    def __init__(self, data: Data, max_ratio: float, shown: int = 0, any_length: bool = False) -> None:
        """`shown`: the number of validation pairs whose texts are kept beside their ids, as the report's "shown".

        `any_length`: long texts are kept, for encoders that truncate.
        """
        self.data, self.shown = data, shown
        self.rules = Rules(
            max_characters=_ANY if any_length else max(2000, 16 * data.max_tokens),
            max_ratio=max_ratio,
            duplicates=not data.duplicates,
        )
        self.spec = PairSpec(source=data.source, target=data.target, pairs=data.pairs, columns=data.columns)
        self.valid_spec: PairSpec | None = None
        if bool(data.valid_source) != bool(data.valid_target):
            raise InputError("--valid-source and --valid-target go together: give both")
        if data.valid_source or data.valid_pairs:
            self.valid_spec = PairSpec(
                source=data.valid_source, target=data.valid_target, pairs=data.valid_pairs, columns=data.columns
            )
        self.digests = {"train": digest(self.spec)}
        if self.valid_spec is not None:
            self.digests["valid"] = digest(self.valid_spec)
        self._counted: tuple[int, float] | None = None
        self.only: frozenset[str] | None = None  # classes of the training data: texts of others are not held out

    def count(self) -> int:
        """Pairs that keep the rules, held-out ones included."""
        return self._count()[0]

    def _count(self) -> tuple[int, float]:
        """The number of pairs, and the place up to which a source is held out."""
        if self._counted is None:
            n, first = 0, dict[float, int]()  # the number of pairs by the place of their source
            for pair in clean(read_pairs(self.spec), self.rules, DropReport()):
                n += 1
                place = _place(pair.source)
                first[place] = first.get(place, 0) + 1
                if len(first) > 2 * self.data.held_out + 1000:
                    first = {place: first[place] for place in nsmallest(self.data.held_out, first)}
            if not n:
                raise InputError("the data holds no usable pair")
            self._counted = n, self._last_of(first, min(self.data.held_out, n // 10))
        return self._counted

    @staticmethod
    def _last_of(first: dict[float, int], most: int) -> float:
        """The last place up to which there are at most `most` pairs; the first place always counts."""
        places = sorted(first)
        last, total = places[0], first[places[0]]
        for place in places[1:]:
            total += first[place]
            if total > most:
                break
            last = place
        return last

    def pairs(self, which: str, dropped: DropReport) -> Iterator[Pair]:
        """The pairs of "train" or "valid"."""
        return join_neighbours(self._divided(which, dropped), self.data.joined)

    @property
    def holds_out(self) -> bool:
        """Whether no pairs to validate on were given."""
        return self.valid_spec is None

    def _divided(self, which: str, dropped: DropReport) -> Iterator[Pair]:
        if which == "valid" and self.valid_spec is not None:
            yield from clean(read_pairs(self.valid_spec), self.rules, dropped)
            return
        last = self._count()[1] if self.valid_spec is None else -1.0
        for pair in clean(read_pairs(self.spec), self.rules, dropped):
            held_out = _place(pair.source) <= last
            if held_out == (which == "valid") and not (held_out and self.only and pair.target not in self.only):
                yield pair

    def encoded(self, which: str, sides: dict[str, Encode], tokenizer: Tokenizer) -> EncodedCorpus:
        """The pairs as ids. `sides`: the encoders of source and target."""

        def read(report: dict[str, Any]) -> Iterator[tuple[str, str]]:
            dropped, shown = DropReport(), list[tuple[str, str]]()
            for pair in self.pairs(which, dropped):
                if which == "valid" and len(shown) < self.shown:
                    shown.append((pair.source, pair.target))
                yield pair.source, pair.target
            report |= {"text": str(dropped), "read": dropped.n_read, "dropped": dropped.counts, "shown": shown}

        held = f"{self.data.held_out} pairs held out" if self.holds_out else ""
        rules = json.dumps([schema.to_json(self.rules), self.data.joined, self.shown])
        made_of = [which, held, json.dumps(self.digests), rules, tokenizer_digest(tokenizer)]
        return encoded(sides, made_of, read, self.data.max_tokens)


class TextCorpus:
    """Running text for training, and for validation, given or the last tenth of the lines."""

    def __init__(self, data: Data) -> None:
        if not data.text:
            raise InputError("there is no text to learn from: give --text (one file or several)")
        self.data = data
        self.digests = {"train": _digest(data.text)}
        if data.valid_text:
            self.digests["valid"] = _digest(data.valid_text)

    def lines(self, which: str) -> Iterator[str]:
        """Lines with their ends, which are part of a running text."""
        files = self.data.valid_text if which == "valid" and self.data.valid_text else self.data.text
        if self.data.valid_text:
            yield from _lines(files)
            return
        first = sum(1 for _ in _lines(files)) * 9 // 10
        for number, line in enumerate(_lines(files)):
            if (number >= first) == (which == "valid"):
                yield line

    def encoded(self, which: str, tokenizer: Tokenizer) -> EncodedCorpus:
        def read(_: dict[str, Any]) -> Iterator[tuple[str]]:
            return ((line,) for line in self.lines(which))

        made_of = [which, json.dumps(self.digests), tokenizer_digest(tokenizer)]
        return encoded({"text": lambda texts: tokenizer.encode_ids(texts, special=False)}, made_of, read, _ANY)


def _lines(files: tuple[str, ...]) -> Iterator[str]:
    for file in files:
        for number, line in enumerate(lines(file), start=1):
            yield text_of(line, number, file) + "\n"


def _digest(files: tuple[str, ...]) -> str:
    return hashlib.sha256(b"".join(file_digest(file) for file in files)).hexdigest()


def _place(text: str) -> float:
    """A text's place between 0 and 1, by its hash: equal texts are never both in training and validation."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big") / 2**56


def tokenizer_digest(tokenizer: Tokenizer) -> str:
    found = hashlib.sha256()
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save(Path(folder))
        for path in sorted(Path(folder).iterdir()):
            found.update(path.name.encode() + path.read_bytes())
    return found.hexdigest()
