"""Texts as token ids in memory-mapped files: encoded once, found again by a digest of their origin.

A folder of the cache holds, for each side, its ids one after another (`source.ids`, 32 bits each) and the end of each
text (`source.ends`, 64 bits each), and `report.json`.
"""

import hashlib
import json
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from cutaway.cache import CacheEntry
from cutaway.errors import CheckpointError
from cutaway.files import read_json

Encode = Callable[[list[str]], list[list[int]]]
Row = tuple[str, ...]
_AT_ONCE = 10_000  # texts that are encoded together
_REPORT = "report.json"


class EncodedTexts:
    """Many texts as ids: `texts[i]` is the i-th, `texts.lengths` has their lengths."""

    def __init__(self, ids: Tensor, ends: Tensor) -> None:
        self.ids, self.ends = ids, ends
        self.lengths = ends.diff(prepend=ends.new_zeros(1))

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, i: int) -> Tensor:
        return self.ids[int(self.ends[i - 1]) if i else 0 : int(self.ends[i])]

    def __iter__(self) -> Iterator[Tensor]:
        return (self[i] for i in range(len(self)))

    def padded(self, rows: Sequence[int], pad: int) -> Tensor:
        """The texts of these rows as one tensor [B, T], padded."""
        texts = [self[row].long() for row in rows]
        return torch.nn.utils.rnn.pad_sequence(texts, batch_first=True, padding_value=pad)

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> Self:
        """From ids in memory."""
        lengths = torch.tensor([len(row) for row in rows], dtype=torch.int64)
        return cls(torch.tensor([i for row in rows for i in row], dtype=torch.int32), lengths.cumsum(0))

    @classmethod
    def mapped(cls, folder: Path, name: str) -> Self:
        return cls(_mapped(folder / f"{name}.ids", torch.int32), _mapped(folder / f"{name}.ends", torch.int64))


@dataclass(frozen=True)
class EncodedCorpus:
    """The encoded sides of a corpus, and the report of its reading."""

    sides: dict[str, EncodedTexts]
    report: dict[str, Any]


def encoded(
    sides: dict[str, Encode], made_of: Sequence[str], read: Callable[[dict[str, Any]], Iterator[Row]], max_tokens: int
) -> EncodedCorpus:
    """The rows of `read`, a text for each side, encoded and cached under the digest of `made_of`.

    A row with a text of more than `max_tokens` tokens is left out. `read` is called with the report, a dictionary to
    fill; "tokens" is the number of rows that were too long.
    """
    digest = hashlib.sha256("\0".join((*sides, *made_of, str(max_tokens))).encode()).hexdigest()
    entry = CacheEntry("encoded", digest[:32])

    def write(folder: Path) -> None:
        report: dict[str, Any] = {}
        report["tokens"] = _write(folder, sides, read(report), max_tokens)
        (folder / _REPORT).write_text(json.dumps(report), encoding="utf-8")

    try:
        folder = entry.find() or entry.keep(write)
    except OSError as error:
        raise CheckpointError(
            f"encoded texts can't be written to {error.filename or 'the cache'}: {error.strerror or error}; set "
            f"CUTAWAY_CACHE to a folder that can be written and has room"
        ) from None
    return EncodedCorpus({name: EncodedTexts.mapped(folder, name) for name in sides}, read_json(folder / _REPORT))


def _write(folder: Path, sides: dict[str, Encode], rows: Iterable[Row], max_tokens: int) -> int:
    """Writes the encoded rows; the number of rows that are left out."""
    left_out, rows = 0, iter(rows)
    with ExitStack() as files:
        ids_files = [files.enter_context((folder / f"{name}.ids").open("wb")) for name in sides]
        ends_files = [files.enter_context((folder / f"{name}.ends").open("wb")) for name in sides]
        places = [0 for _ in sides]
        while some := list(islice(rows, _AT_ONCE)):
            found = [encode(list(texts)) for encode, texts in zip(sides.values(), zip(*some, strict=True), strict=True)]
            fits = [all(len(ids) <= max_tokens for ids in row) for row in zip(*found, strict=True)]
            left_out += fits.count(False)
            for side, texts in enumerate(found):
                ids, ends = array("i"), array("q")
                for text, fit in zip(texts, fits, strict=True):
                    if fit:
                        ids.extend(text)
                        places[side] += len(text)
                        ends.append(places[side])
                ids.tofile(ids_files[side])
                ends.tofile(ends_files[side])
    return left_out


def _mapped(path: Path, dtype: torch.dtype) -> Tensor:
    n = path.stat().st_size // dtype.itemsize
    return torch.from_file(str(path), shared=False, size=n, dtype=dtype) if n else torch.empty(0, dtype=dtype)
