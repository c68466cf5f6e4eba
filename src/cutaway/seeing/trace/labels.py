"""Labels along the axes of a value: tokens of the source and the target, classes, patches of an image."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import overload

from cutaway.text.source_target import TwoTokenizers
from cutaway.text.tokenizer import Tokenizer

WORD_STARTS = ("▁", "Ġ", " ")
"""Prefixes of a word's first token, by tokenizer; labels always have ▁."""


@dataclass(frozen=True)
class Words:
    """The tokens and words of a trace; a field that does not apply is empty.

    `source`: the encoder's tokens, `target`: the decoder's; `of_source` and `of_target`: the number of the word that
    each token is a piece of, `source_words` and `target_words`: these words. `vocabulary`: every token that a model can
    write, `classes`: a classifier's labels, `patches`: the rows and columns that an image was cut into.
    """

    source: tuple[str, ...] = ()
    target: tuple[str, ...] = ()
    of_source: tuple[int, ...] = ()
    of_target: tuple[int, ...] = ()
    source_words: tuple[str, ...] = ()
    target_words: tuple[str, ...] = ()
    vocabulary: Sequence[str] = ()
    classes: tuple[str, ...] = ()
    patches: tuple[int, int] | None = None

    def along(self, name: str, axes: str, shape: Sequence[int]) -> tuple[Sequence[str] | None, ...]:
        """The labels of each axis of a value; None for an axis without labels."""
        return tuple(
            words if (words := self._axis(name, letter)) and len(words) == n else None
            for letter, n in zip(axes, shape, strict=True)
        )

    def side(self, name: str, axis: str) -> str | None:
        """The side whose tokens an axis counts: "source" or "target"; None if it counts no tokens."""
        if axis == "S":
            across = name.startswith(("encoder.", "decoder.attention.")) or ".cross_attention." in name
            return "source" if across else "target"
        if axis in ("T", "P"):
            reads = name.startswith("encoder.") or (name.startswith("head.") and not self.target)
            return "source" if reads else "target"
        return None

    def _axis(self, name: str, letter: str) -> Sequence[str]:
        if letter == "V":
            return self.vocabulary
        if letter == "C":
            return self.classes
        if letter == "P":
            return self.source[1:]  # the class token is no patch
        side = self.side(name, letter)
        return () if side is None else getattr(self, side)


class Spelling(Sequence[str]):
    """The vocabulary as readable tokens, spelled on access."""

    def __init__(self, tokenizer: Tokenizer, size: int) -> None:
        self.tokenizer, self.size = tokenizer, size

    @overload
    def __getitem__(self, number: int) -> str: ...
    @overload
    def __getitem__(self, number: slice) -> list[str]: ...
    def __getitem__(self, number: int | slice) -> str | list[str]:
        if isinstance(number, slice):
            return [self[each] for each in range(self.size)[number]]
        if not -self.size <= number < self.size:
            raise IndexError(f"there is no token {number}; ids count from 0 to {self.size - 1}")
        number %= self.size
        token = self.tokenizer.token_of(number)
        return f"<{number}>" if token is None else spelled(self.tokenizer, number, token)

    def __len__(self) -> int:
        return self.size


def spelled(tokenizer: Tokenizer, number: int, token: str) -> str:
    """A token in readable form: bytes decoded to characters, and ▁ where a word begins."""
    if "byte" in tokenizer.kind.lower() and number not in specials(tokenizer):
        text = tokenizer.decode([number])
        token = text if text and "\ufffd" not in text else _bytes_of(token)
    return "▁" + token[1:] if token.startswith(WORD_STARTS) else token


def _bytes_of(token: str) -> str:
    """A token of byte-level BPE as text; the bytes of an incomplete character as `<0xD7>`."""
    letters = _bytes_by_letter()
    if not set(token) <= set(letters):
        return token
    text = bytes(letters[letter] for letter in token).decode("utf-8", "surrogateescape")
    return re.sub("[\udc80-\udcff]", lambda found: f"<0x{ord(found[0]) - 0xDC00:02X}>", text)


@cache
def _bytes_by_letter() -> dict[str, int]:
    """The byte that each letter of GPT-2's vocabulary stands for: a printable one for itself, those from code point 256
    on for the others."""
    printable = (*range(33, 127), *range(161, 173), *range(174, 256))
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


def specials(tokenizer: Tokenizer) -> set[int]:
    return {number for number in vars(tokenizer.special).values() if number is not None}


def tokenizer_of(tokenizer: Tokenizer, *, source: bool) -> Tokenizer:
    """The tokenizer of the source or of the target."""
    if isinstance(tokenizer, TwoTokenizers):
        return tokenizer.source if source else tokenizer.target
    return tokenizer


def word_numbers(tokenizer: Tokenizer, ids: Sequence[int], spelled: Sequence[str]) -> tuple[int, ...]:
    """The number of the word that each token is a piece of; a special token is a word of its own."""
    pieces_continue = tokenizer.kind == "WordPiece"
    special = specials(tokenizer)
    numbers: list[int] = []
    for place, (number, token) in enumerate(zip(ids, spelled, strict=True)):
        begins = not token.startswith("##") if pieces_continue else token.startswith("▁")
        alone = place == 0 or number in special or ids[place - 1] in special
        numbers.append(0 if place == 0 else numbers[-1] + (begins or alone))
    return tuple(numbers)


def whole_words(
    tokenizer: Tokenizer, ids: Sequence[int], spelled: Sequence[str], numbers: Sequence[int]
) -> tuple[str, ...]:
    """The words that these tokens are pieces of; a character may be in several pieces."""
    special, words = specials(tokenizer), []
    for number in range(max(numbers, default=-1) + 1):
        places = [place for place, of in enumerate(numbers) if of == number]
        if ids[places[0]] in special:
            words.append(spelled[places[0]])
        else:
            words.append(tokenizer.decode([ids[place] for place in places]).strip() or "·")
    return tuple(words)
