"""Reads SentencePiece's model files without its library, for identical results.

A .model or .spm file is one protobuf message: pieces with scores, the training settings, and the rules that normalise
the text, compiled into a double-array trie (Yata et al.'s Darts).
"""

import math
import struct
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tokenizers.models import BPE, Unigram

from cutaway.errors import CheckpointError

SPACE = "▁"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
UNIGRAM_MODEL, BPE_MODEL = 1, 2

# Far beyond the largest published models (5 MB, 256,000 pieces of 1.7 million characters, 600,000 merges).
_LARGEST = 16 * 2**20
_PIECES = 1_000_000
_CHARACTERS = 8_000_000
_LONGEST = 1000  # characters of a piece, bytes that a rule writes
_LONGEST_RULE = 64  # characters that a rule replaces; nmt_nfkc's longest has 12 bytes
_MERGES = 4_000_000


class Piece(NamedTuple):
    text: str
    score: float
    kind: int


@dataclass(frozen=True)
class SentencePieceModel:
    pieces: list[Piece]
    is_bpe: bool
    unknown: int
    unknown_surface: str
    byte_fallback: bool
    suffix: bool
    """Whether the space symbol ends words instead of starting them."""
    charsmap: bytes
    """The normalisation rules, compiled; empty: none."""
    dummy_prefix: bool
    squeeze: bool
    """Whether spaces at the ends and double spaces are dropped."""
    escape: bool

    @property
    def unknown_piece(self) -> str:
        return self.pieces[self.unknown].text

    def unigram(self, *, byte_fallback: bool = False, sentinels: int = 0) -> Unigram:
        """All pieces, and T5's sentinels behind them: the last has the first id."""
        scored = [(piece.text, piece.score) for piece in self.pieces]
        scored += [(f"<extra_id_{i}>", 0.0) for i in reversed(range(sentinels))]
        return Unigram(scored, unk_id=self.unknown, byte_fallback=byte_fallback)

    def merges(self) -> list[tuple[str, str]]:
        """Every pair of pieces that makes a piece, the best score first: SentencePiece merges the best-scoring pair.

        Of equal scores (Llama's runs of spaces) it takes the leftmost; the longest piece first is equivalent.
        transformers 5 goes by ids instead, which is wrong for exactly these runs.
        """
        ids = {piece.text: i for i, piece in enumerate(self.pieces) if piece.kind in (NORMAL, USER_DEFINED, UNUSED)}
        found = []
        for i, (text, score, kind) in enumerate(self.pieces):
            if kind == NORMAL:
                for cut in range(1, len(text)):
                    if text[:cut] in ids and text[cut:] in ids:
                        found.append((-score, -len(text), i, cut, text))
                if len(found) > _MERGES:
                    raise CheckpointError(f"a SentencePiece model has more than {_MERGES:,} merges")
        return [(text[:cut], text[cut:]) for _, _, _, cut, text in sorted(found)]

    def bpe(self, *, byte_fallback: bool = False) -> BPE:
        ids = {piece.text: i for i, piece in enumerate(self.pieces)}
        return BPE(ids, self.merges(), unk_token=self.unknown_piece, fuse_unk=True, byte_fallback=byte_fallback)


def parse(data: bytes, path: Path) -> SentencePieceModel:
    """The model in a file's bytes; `path` names it in errors."""
    try:
        return _model(data)
    except _BrokenError as error:
        raise CheckpointError(f"{path} is no SentencePiece model: {error}") from None


class _BrokenError(Exception):
    pass


def _model(data: bytes) -> SentencePieceModel:
    if len(data) > _LARGEST:
        raise _BrokenError(f"it has {len(data):,} bytes; expected {_LARGEST:,} at most")
    pieces: list[Piece] = []
    trainer: dict[int, int | bytes] = {}
    normalizer: dict[int, int | bytes] = {}
    for number, value in _fields(data):
        if number == 1:
            pieces.append(_piece(_message(value, "piece")))
        elif number == 2:
            trainer |= dict(_fields(_message(value, "trainer_spec")))
        elif number == 3:
            normalizer |= dict(_fields(_message(value, "normalizer_spec")))
    if not pieces:
        raise _BrokenError("it holds no pieces")
    size = sum(len(piece.text) for piece in pieces)
    if len(pieces) > _PIECES or size > _CHARACTERS:
        raise _BrokenError(
            f"it has {len(pieces):,} pieces of {size:,} characters; expected {_PIECES:,} of {_CHARACTERS:,} at most"
        )
    kind = _number(trainer, 3, UNIGRAM_MODEL)
    if kind not in (UNIGRAM_MODEL, BPE_MODEL):
        raise _BrokenError(f"its model_type is {kind}; only unigram (1) and BPE (2) are known")
    unknown = [i for i, piece in enumerate(pieces) if piece.kind == UNKNOWN]
    if len(unknown) != 1:
        raise _BrokenError(f"it has {len(unknown)} unknown pieces; expected one")
    charsmap = _message(normalizer.get(2, b""), "precompiled_charsmap")
    if charsmap and (size := Charsmap(charsmap).longest_replacement) > _LONGEST:  # the library has no check
        raise _BrokenError(f"a rule of its charsmap writes {size:,} bytes; expected {_LONGEST:,} at most")
    return SentencePieceModel(
        pieces=pieces,
        is_bpe=kind == BPE_MODEL,
        unknown=unknown[0],
        unknown_surface=_text(_message(trainer.get(44, " ⁇ ".encode()), "unk_surface")),
        byte_fallback=bool(_number(trainer, 35, 0)),
        suffix=bool(_number(trainer, 24, 0)),
        charsmap=charsmap,
        dummy_prefix=bool(_number(normalizer, 3, 1)),
        squeeze=bool(_number(normalizer, 4, 1)),
        escape=bool(_number(normalizer, 5, 1)),
    )


def _piece(data: bytes) -> Piece:
    text, score, kind = "", 0.0, NORMAL
    for number, value in _fields(data):
        if number == 1:
            text = _text(_message(value, "piece"))
        elif number == 2:
            (score,) = struct.unpack("<f", _message(value, "score").ljust(4, b"\0")[:4])
        elif number == 3 and isinstance(value, int):
            kind = value
    if len(text) > _LONGEST:
        raise _BrokenError(f"it has a piece of {len(text):,} characters; expected {_LONGEST:,} at most")
    if not text or not math.isfinite(score) or not NORMAL <= kind <= BYTE:
        raise _BrokenError(f"it has a piece '{text}' with score {score} of type {kind}")
    return Piece(text, score, kind)


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a protobuf message: (number, value); fixed-width values stay bytes."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield number, value
            continue
        if wire not in (1, 2, 5):
            raise _BrokenError(f"byte {at} begins a field of unknown kind {wire}")
        size, at = _varint(data, at) if wire == 2 else (8 if wire == 1 else 4, at)
        if at + size > len(data):
            raise _BrokenError(f"a field of {size} bytes begins at byte {at} of {len(data)}")
        yield number, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise _BrokenError("it ends inside a number")
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise _BrokenError(f"the number before byte {at} has no end")


def _message(value: int | bytes, name: str) -> bytes:
    if isinstance(value, int):
        raise _BrokenError(f"{name} is a number")
    return value


def _number(fields: dict[int, int | bytes], number: int, default: int) -> int:
    value = fields.get(number, default)
    if not isinstance(value, int):
        raise _BrokenError(f"field {number} is no number")
    return value


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise _BrokenError(f"{data[:20]!r} is no UTF-8") from None


class Charsmap:
    """The compiled normalisation rules: at each position, the longest matching rule replaces the text.

    A blob is the size of a trie, its units (32 bits each), and the replacements, each ended by a zero byte. A unit
    holds the byte that leads to it (bits 0-7, 31), whether a rule ends here (8), and the offset of its children (9-31).
    """

    def __init__(self, blob: bytes) -> None:
        size = int.from_bytes(blob[:4], "little")
        if len(blob) < 4 or size % 4 or not 0 < size <= len(blob) - 4:
            raise _BrokenError(f"its charsmap of {len(blob)} bytes promises {size} bytes of rules")
        self._units = array("L", struct.unpack(f"<{size // 4}I", blob[4 : 4 + size]))
        self._replacements = blob[4 + size :]
        count = len(self._units)
        for place, unit in enumerate(self._units):
            if (place == 0 or not unit >> 31) and (place ^ _offset(unit)) | 255 >= count:
                raise _BrokenError(f"unit {place} of its charsmap leads outside")
        self._known: dict[str, tuple[int, str] | None] = {}

    @property
    def longest_replacement(self) -> int:
        """Bytes of the longest replacement."""
        return max(map(len, self._replacements.split(b"\0")))

    def longest(self, text: str, start: int) -> tuple[int, str] | None:
        """The end of the longest match at `start`, and its replacement; None without a match."""
        near = text[start : start + 2]
        if near in self._known:
            found = self._known[near]
            return None if found is None else (start + found[0], found[1])
        units, place, best = self._units, _offset(self._units[0]), None
        at = start
        for at in range(start, min(start + _LONGEST_RULE, len(text))):
            for byte in text[at].encode():
                place ^= byte
                unit = units[place]
                if unit & 0x800000FF != byte:
                    break
                place ^= _offset(unit)
            else:
                if unit >> 8 & 1:
                    best = (at + 1 - start, units[place] & 0x7FFFFFFF)
                continue
            break
        else:
            at = min(start + _LONGEST_RULE, len(text))
        found = None if best is None else (best[0], self._replacement(best[1]))
        if at < start + 2 and len(self._known) < 65536:  # decided by these two characters alone
            self._known[near] = found
        return None if found is None else (start + found[0], found[1])

    def has_rules_with(self, character: str) -> bool:
        """Whether a rule may match text with this (ASCII) character."""
        byte = ord(character)
        ways = {place ^ _offset(unit) for place, unit in enumerate(self._units) if not unit >> 31}
        return any(unit & 0x800000FF == byte and place ^ byte in ways for place, unit in enumerate(self._units))

    def _replacement(self, at: int) -> str:
        end = self._replacements.find(b"\0", at)
        return self._replacements[at : end if end >= 0 else None].decode(errors="replace")


def _offset(unit: int) -> int:
    return unit >> 10 << ((unit & 512) >> 6)
