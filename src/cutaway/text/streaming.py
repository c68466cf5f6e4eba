"""Streaming of text: tokens come one by one, and only text that later tokens can't change is returned."""

import re
from collections.abc import Sequence

from cutaway.text.tokenizer import Tokenizer

_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
_BROKEN = "\ufffd"  # a decoder's character for invalid or incomplete bytes
_ENOUGH = 8  # tokens that are decoded before the newest one, as its context


class StreamingDecoder:
    """add(token) -> the text that is final by now, often "" or more than the token's own; finish() -> the rest.

    All pieces joined are the text of all tokens: `decode(after + tokens)` without its beginning `decode(after)`. A
    character of several tokens is held back until it is complete. `after`: the tokens before the first one, so that a
    continuation keeps its leading space. The work for a token does not grow with the text.
    """

    def __init__(self, tokenizer: Tokenizer, after: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._ids = _end_of(tokenizer, after)
        self._sent = len(tokenizer.decode(self._ids))  # characters of these tokens' text
        self._whole = self._sent  # characters up to the last token that is not a single byte

    def add(self, token: int) -> str:
        if self._has_no_text(token):
            return ""
        self._ids.append(token)
        text = self._tokenizer.decode(self._ids)
        if not _BYTE.fullmatch(self._tokenizer.token_of(token) or ""):
            self._whole = len(text)
        # A run of byte tokens is decoded as one: a wrong byte at its end makes all of it invalid. Otherwise only the
        # last character may be incomplete.
        settled = min(self._whole, len(text) - text.endswith(_BROKEN) - self._tokenizer.unsettled)
        settled = max(settled, self._sent)
        piece, self._sent = text[self._sent : settled], settled
        if self._sent == len(text) and len(self._ids) > 4 * _ENOUGH and not self._tokenizer.unsettled:
            self._ids = _end_of(self._tokenizer, self._ids)
            self._sent = self._whole = len(self._tokenizer.decode(self._ids))
        return piece

    def _has_no_text(self, token: int) -> bool:
        """Whether a token adds no text: it is special, or a spare row of the model."""
        decode = self._tokenizer.decode
        return self._tokenizer.token_of(token) is None or (
            not decode([token]) and bool(decode([token], skip_special=False))
        )

    def finish(self) -> str:
        rest = self._tokenizer.decode(self._ids)[self._sent :]
        self._sent += len(rest)
        return rest


def text_after(tokenizer: Tokenizer, after: Sequence[int], ids: Sequence[int]) -> str:
    """The text of `ids` after other tokens: all that a `StreamingDecoder(tokenizer, after)` gives, joined."""
    if not after:
        return tokenizer.decode(ids)
    before = _end_of(tokenizer, after)
    return tokenizer.decode([*before, *ids])[len(tokenizer.decode(before)) :]


def _end_of(tokenizer: Tokenizer, ids: Sequence[int]) -> list[int]:
    """The last tokens, some of them with text: decoders strip the space of a text's first token."""
    length = _ENOUGH
    while length < len(ids):
        if tokenizer.decode(ids[-length:]).strip():
            return list(ids[-length:])
        length *= 2
    return list(ids)


class StopStrings:
    """Cuts a stream of text before the first stop string, which may begin in one piece and end in another."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.ended = False

    def add(self, piece: str) -> str:
        """The new text that is surely before a stop string; nothing more once `ended`."""
        if self.ended:
            return ""
        text = self._held + piece
        found = [(place + len(stop), place) for stop in self._stops if (place := text.find(stop)) != -1]
        if found:
            self.ended, self._held = True, ""
            return text[: min(found)[1]]
        longest = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - longest :]
        return text[: len(text) - longest]

    def finish(self) -> str:
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """The number of characters at the end of `text` that may be the beginning of `stop`."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
