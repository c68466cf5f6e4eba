"""SentencePiece's work on text, step by step: normalise, split into pieces, and join them again.

The `tokenizers` library has its own normaliser for SentencePiece's rules, which works on whole grapheme clusters and
takes the first rule that fits, not the longest; where ids must equal SentencePiece's (Marian), this module serves.
SentencePiece's own library gives the same pieces and other offsets: in bytes, dropped spaces counted to the piece
before, and only with protobuf beside it.
"""

import functools
import re
from collections.abc import Iterable

from tokenizers.models import Unigram

from cutaway.text.sentencepiece import (
    BYTE,
    CONTROL,
    NORMAL,
    SPACE,
    UNKNOWN,
    USER_DEFINED,
    Charsmap,
    SentencePieceModel,
)

Span = tuple[int, int]
Normal = tuple[str, list[int], list[int]]
"""A normalised text, and for each of its characters its start and end in the original text."""


class Longest:
    """The longest match of some texts at a position; the work does not grow with their number."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = set(texts)
        self._lengths: dict[str, list[int]] = {}
        """First character -> the lengths of the texts that begin with it, the longest first."""
        for first, length in sorted({(text[0], len(text)) for text in self._texts}, reverse=True):
            self._lengths.setdefault(first, []).append(length)
        self.begins = re.compile(f"[{re.escape(''.join(self._lengths))}]" if self._lengths else "(?!)")

    def at(self, text: str, start: int) -> str | None:
        for length in self._lengths.get(text[start], ()):
            if (found := text[start : start + length]) in self._texts:
                return found
        return None


class Segmenter:
    """Text -> pieces with the characters they cover, and back, for one SentencePiece model."""

    def __init__(self, model: SentencePieceModel) -> None:
        self._model = model
        self._charsmap = Charsmap(model.charsmap) if model.charsmap else None
        self._kinds = {piece.text: piece.kind for piece in model.pieces}
        self._space = SPACE if model.escape else " "
        own = [piece.text for piece in model.pieces if piece.kind == USER_DEFINED]
        self._own = Longest(own)
        self._backend = model.bpe() if model.is_bpe else _matched_unigram(model)
        self._unknown = model.unknown if model.is_bpe else 0
        rules_join_words = self._charsmap is not None and self._charsmap.has_rules_with(" ")
        self._words_apart = not (rules_join_words or any(" " in symbol for symbol in own))
        self._word = functools.lru_cache(maxsize=20_000)(self._normal_word)  # words recur

    def split(self, text: str) -> list[tuple[str, Span]]:
        """The pieces of `text`. An unknown part is a piece as it stands, or bytes such as <0x0A>."""
        normal, starts, ends = self.normalize(text)
        if not normal:
            return []
        found: list[tuple[str, Span]] = []
        data, at = normal.encode() if self._model.is_bpe else b"", 0
        for token in self._backend.tokenize(normal):
            unknown = token.id == self._unknown
            surface = token.value
            if unknown and self._model.is_bpe:  # which gives the name of the unknown piece
                surface = data[token.offsets[0] : token.offsets[1]].decode()
            end = at + len(surface)
            span = (starts[at], ends[end - 1])
            at = end
            if unknown and self._model.byte_fallback:
                found += [(f"<0x{byte:02X}>", span) for byte in surface.encode()]
            else:
                found.append((surface, span))
        return found

    def normalize(self, text: str) -> Normal:
        model = self._model
        start, size = 0, len(text)
        if model.squeeze:
            while start < size:
                end, new = self._next(text, start)
                if new != " ":
                    break
                start = end
        if start == size:
            return "", [], []
        out: list[str] = []
        starts: list[int] = []
        ends: list[int] = []
        if model.dummy_prefix and not model.suffix:
            out.append(self._space)
            starts.append(start)
            ends.append(start)
        after_space = model.squeeze
        while start < size:
            end = start
            if self._words_apart and (end := text.find(" ", start)) < 0:
                end = size
            if end > start and (word := self._word(text[start:end])) is not None:
                new, first, last = word
                starts += [start + place for place in first] if first else range(start, end)
                ends += [start + place for place in last] if first else range(start + 1, end + 1)
            else:
                end, new = (start + 1, " ") if self._words_apart and end == start else self._next(text, start)
                if after_space:
                    new = new.lstrip(" ")
                starts += [start] * len(new)
                ends += [end] * len(new)
            if new:
                out.append(new)
                after_space = model.squeeze and new[-1] == " "
            start = end
        normal = "".join(out).replace(" ", self._space)
        if model.squeeze:
            normal = normal.rstrip(self._space)
        if model.dummy_prefix and model.suffix:
            return normal + self._space, [*starts[: len(normal)], size], [*ends[: len(normal)], size]
        return normal, starts, ends

    def _normal_word(self, word: str) -> Normal | None:
        """One word, normalised; None if it becomes empty or has spaces. The lists are empty if nothing was changed."""
        new, starts, ends = "", [], []
        at = 0
        while at < len(word):
            end, part = self._next(word, at)
            new += part
            starts += [at] * len(part)
            ends += [end] * len(part)
            at = end
        if not new or " " in new:
            return None
        return (new, [], []) if new == word and ends == list(range(1, len(word) + 1)) else (new, starts, ends)

    def _next(self, text: str, start: int) -> tuple[int, str]:
        """Where to go on after `start`, and the normalised text up to there; the model's own symbols never change."""
        if (symbol := self._own.at(text, start)) is not None:
            return start + len(symbol), symbol
        found = None if self._charsmap is None else self._charsmap.longest(text, start)
        return (start + 1, text[start]) if found is None else found

    def join(self, pieces: list[str]) -> str:
        """The text of these pieces, as SentencePiece decodes; what is no piece of this vocabulary stays, ▁ too."""
        model, text, spoken = self._model, "", False
        at = 0
        while at < len(pieces):
            piece = pieces[at]
            kind = self._kinds.get(piece)
            if kind == BYTE:
                end = at
                while end < len(pieces) and self._kinds.get(pieces[end]) == BYTE:
                    end += 1
                text += bytes(int(byte[3:5], 16) for byte in pieces[at:end]).decode(errors="replace")
                at = end
                continue
            at += 1
            first = not (spoken or text)
            if kind == CONTROL:
                continue
            if kind == UNKNOWN:
                text += model.unknown_surface
            elif kind is None:
                text += piece
            else:
                if first and (model.dummy_prefix or model.squeeze) and piece.startswith(SPACE):
                    piece = piece[1:]
                    spoken = not model.squeeze  # without squeezing, only one space was added in front
                text += piece.replace(SPACE, " ")
        return text


def _matched_unigram(model: SentencePieceModel) -> Unigram:
    """The pieces that SentencePiece matches in text: no control symbols, bytes or unused pieces. Unknown is 0.

    User-defined symbols always win: no sum of pieces of the same length in bytes can reach their score.
    """
    best = max((piece.score for piece in model.pieces if piece.kind == NORMAL), default=0.0)
    scored = [("\0no text holds this\0", 0.0)]
    for piece in model.pieces:
        if piece.kind == NORMAL:
            scored.append((piece.text, piece.score))
        elif piece.kind == USER_DEFINED:
            scored.append((piece.text, len(piece.text.encode()) * best - 0.1))
    return Unigram(scored, unk_id=0, byte_fallback=False)
