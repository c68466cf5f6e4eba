"""Texts to search in, and their vectors: those of a file's lines are kept in the user's cache, and found again.

They are kept by what they were made from: another model, or another content of the file, has other vectors. When a file
has changed, the vectors of its old content are removed as the new ones are written.
"""

import hashlib
import json
import tempfile
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from cutaway.cache import CacheEntry
from cutaway.checkpoints.weights import WEIGHTS, TensorToWrite, Weights, raw_bytes, write_weights
from cutaway.decoding.windows import Materialized
from cutaway.errors import InputError
from cutaway.text.lines import LONGEST, text_of

if TYPE_CHECKING:
    from cutaway.engines.engine import Engine
    from cutaway.model import Model

CHUNK = 65_536
"""Vectors that are multiplied at once, and written as one tensor."""
LARGEST = 10_000_000_000
"""Bytes of all kept vectors together, and of all indexes: beyond it, what was not used for the longest time goes."""
Embed = Callable[[Iterator[str]], Iterator[Tensor]]
Watch = Callable[[Iterator[Tensor], int], Iterator[Tensor]]
"""The same vectors, and somebody looks how many of how many there are."""


class Corpus(ABC):
    """Texts that can be found. Row 0, 1, … are those that are not empty; `numbers` are their places, from 1."""

    numbers: Sequence[int]

    @abstractmethod
    def text(self, row: int) -> str: ...

    @abstractmethod
    def chunks(self, embed: Embed, watch: Watch | None) -> list[Tensor]:
        """The vectors of all rows, of length 1, in pieces [≤ CHUNK, D]."""


class TextList(Corpus):
    """Texts in memory; their vectors are made for one search."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = [text for text in texts if not isinstance(text, str) or text.strip()]
        self.numbers = [i for i, text in enumerate(texts, start=1) if not isinstance(text, str) or text.strip()]

    def text(self, row: int) -> str:
        return self._texts[row]

    def chunks(self, embed: Embed, watch: Watch | None) -> list[Tensor]:
        vectors = _vectors(self._texts, len(self.numbers), embed, watch)
        return [torch.stack([next(vectors) for _ in range(n)]) for n in _sizes(len(self.numbers))]


class FileLines(Corpus):
    """The lines of a file. Read once to know where they are; of a million lines, this keeps 16 MB."""

    def __init__(self, path: Path, cached: bool, identity: str) -> None:
        self.path, self.cached, self._identity = path, cached, identity
        self.numbers, self._places = array("q"), array("q")
        content, place, number = hashlib.sha256(), 0, 0
        try:
            with path.open("rb") as file:
                while line := file.readline(LONGEST + 1):
                    number += 1
                    text_of(line, number, str(path))  # what is not text is told before the work begins
                    content.update(line)
                    if line.strip():
                        self.numbers.append(number)
                        self._places.append(place)
                    place += len(line)
        except OSError as error:
            raise InputError(f"{path} can't be read: {error.strerror}") from None
        self._content = content.hexdigest()

    def text(self, row: int) -> str:
        return next(self._lines(row))

    def _lines(self, first: int = 0) -> Iterator[str]:
        with self.path.open("rb") as file:
            for row in range(first, len(self.numbers)):
                file.seek(self._places[row])
                yield text_of(file.readline(LONGEST + 1), self.numbers[row], str(self.path))

    def entry(self, kind: str) -> CacheEntry:
        """Where what is known of this content by this model is kept."""
        subject = hashlib.sha256(f"{self.path.resolve()}\0{self._identity}".encode()).hexdigest()[:16]
        return CacheEntry(kind, hashlib.sha256(f"{self._content}\0{self._identity}".encode()).hexdigest()[:32], subject)

    def chunks(self, embed: Embed, watch: Watch | None) -> list[Tensor]:
        if not self.numbers:
            return []
        found = self.entry("vectors").find() if self.cached else None
        if found is None:
            vectors = _vectors(self._lines(), len(self.numbers), embed, watch)
            first = next(vectors)  # its width is not known before
            rest = iter(_after(first, vectors))

            def piece(n: int) -> Tensor:
                return torch.stack([next(rest) for _ in range(n)])

            sizes = _sizes(len(self.numbers))
            if not self.cached:
                return [piece(n) for n in sizes]
            tensors = {
                f"vectors.{i:06}": TensorToWrite(torch.float32, (n, len(first)), lambda n=n: piece(n))  # type: ignore[misc]
                for i, n in enumerate(sizes)
            }
            found = self.keep("vectors", lambda aside: write_weights(aside / WEIGHTS, tensors))
        weights = Weights([found / WEIGHTS])
        return [weights.tensor(name) for name in sorted(weights)]

    def keep(self, kind: str, write: Callable[[Path], object]) -> Path:
        """What `write` made, whole or not at all; that of the lines' former content is removed."""
        try:
            return self.entry(kind).keep(write, LARGEST)
        except OSError as error:
            raise InputError(
                f"the vectors of {self.path} can't be kept in {error.filename or 'the cache'}: "
                f"{error.strerror or error}; set CUTAWAY_CACHE to a folder that can be written and has room, or search "
                f"without keeping them (cache=False, --no-cache)"
            ) from None


def _after(first: Tensor, rest: Iterator[Tensor]) -> Iterator[Tensor]:
    yield first
    yield from rest


def _sizes(n: int) -> list[int]:
    return [min(CHUNK, n - start) for start in range(0, n, CHUNK)]


def _vectors(texts: Iterable[str], n: int, embed: Embed, watch: Watch | None) -> Iterator[Tensor]:
    vectors = embed(Materialized(texts))
    return (F.normalize(vector, dim=0) for vector in (vectors if watch is None else watch(vectors, n)))


def identity(model: "Model", engine: "Engine", pooling: str | None = None) -> str:
    """A digest of all that a vector depends on: weights, config, tokenizer, usage, precision, pooling."""
    digest = hashlib.sha256(f"{engine.name} {engine.precision} {model.usage.max_tokens} {pooling}".encode())
    digest.update(json.dumps(asdict(model.config), sort_keys=True, default=str).encode())
    for name, tensor in sorted(model.network.state_dict().items()):
        data = tensor.detach().cpu().contiguous()
        digest.update(f"{name} {data.dtype} {list(data.shape)}".encode())
        if data.numel():
            digest.update(raw_bytes(data))
    if model.tokenizer is not None:
        with tempfile.TemporaryDirectory() as folder:
            model.tokenizer.save(Path(folder))
            for path in sorted(Path(folder).iterdir()):
                digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()
