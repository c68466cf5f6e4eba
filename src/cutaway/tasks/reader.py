"""Texts as rows of tokens, long ones as several; and a batch of rows through an engine."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cutaway.errors import InputError
from cutaway.models.config import StackConfig
from cutaway.parts import masks
from cutaway.tasks.requirements import tokenizer_of

if TYPE_CHECKING:
    from cutaway.model import Model

Pair = tuple[str, str]
Inputs = list[str] | list[Pair] | list[str | Pair]
"""Texts, pairs of texts, or both; lists are of one type only, so each is named."""


@dataclass(frozen=True)
class InputRow:
    """What the network reads at once: a text, a pair, or a window of one."""

    ids: list[int]
    segments: list[int]
    """0 where the list ends early."""
    place: int = 0
    """Where in the row the text (or the part of a pair that has windows) begins …"""
    start: int = 0
    """… and with which of its tokens."""
    n: int = 0
    """How many of its tokens there are."""

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Frame:
    """The tokens that the tokenizer puts around texts: before, [between the two,] after; and their segments."""

    parts: tuple[list[int], ...]
    segments: tuple[list[int], ...]
    texts: tuple[int, ...]
    """The segment of each text."""

    @property
    def n(self) -> int:
        return sum(map(len, self.parts))

    def around(self, *texts: list[int]) -> tuple[list[int], list[int]]:
        """ids and segments of the texts in their frame."""
        ids, segments = [*self.parts[0]], [*self.segments[0]]
        for text, segment, part, part_segments in zip(
            texts, self.texts, self.parts[1:], self.segments[1:], strict=True
        ):
            ids += text + part
            segments += [segment] * len(text) + part_segments
        return ids, segments


class Reader:
    """A model that reads text: how much of it at once, in which frame, through which engine."""

    def __init__(self, model: "Model", task: str, engine: str | None, precision: str | None) -> None:
        self.model, self.task = model, task
        self.tokenizer = tokenizer_of(model, task)
        self.engine = model.engine(engine, precision).logged(model.name)
        stack = model.config.encoder or model.config.decoder
        positions = stack.max_positions if isinstance(stack, StackConfig) else None
        limits = [n for n in (positions, self.tokenizer.max_length, model.usage.max_tokens) if n is not None]
        self.limit = min(limits, default=None)
        """Tokens in one row, those of the frame included; None: no limit known."""
        self._has_segments = isinstance(stack, StackConfig) and stack.n_segments > 1
        pads = (model.usage.pad, self.tokenizer.special.pad)
        self._pad = next((pad for pad in pads if pad is not None), 0)

    @cached_property
    def frame(self) -> Frame:
        """Around one text, found by looking at one."""
        return self._frame("a")

    @cached_property
    def pair_frame(self) -> Frame:
        return self._frame("a", "b")

    def _frame(self, *texts: str) -> Frame:
        framed = self.tokenizer.encode(*texts)
        ids, segments = framed.ids, framed.segments
        parts, part_segments, text_segments, at = [], [], [], 0
        for text in texts:
            plain = self.tokenizer.encode(text, special=False).ids
            place = next(i for i in range(at, len(ids)) if ids[i : i + len(plain)] == plain)
            parts.append(ids[at:place])
            part_segments.append(segments[at:place])
            text_segments.append(segments[place])
            at = place + len(plain)
        return Frame((*parts, ids[at:]), (*part_segments, segments[at:]), tuple(text_segments))

    def texts(self, texts: Sequence[str], *, overlap: float = 0.0) -> list[list[InputRow]]:
        """Each text as one row, or as windows; a text of which the tokenizer leaves nothing is its frame alone."""
        before, after = map(len, self.frame.parts)
        found = self.tokenizer.encode_ids(texts)
        return [
            [InputRow(ids, [], before, 0, len(ids) - before - after)]
            if self.limit is None or len(ids) <= self.limit
            else self.rows(ids[before : len(ids) - after], overlap=overlap)
            for ids in found
        ]

    def rows(self, ids: list[int], *, overlap: float = 0.0) -> list[InputRow]:
        """One text, without special tokens, as one row or as windows of one size; `overlap` is a share of a window."""
        room = self._room(self.frame)
        return [
            InputRow(*self.frame.around(ids[start:end]), len(self.frame.parts[0]), start, end - start)
            for start, end in spans(len(ids), room, int(overlap * (room or 0)))
        ]

    def pair_rows(
        self, first: list[int], second: list[int], *, overlap: float = 0.0, only_second: bool = False
    ) -> list[InputRow]:
        """A pair as one row; if it is too long, windows over its longer text (or its second), each with the other."""
        frame, room = self.pair_frame, self._room(self.pair_frame)
        fixed = first if only_second or len(first) <= len(second) else second
        if room is not None and len(first) + len(second) > room and len(fixed) > room // 2:
            which = "question" if self.task == "answer" else "shorter text of a pair"
            raise InputError(
                f"the {which} has {len(fixed)} tokens; {self.model.name} reads {self.limit} at once, and it may have "
                f"half of them, {room // 2}; shorten it"
            )
        left = None if room is None else room - len(fixed)
        rows = []
        for start, end in spans(len(second if fixed is first else first), left, int(overlap * (left or 0))):
            if fixed is first:
                place = len(frame.parts[0]) + len(first) + len(frame.parts[1])
                rows.append(InputRow(*frame.around(first, second[start:end]), place, start, end - start))
            else:
                rows.append(InputRow(*frame.around(first[start:end], second), len(frame.parts[0]), start, end - start))
        return rows

    def _room(self, frame: Frame) -> int | None:
        if self.limit is None:
            return None
        if self.limit - frame.n < 2:
            raise InputError(f"{self.model.name} reads {self.limit} tokens at once: too few for a text and its frame")
        return self.limit - frame.n

    def read(self, rows: Sequence[InputRow]) -> Tensor:
        """What the network says of these rows, padded to the longest; float32, on the engine's device."""
        return self.engine.read(*self._batch(rows)).detach().float()

    def hidden(self, rows: Sequence[InputRow]) -> Tensor:
        """The same, of the last block: before the head."""
        return self.engine.hidden(*self._batch(rows)).detach().float()

    def _batch(self, rows: Sequence[InputRow]) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Tokens, mask and segments."""
        longest, device = max(len(row) for row in rows), self.engine.device
        tokens = torch.tensor([row.ids + [self._pad] * (longest - len(row)) for row in rows], device=device)
        mask = segments = None
        if any(len(row) < longest for row in rows):
            mask = masks.of_lengths(torch.tensor([len(row) for row in rows], device=device), longest)
        if self._has_segments and any(1 in row.segments for row in rows):
            padded = [row.segments + [0] * (longest - len(row.segments)) for row in rows]
            segments = torch.tensor(padded, device=device)
        return tokens, mask, segments


def spans(length: int, room: int | None, overlap: int = 0) -> list[tuple[int, int]]:
    """(start, end) of the windows over `length` tokens: as few as possible, all of one size, evenly placed.

    No window has more than `room` tokens (None: no limit), and neighbours share at least `overlap`.
    """
    if room is None or length <= room:
        return [(0, length)]
    n = -(-(length - overlap) // (room - overlap))
    size = -(-(length + (n - 1) * overlap) // n)
    starts = [i * (length - size) // (n - 1) for i in range(n)]
    return [(start, start + size) for start in starts]
