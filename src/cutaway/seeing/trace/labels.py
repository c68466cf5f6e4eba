"""What stands along the axes of a value: the tokens that were read and written, classes, patches of an image."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import overload

from cutaway.text.source_target import TwoTokenizers
from cutaway.text.tokenizer import Tokenizer

BEGINS = ("▁", "Ġ", " ")
"""What a token begins with that begins a word, as tokenizers spell it; here it is always ▁."""


@dataclass(frozen=True)
class Words:
    """Empty where there are none.

    `source` is what the encoder read, `target` what the decoder did; `of_source` and `of_target` number the word that
    each token is a piece of, `source_words` and `target_words` are these words. `vocabulary` spells the tokens a model
    can write, `classes` are what it can choose from, `patches` the rows and columns an image was cut into.
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
        """For each axis of the value of that name what stands along it; None: only numbers."""
        return tuple(
            words if (words := self._axis(name, letter)) and len(words) == n else None
            for letter, n in zip(axes, shape, strict=True)
        )

    def side(self, name: str, axis: str) -> str | None:
        """Whose tokens an axis counts: "source", "target" or nobody's."""
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
    """Every token that a model can write, spelled when it is asked for."""

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
    """A token as a person reads it: bytes as the letters they are, and ▁ where a word begins."""
    if "byte" in tokenizer.kind.lower() and number not in specials(tokenizer):
        text = tokenizer.decode([number])
        token = text if text and "\ufffd" not in text else _bytes_of(token)
    return "▁" + token[1:] if token.startswith(BEGINS) else token


def _bytes_of(token: str) -> str:
    """A piece of a character: `<0xD7>` for each of its bytes, which byte-level BPE writes as letters."""
    letters = _letters()
    if not set(token) <= set(letters):
        return token
    text = bytes(letters[letter] for letter in token).decode("utf-8", "surrogateescape")
    return re.sub("[\udc80-\udcff]", lambda found: f"<0x{ord(found[0]) - 0xDC00:02X}>", text)


@cache
def _letters() -> dict[str, int]:
    """Those of GPT-2: what can be seen stands for itself, and the rest takes letters from 256 on, in order."""
    seen = (*range(33, 127), *range(161, 173), *range(174, 256))
    unseen = [byte for byte in range(256) if byte not in seen]
    return {chr(byte): byte for byte in seen} | {chr(256 + i): byte for i, byte in enumerate(unseen)}


def specials(tokenizer: Tokenizer) -> set[int]:
    return {number for number in vars(tokenizer.special).values() if number is not None}


def reader(tokenizer: Tokenizer, *, source: bool) -> Tokenizer:
    """The one that spells what is read (`source`) or what is written."""
    if isinstance(tokenizer, TwoTokenizers):
        return tokenizer.source if source else tokenizer.target
    return tokenizer


def word_numbers(tokenizer: Tokenizer, ids: Sequence[int], spelled: Sequence[str]) -> tuple[int, ...]:
    """For each token the number of the word it is a piece of; special tokens are words of their own."""
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
