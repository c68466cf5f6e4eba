"""SentencePiece models from strangers: read and run in time that grows with their size and the text's, or refused."""

import struct
import time
from pathlib import Path

import pytest

from cutaway.errors import CheckpointError
from cutaway.text import sentencepiece
from cutaway.text.segment import Longest, Segmenter
from cutaway.text.sentencepiece import BPE_MODEL, NORMAL, UNKNOWN, USER_DEFINED, SentencePieceModel, parse


def field(number: int, data: bytes) -> bytes:
    size = len(data)
    length = b""
    while size > 127:
        length, size = length + bytes([size & 127 | 128]), size >> 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + data


def piece(text: str, score: float = 0.0, kind: int = NORMAL) -> bytes:
    return field(1, field(1, text.encode()) + b"\x15" + struct.pack("<f", score) + bytes([0x18, kind]))


def model(*pieces: bytes, charsmap: bytes = b"") -> SentencePieceModel:
    rules = field(3, field(2, charsmap)) if charsmap else b""
    data = piece("<unk>", kind=UNKNOWN) + b"".join(pieces) + field(2, bytes([0x18, BPE_MODEL])) + rules
    return parse(data, Path("toy.model"))


def charsmap(units: dict[int, int], replacements: bytes) -> bytes:
    trie = b"".join(units.get(place, 0).to_bytes(4, "little") for place in range(512))
    return len(trie).to_bytes(4, "little") + trie + replacements


A_TO = {0: 1 << 10, 1 ^ ord("a"): ord("a") | 1 << 8 | 1 << 10, ord("a"): 1 << 31}
"""One rule: for the letter a."""
A_AND_ON = {0: 1 << 10, 1 ^ ord("a"): ord("a") | 256 << 10, 1 ^ ord("a") ^ 256 ^ ord("a"): ord("a") | 256 << 10}
"""A trie without an end: after any number of a's comes another a."""


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        ([piece("a" * 2000)], "it has a piece of 2,000 characters; expected 1,000 at most"),
        ([piece("a" * 900 + str(i)) for i in range(9000)], "it has 9,001 pieces of 8,.* characters"),
        ([b"\x20\x00" * 9_000_000], r"it has 18,\d+,\d+ bytes; expected 16,777,216 at most"),
    ],
)
def test_models_beyond_any_published_one_are_refused(pieces: list[bytes], message: str) -> None:
    began = time.monotonic()
    with pytest.raises(CheckpointError, match=f"toy.model is no SentencePiece model: {message}"):
        model(*pieces)
    assert time.monotonic() - began < 5


def test_merges_without_end_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    found = model(*(piece("a" * i, -i) for i in range(1, 100)))
    assert len(found.merges()) == 99 * 98 // 2  # each piece in every two parts
    monkeypatch.setattr(sentencepiece, "_MERGES", 4000)
    with pytest.raises(CheckpointError, match="has more than 4,000 merges"):
        found.merges()


def test_a_rule_that_writes_too_much_is_refused() -> None:
    assert (
        Segmenter(model(piece("b"), charsmap=charsmap(A_TO, b"b" * 900 + b"\0"))).normalize("a")[0][-900:] == "b" * 900
    )
    with pytest.raises(CheckpointError, match="a rule of its charsmap writes 2,000 bytes; expected 1,000 at most"):
        model(piece("b"), charsmap=charsmap(A_TO, b"b" * 2000 + b"\0"))


def test_rules_without_an_end_take_linear_time() -> None:
    segmenter = Segmenter(model(piece("a"), charsmap=charsmap(A_AND_ON, b"x\0")))
    began = time.monotonic()
    assert len(segmenter.split("a" * 20_000)) == 20_001
    assert time.monotonic() - began < 10  # 0.3 s; to the end of the text from each character: minutes


def test_many_own_symbols_take_no_longer_than_few() -> None:
    segmenter = Segmenter(model(piece("a"), *(piece(f"<{i}>", kind=USER_DEFINED) for i in range(20_000))))
    began = time.monotonic()
    normal, starts, _ = segmenter.normalize("a" * 5_000 + "<19999><7>")
    assert (normal[-10:], starts[-10:]) == ("<19999><7>", [5000] * 7 + [5007] * 3)
    assert time.monotonic() - began < 5  # 0.1 s; one after the other they took 20


def test_the_longest_text_at_a_place_is_found() -> None:
    texts = Longest(["<a>", "<a><b>", "[", "]^-", "<"])
    assert [texts.at("<a><b>x", at) for at in range(7)] == ["<a><b>", None, None, "<", None, None, None]
    assert texts.at("<a><", 0) == "<a>"
    assert texts.at("]^-", 0) == "]^-"
    assert [match.start() for match in texts.begins.finditer("a[b]^<")] == [1, 3, 5]
    assert Longest([]).begins.search("anything") is None
