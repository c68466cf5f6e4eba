"""Text to token ids and back: the interface of all tokenizers, and the records they give."""

import json
import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cutaway.errors import CheckpointError, InputError
from cutaway.files import file_mode

ROLES = {
    "start": "bos_token",
    "end": "eos_token",
    "unknown": "unk_token",
    "separator": "sep_token",
    "pad": "pad_token",
    "classify": "cls_token",
    "mask": "mask_token",
}
"""A special token's role -> its name in Hugging Face's files, in the order in which new ones get their ids."""


@dataclass(frozen=True)
class Encoding:
    """One text (or pair) as tokens. All lists have the same length."""

    ids: list[int]
    tokens: list[str]
    offsets: list[tuple[int, int]]
    """The characters of the given text that each token covers; (0, 0) for tokens that were added to it."""
    segments: list[int]
    """0 in the first text, 1 in the second."""
    truncated: bool = False
    """Whether tokens were cut off to keep `max_length`."""


@dataclass(frozen=True)
class SpecialTokens:
    """Ids of the special tokens; None where the vocabulary has none."""

    pad: int | None = None
    unknown: int | None = None
    start: int | None = None
    end: int | None = None
    mask: int | None = None
    separator: int | None = None
    classify: int | None = None


class Tokenizer(ABC):
    """Text to token ids and back.

    A text may be longer than the model takes (`max_length`, None: no limit known): nothing is truncated or padded
    unless requested, whatever the files say.
    """

    def __init__(self, names: Mapping[str, str], max_length: int | None, chat_template: str | None) -> None:
        self.names = {role: names[role] for role in ROLES if role in names}
        """Role (see ROLES) -> token."""
        self.max_length = max_length
        self.chat_template = chat_template
        self.unsettled = 0
        """Characters at the end of a decoded text that may change when more tokens follow, besides incomplete ones."""

    @property
    def special(self) -> SpecialTokens:
        return SpecialTokens(**{role: self.id_of(token) for role, token in self.names.items()})

    @property
    @abstractmethod
    def vocabulary_size(self) -> int:
        """The highest id, plus one: how many rows an embedding needs."""

    @property
    @abstractmethod
    def kind(self) -> str:
        """The tokenizer's algorithm: "WordPiece", "byte-level BPE", "unigram", ..."""

    @abstractmethod
    def id_of(self, token: str) -> int | None:
        """The id of a token; None if there is no such token."""

    @abstractmethod
    def token_of(self, number: int) -> str | None:
        """The token of an id; None if there is none."""

    @abstractmethod
    def encode(
        self, text: str, pair: str | None = None, *, special: bool = True, max_length: int | None = None
    ) -> Encoding:
        """The tokens of `text`, or of two texts as one input, with the special tokens the model expects around them.

        With `max_length`, a longer text is truncated at its end, the longer of a pair first.
        """

    def encode_target(self, text: str, *, special: bool = True, max_length: int | None = None) -> Encoding:
        """The tokens of a target text; they differ from `encode`'s only with two vocabularies."""
        return self.encode(text, special=special, max_length=max_length)

    @abstractmethod
    def encode_many(
        self,
        texts: Sequence[str] | Sequence[tuple[str, str]],
        *,
        special: bool = True,
        max_length: int | None = None,
        target: bool = False,
    ) -> list[Encoding]:
        """Many texts, or pairs of texts; `target`: as encode_target."""

    def encode_ids(
        self, texts: Sequence[str], *, special: bool = True, max_length: int | None = None, target: bool = False
    ) -> list[list[int]]:
        """The ids of many texts, for training: faster than encode_many."""
        found = self.encode_many(texts, special=special, max_length=max_length, target=target)
        return [encoding.ids for encoding in found]

    @abstractmethod
    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """The text of these tokens; ids without a token (a model's spare rows) add none."""

    def decode_many(self, rows: Iterable[Iterable[int]], *, skip_special: bool = True) -> list[str]:
        return [self.decode(ids, skip_special=skip_special) for ids in rows]

    def chat(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True) -> str:
        """The conversation as one text, by the model's own chat template; encode it with special=False."""
        from cutaway.text.chat import render

        if self.chat_template is None:
            raise InputError("this tokenizer has no chat template; give the model plain text, or one made for chats")
        tokens = {ROLES[role]: token for role, token in self.names.items()}
        return render(self.chat_template, messages, tokens, add_generation_prompt=add_generation_prompt)

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Writes files that this library and transformers' AutoTokenizer read back to the same ids."""

    def _write(self, folder: Path, files: Mapping[str, bytes], settings: Mapping[str, Any]) -> None:
        """`files`, tokenizer_config.json and the chat template; each file appears whole or not at all."""
        named = {ROLES[role]: token for role, token in self.names.items()}
        length = {} if self.max_length is None else {"model_max_length": self.max_length}
        config = json.dumps({**settings, **named, **length}, indent=2, ensure_ascii=False)
        whole = {**files, "tokenizer_config.json": config.encode() + b"\n"}
        if self.chat_template is not None:
            whole["chat_template.jinja"] = self.chat_template.encode()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for name, content in whole.items():
                _replace(folder / name, content)
        except OSError as error:
            raise CheckpointError(f"can't write the tokenizer to {folder}: {error.strerror or error}") from None


def _replace(path: Path, content: bytes) -> None:
    handle, aside = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with open(handle, "wb") as file:
            file.write(content)
        os.chmod(aside, file_mode(path))  # mkstemp makes files that only their owner may read
        os.replace(aside, path)
    except BaseException:
        Path(aside).unlink(missing_ok=True)
        raise


def kept_places(sequences: Sequence[int | None], max_length: int) -> list[int]:
    """The tokens that stay when at most `max_length` may: all added ones (None), and the starts of text 0 and text 1.

    A pair loses from its longer text until both are equally long, then from both; transformers' "longest_first".
    """
    room = max_length - sum(sequence is None for sequence in sequences)
    if room < 0:
        raise InputError(f"max_length={max_length} leaves no room for the {max_length - room} special tokens")
    first, second = sequences.count(0), sequences.count(1)
    short, long = sorted((first, second))
    if short + long > room:
        long = max(short, room - short)
    if short + long > room:
        short, long = room // 2, room - room // 2
    left = [short, long] if first <= second else [long, short]
    keep = []
    for place, sequence in enumerate(sequences):
        if sequence is not None:
            left[sequence] -= 1
        if sequence is None or left[sequence] >= 0:
            keep.append(place)
    return keep


def check_text(text: object) -> None:
    if not isinstance(text, str):
        raise InputError(f"expected a text (str), found {type(text).__name__}")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InputError(f"character {error.start} of the text is a lone surrogate, not a character") from None


def token_ids(ids: Iterable[int]) -> list[int]:
    """Ids of a list or a tensor as plain numbers, checked."""
    numbers = [int(number) for number in ids]
    for number in numbers:
        if not 0 <= number < 2**32:
            raise InputError(f"{number} is no token id; ids count from 0 (remove positions that the loss ignores)")
    return numbers
