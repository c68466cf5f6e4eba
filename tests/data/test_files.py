"""open_bytes: every compression there and back, and what is missing, cut off or damaged in one sentence."""

import builtins
import lzma
import os
import re
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest

from cutaway.data.files import inner_name, lines, n_lines, open_bytes
from cutaway.errors import InputError
from tests.support.data_files import COMPRESS, write
from tests.support.memory import peak_of

TEXT = b"".join(f"line {i} of many\r\n".encode() for i in range(20_000)) + b"the last, without an end"
ENDINGS = list(COMPRESS)


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_content_by_the_ending(tmp_path: Path, ending: str) -> None:
    path = write(tmp_path / f"train.en{ending}", TEXT)
    with open_bytes(path) as file:
        assert file.read(6) == b"line 0"
        assert file.readline() == b" of many\r\n"
        assert file.read() == TEXT[16:]
    assert list(lines(str(path))) == TEXT.splitlines(keepends=True)
    assert n_lines(path) == 20_001
    assert n_lines(write(tmp_path / f"two{ending}", b"a\nb\n")) == 2
    assert n_lines(write(tmp_path / f"none{ending}", b"")) == 0


@pytest.mark.parametrize("ending", ENDINGS[1:])
def test_archives_one_after_the_other_are_one(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"two{ending}"
    path.write_bytes(COMPRESS[ending](b"a\n") + COMPRESS[ending](b"b\n"))
    assert list(lines(path)) == [b"a\n", b"b\n"]


@pytest.mark.parametrize("ending", ENDINGS[1:])
def test_cut_off_and_damaged(tmp_path: Path, ending: str) -> None:
    path = write(tmp_path / f"train.en{ending}", TEXT)
    whole = path.read_bytes()
    sentence = rf"{re.escape(str(path))} is cut off or damaged \(.+\); copy or download it again"
    for data in (whole[:-20], whole[: len(whole) // 2], b"not an archive, just text"):
        path.write_bytes(data)
        with pytest.raises(InputError, match=sentence):
            list(lines(path))
        with pytest.raises(InputError, match=sentence):
            n_lines(path)


def test_the_lines_before_the_damage_are_given(tmp_path: Path) -> None:
    path = write(tmp_path / "train.en.gz", os.urandom(300_000).hex(sep="\n", bytes_per_sep=20).encode())
    path.write_bytes(path.read_bytes()[:-100_000])
    found = lines(path)
    assert len(next(found)) == 41
    with pytest.raises(InputError, match="cut off or damaged"):
        list(found)


def test_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"there is no file '.*/nothing.en'"):
        open_bytes(tmp_path / "nothing.en")
    with pytest.raises(InputError, match=r".* is a folder, expected a file"):
        open_bytes(tmp_path)
    with pytest.raises(InputError, match=r"/dev/null is not a regular file, so it can't be read twice; write"):
        open_bytes("/dev/null")
    with pytest.raises(InputError, match=r"'a\\x00b' can't be read: embedded null byte"):
        open_bytes("a\0b")
    with pytest.raises(InputError, match=r"can't be read: Not a directory"):
        open_bytes(write(tmp_path / "file", b"") / "train.en")


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "secret.en", b"a\n")

    def refuse(*_: Any) -> Any:  # root may read everything, so a file's mode would not do
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(InputError, match="secret.en can't be read: Permission denied"):
        list(lines(path))


def test_zstd_may_be_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "train.tsv.zst", b"a\tb\n")
    real = builtins.__import__

    def without(name: str, *rest: Any, **named: Any) -> Any:
        if name == "zstandard":
            raise ImportError(name)
        return real(name, *rest, **named)

    monkeypatch.delitem(sys.modules, "zstandard")
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(InputError, match=r"train.tsv.zst is compressed with zstd: pip install 'cutaway\[data\]'"):
        list(lines(path))


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
def test_an_endless_line_is_not_held(tmp_path: Path, ending: str) -> None:
    path = write(tmp_path / f"bomb.en{ending}", b"a" * 60_000_000)
    first, peak = peak_of(lambda: next(lines(path)))
    assert len(first) == 16_000_001, "one more than a line may have, for text_of to refuse"
    assert peak < 70_000_000


def xz_that_asks_for_much(data: bytes) -> bytes:
    """Its header says that the dictionary has 4 GB."""
    packed = bytearray(lzma.compress(data, check=lzma.CHECK_NONE))
    end = 12 + (packed[12] + 1) * 4
    packed[packed.index(b"\x21\x01", 12) + 2] = 40
    packed[end - 4 : end] = zlib.crc32(packed[12 : end - 4]).to_bytes(4, "little")
    return bytes(packed)


def test_an_xz_may_not_take_gigabytes(tmp_path: Path) -> None:
    path = tmp_path / "train.en.xz"
    path.write_bytes(xz_that_asks_for_much(b"a\nb\n"))
    with pytest.raises(InputError, match=r"train.en.xz is cut off or damaged \(Memory usage limit exceeded\)"):
        list(lines(path))


def test_what_may_stand_around_streams_of_xz(tmp_path: Path) -> None:
    path = tmp_path / "train.en.xz"
    path.write_bytes(lzma.compress(b"a\n") + bytes(100_000) + lzma.compress(b"b\n") + bytes(4))
    assert list(lines(path)) == [b"a\n", b"b\n"]
    path.write_bytes(b"")
    with pytest.raises(InputError, match=r"cut off or damaged \(it is empty\)"):
        list(lines(path))


@pytest.mark.parametrize("ending", [".xz", ".bz2", ".zst"])
def test_a_decompression_bomb_is_refused(tmp_path: Path, ending: str) -> None:
    path = write(tmp_path / f"bomb.en{ending}", b"\n" * 80_000_000)
    with pytest.raises(InputError, match=r"bomb.en.* becomes more than [\d,]+ bytes, as a decompression bomb does"):
        n_lines(path)


def test_inner_names() -> None:
    names = ["data/train.tsv.gz", "train.tsv", "TRAIN.TSV.GZ", "a.b.xz", "x.zst", ".gz"]
    assert [inner_name(name) for name in names] == ["train.tsv", "train.tsv", "TRAIN.TSV", "a.b", "x", ".gz"]
    assert inner_name(Path("here") / "train.jsonl.bz2") == "train.jsonl"
