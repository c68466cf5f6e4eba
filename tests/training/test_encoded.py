"""Texts as ids on disk: the same again, encoded once, never half of them."""

import json
import multiprocessing as mp
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from cutaway.data import encoding as module
from cutaway.data.encoding import EncodedCorpus, EncodedTexts, encoded
from cutaway.errors import CheckpointError

ROWS = [("ab", "xyz"), ("", "q"), ("abcdef", "z"), ("c", "zz")]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CUTAWAY_CACHE", str(tmp_path))
    return tmp_path / "encoded"


def letters(texts: list[str]) -> list[list[int]]:
    return [[ord(letter) for letter in text] for text in texts]


SIDES = {"source": letters, "target": letters}


class Reader:
    """Counts how often it is asked."""

    def __init__(self, rows: list[tuple[str, str]]) -> None:
        self.rows, self.asked = rows, 0

    def __call__(self, report: dict[str, Any]) -> Iterator[tuple[str, str]]:
        self.asked += 1
        yield from self.rows
        report["text"] = f"{len(self.rows)} rows"


def texts(found: EncodedCorpus) -> list[tuple[str, ...]]:
    sides = [["".join(map(chr, ids.tolist())) for ids in side] for side in found.sides.values()]
    return list(zip(*sides, strict=True))


def test_another_process_is_quicker() -> None:
    """It encodes the same while this one reads: what it has made is not taken from under its feet."""

    def slow(report: dict[str, Any]) -> Iterator[tuple[str, str]]:
        yield from ROWS
        quicker.append(encoded(SIDES, ["a"], Reader(ROWS), 100))
        report["text"] = "slow"

    quicker: list[EncodedCorpus] = []
    found = encoded(SIDES, ["a"], slow, 100)
    assert texts(found) == texts(quicker[0]) == ROWS
    assert found.report["text"] == "4 rows"


@pytest.mark.parametrize("at_once", [1, 3, 10_000])
def test_round_trip(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_AT_ONCE", at_once)
    found = encoded(SIDES, ["a"], Reader(ROWS), 100)
    assert texts(found) == ROWS
    assert found.sides["source"].lengths.tolist() == [2, 0, 6, 1]
    assert len(found.sides["target"]) == 4
    assert found.report == {"text": "4 rows", "tokens": 0}
    assert found.sides["source"].padded([0, 2, 1], pad=0).tolist() == [
        [97, 98, 0, 0, 0, 0], [97, 98, 99, 100, 101, 102], [0, 0, 0, 0, 0, 0]
    ]  # fmt: skip


def test_in_memory_is_the_same() -> None:
    mapped = encoded(SIDES, ["a"], Reader(ROWS), 100).sides["target"]
    made = EncodedTexts.of(letters([target for _, target in ROWS]))
    assert torch.equal(mapped.ids, made.ids)
    assert torch.equal(mapped.ends, made.ends)
    assert mapped.ids.dtype == made.ids.dtype == torch.int32


def test_rows_that_are_too_long_are_left_out_whole_and_counted() -> None:
    found = encoded(SIDES, ["a"], Reader(ROWS), 2)
    assert texts(found) == [("", "q"), ("c", "zz")]
    assert found.report["tokens"] == 2


def test_no_rows() -> None:
    found = encoded(SIDES, ["a"], Reader([]), 100)
    assert len(found.sides["source"]) == 0
    assert list(found.sides["source"]) == []


def test_the_second_time_nothing_is_read() -> None:
    reader = Reader(ROWS)
    first, second = (encoded(SIDES, ["tokenizer", "data"], reader, 100) for _ in range(2))
    assert reader.asked == 1
    assert texts(first) == texts(second) == ROWS
    assert first.report == second.report


OTHERS = [["tokenizer 2", "data"], ["tokenizer", "data 2"], ["tokenizerdata"], ["data", "tokenizer"]]


@pytest.mark.parametrize("other", OTHERS)
def test_made_of_something_else(other: list[str], cache: Path) -> None:
    encoded(SIDES, ["tokenizer", "data"], Reader(ROWS), 100)
    reader = Reader([("new", "rows")])
    assert texts(encoded(SIDES, other, reader, 100)) == [("new", "rows")]
    assert reader.asked == 1
    assert len(list(cache.iterdir())) == 2


def test_another_length_is_another_cache() -> None:
    assert len(texts(encoded(SIDES, ["a"], Reader(ROWS), 100))) == 4
    assert len(texts(encoded(SIDES, ["a"], Reader(ROWS), 2))) == 2


def test_an_error_while_reading_leaves_nothing(cache: Path) -> None:
    def read(_: dict[str, Any]) -> Iterator[tuple[str, str]]:
        yield from ROWS
        raise ValueError("the file ended")

    with pytest.raises(ValueError, match="the file ended"):
        encoded(SIDES, ["a"], read, 100)
    assert list(cache.iterdir()) == []


def _slow(_: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield from ROWS
    Path(os.environ["CUTAWAY_CACHE"], "reading").touch()
    time.sleep(60)


def _encode_slowly(folder: str) -> None:
    os.environ["CUTAWAY_CACHE"] = folder
    module._AT_ONCE = 1
    encoded(SIDES, ["a"], _slow, 100)


def test_killed_while_it_writes(tmp_path: Path, cache: Path) -> None:
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(["tests.support.toy_runs"])
    process = context.Process(target=_encode_slowly, args=(str(tmp_path),))
    process.start()
    end = time.monotonic() + 60
    while not (tmp_path / "reading").exists():
        assert time.monotonic() < end
        time.sleep(0.01)
    process.kill()
    process.join()
    assert [path.name.startswith(".writing-") for path in cache.iterdir()] == [True], "half of it, under no name"
    reader = Reader(ROWS)
    assert texts(encoded(SIDES, ["a"], reader, 100)) == ROWS
    assert reader.asked == 1


def test_what_a_kill_left_is_cleared_away_after_a_day(cache: Path) -> None:
    for name, hours in (("old", 25), ("new", 23)):
        left = cache / f".writing-{name}"
        left.mkdir(parents=True)
        (left / "source.ids").write_bytes(b"1234")
        os.utime(left, (time.time() - 3600 * hours,) * 2)
    encoded(SIDES, ["a"], Reader(ROWS), 100)
    assert {path.name for path in cache.glob(".*")} == {".writing-new"}, "the new one may belong to another run"


def test_a_folder_without_its_report_is_made_again(cache: Path) -> None:
    encoded(SIDES, ["a"], Reader(ROWS), 100)
    (folder,) = cache.iterdir()
    (folder / "report.json").unlink()
    (folder / "source.ids").write_bytes(b"")
    assert texts(encoded(SIDES, ["a"], Reader(ROWS), 100)) == ROWS


@pytest.mark.parametrize("name", ["source.ids", "target.ends"])
@pytest.mark.parametrize(
    "damage", [lambda data: data[:-4], lambda data: data[:-4] + b"\1\0\0\0"], ids=["cut", "changed"]
)
def test_a_damaged_cache_is_made_again(name: str, damage: Callable[[bytes], bytes], cache: Path) -> None:
    encoded(SIDES, ["a"], Reader(ROWS), 100)
    (folder,) = cache.iterdir()
    (folder / name).write_bytes(damage((folder / name).read_bytes()))
    reader = Reader(ROWS)
    assert texts(encoded(SIDES, ["a"], reader, 100)) == ROWS
    assert reader.asked == 1


def test_a_cache_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "encoded").write_text("")
    with pytest.raises(CheckpointError) as error:
        encoded(SIDES, ["a"], Reader(ROWS), 100)
    assert str(error.value) == (
        f"encoded texts can't be written to {tmp_path / 'encoded'}: File exists; set CUTAWAY_CACHE to a folder that "
        f"can be written and has room"
    )


def test_a_full_disk(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    def full(*_: object) -> int:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(module, "_write", full)
    with pytest.raises(CheckpointError, match="can't be written to the cache: No space left on device; set"):
        encoded(SIDES, ["a"], Reader(ROWS), 100)
    assert list(cache.iterdir()) == []


def test_the_report_is_plain_json(cache: Path) -> None:
    encoded(SIDES, ["a"], Reader(ROWS), 100)
    (folder,) = cache.iterdir()
    assert json.loads((folder / "report.json").read_text()) == {"text": "4 rows", "tokens": 0}
    assert {path.name for path in folder.iterdir()} == {
        "manifest.json", "report.json", "source.ids", "source.ends", "target.ids", "target.ends"
    }  # fmt: skip
