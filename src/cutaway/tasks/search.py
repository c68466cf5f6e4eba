"""Find the texts that mean what a query means."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Unpack, overload

import torch
from torch import Tensor
from torch.nn import functional as F

from cutaway.checks import Size, check, describe
from cutaway.decoding.windows import prepared, windows
from cutaway.errors import InputError
from cutaway.models.config import SentenceVector
from cutaway.tasks.batching import is_text, map_inputs
from cutaway.tasks.corpus import Corpus, FileLines, TextList, Watch, identity
from cutaway.tasks.embed import embed
from cutaway.tasks.options import RuntimeOptions
from cutaway.tasks.pooling import Pooling, choose_pooling
from cutaway.tasks.requirements import require
from cutaway.text.tokenizer import check_text

if TYPE_CHECKING:
    from cutaway.model import Model

QUERIES = 64
"""Queries that are compared at once with every text."""
_GRAPH = "graph.usearch"
Index = Literal["exact", "ann"]
Where = str | Path | list[str] | tuple[str, ...]
Find = Callable[[Tensor, int], list[list[tuple[float, int]]]]
"""queries [B, D] -> for each, (score, row) of the nearest, best first"""


@dataclass(frozen=True)
class Hit:
    """A text that was found: its rank from 1, its line in the file (or place in the list) from 1, the cosine."""

    rank: int
    line: int
    score: float
    text: str


class SearchOptions(RuntimeOptions, total=False):
    """Keyword arguments of search."""

    top: int
    index: Index
    cache: bool
    watch: Watch | None
    pooling: Pooling | None


@overload
def search(model: "Model", queries: str, texts: Where, **options: Unpack[SearchOptions]) -> list[Hit]: ...
@overload
def search(
    model: "Model", queries: list[str] | tuple[str, ...], texts: Where, **options: Unpack[SearchOptions]
) -> list[list[Hit]]: ...
@overload
def search(
    model: "Model", queries: Iterator[str], texts: Where, **options: Unpack[SearchOptions]
) -> Iterator[list[Hit]]: ...
def search(
    model: "Model",
    queries: str | list[str] | tuple[str, ...] | Iterator[str],
    texts: Where,
    *,
    top: int = 10,
    index: Index = "exact",
    cache: bool = True,
    watch: Watch | None = None,
    pooling: Pooling | None = None,
    engine: str | None = None,
    precision: str | None = None,
) -> list[Hit] | list[list[Hit]] | Iterator[list[Hit]]:
    """The `top` texts nearest to a query by cosine, best first. `texts` is a file, of which lines are found, or a list.

    A file's vectors are kept in the user's cache (unless `cache` is False), until the file or the model changes.
    `index="ann"` looks through an approximate index, built once, instead of at every text: for millions. Empty lines
    are never found, and an empty query finds nothing. `watch` sees the vectors as they are made, for progress;
    `pooling` is as for `embed`.
    """
    require(model, "search", SentenceVector, None)
    check("top", top, Size)
    check("index", index, Index)
    pooling = choose_pooling(model, pooling)
    corpus = _corpus(model, texts, cache, pooling, engine, precision)

    def vectors(stream: Iterator[str]) -> Iterator[Tensor]:
        return embed(model, stream, pooling=pooling, engine=engine, precision=precision)

    chunks = corpus.chunks(vectors, watch)
    find = _exact(chunks) if index == "exact" else _approximate(chunks, corpus)

    def run(stream: Iterator[str]) -> Iterator[list[Hit]]:
        for window in windows(prepared(stream, _checked), lambda _: 1, QUERIES):
            asked = [query for query in window if query.strip()]
            found: list[list[tuple[float, int]]] = []
            if asked and chunks:
                queries_BD = embed(model, asked, pooling=pooling, engine=engine, precision=precision)
                found = find(F.normalize(queries_BD, dim=-1), min(top, len(corpus.numbers)))
            rest = iter(found)
            for query in window:
                yield _hits(corpus, next(rest, [])) if query.strip() else []

    return map_inputs(queries, run, is_text, "query")


def _checked(query: str) -> str:
    check_text(query)
    return query


def _corpus(
    model: "Model", texts: object, cache: bool, pooling: Pooling | None, engine: str | None, precision: str | None
) -> Corpus:
    if isinstance(texts, str | Path):
        path = Path(texts).expanduser()
        if not path.is_file():
            if path.exists():
                raise InputError(f"{str(texts)[:200]!r} is no file; give one whose lines are searched in")
            raise InputError(f"there is no file {str(texts)[:200]!r} to search in; texts themselves come as a list")
        return FileLines(path, cache, identity(model, model.engine(engine, precision), pooling))
    if isinstance(texts, list | tuple):
        return TextList(texts)
    raise InputError(f"expected a file or a list of texts to search in, found {describe(texts)}")


def _hits(corpus: Corpus, found: list[tuple[float, int]]) -> list[Hit]:
    return [Hit(i, corpus.numbers[row], score, corpus.text(row)) for i, (score, row) in enumerate(found, start=1)]


def _exact(chunks: list[Tensor]) -> Find:
    """Every text is looked at: a product of all queries with a chunk of vectors at a time."""

    def find(queries_BD: Tensor, top: int) -> list[list[tuple[float, int]]]:
        best: list[list[tuple[float, int]]] = [[] for _ in queries_BD]
        first = 0
        for vectors_ND in chunks:
            scores = (queries_BD @ vectors_ND.mT).topk(min(top, len(vectors_ND)))
            for i, (values, rows) in enumerate(zip(scores.values.tolist(), scores.indices.tolist(), strict=True)):
                best[i] += zip(values, (first + row for row in rows), strict=True)
                best[i] = sorted(best[i], key=lambda item: (-item[0], item[1]))[:top]
            first += len(vectors_ND)
        return best

    return find


def _approximate(chunks: list[Tensor], corpus: Corpus) -> Find:
    """A graph of neighbours (HNSW) is followed; the few texts that it leads to are compared exactly."""
    try:
        from usearch.index import Index as Graph
    except ImportError:
        raise InputError('index="ann" needs usearch: pip install cutaway[search]') from None
    width = chunks[0].shape[1] if chunks else 1
    graph = Graph(ndim=width, metric="ip", dtype="f32")
    kept = corpus.entry("graphs").find() if isinstance(corpus, FileLines) and corpus.cached else None
    if kept is not None:
        graph.view(str(kept / _GRAPH))
    else:
        first = 0
        for vectors_ND in chunks:
            graph.add(torch.arange(first, first + len(vectors_ND)).numpy(), vectors_ND.numpy())
            first += len(vectors_ND)
        if isinstance(corpus, FileLines) and corpus.cached and chunks:
            corpus.keep("graphs", lambda aside: graph.save(str(aside / _GRAPH)))
    starts = [sum(len(chunk) for chunk in chunks[:i]) for i in range(len(chunks))]

    def vector(row: int) -> Tensor:
        i = max(i for i, start in enumerate(starts) if start <= row)
        return chunks[i][row - starts[i]]

    def find(queries_BD: Tensor, top: int) -> list[list[tuple[float, int]]]:
        found = []
        for query_D in queries_BD:
            rows = [int(row) for row in graph.search(query_D.numpy(), top).keys]
            found.append(
                sorted(((float(query_D @ vector(row)), row) for row in rows), key=lambda hit: (-hit[0], hit[1]))
            )
        return found

    return find
