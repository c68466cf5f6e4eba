"""What was written so far, column by column: ids, their log-probabilities, and what else was likely."""

from collections.abc import Sequence

import torch
from torch import Tensor


class TokenHistory:
    """Tensors [R, T, ...] that grow by a column at a time, side by side with the columns of a `Cache`.

    Rows that begin later than others repeat their first value before that.
    """

    def __init__(self, tracks: Sequence[Tensor], capacity: int = 0) -> None:
        self.length = tracks[0].shape[1]
        self.buffers = [_wider(track, max(capacity, self.length)) for track in tracks]

    def __getitem__(self, number: int) -> Tensor:
        return self.buffers[number][:, : self.length]

    def append(self, columns: Sequence[Tensor]) -> None:
        """One value [R, ...] more for each track."""
        if self.length == self.buffers[0].shape[1]:
            self.buffers = [_wider(buffer, 2 * self.length) for buffer in self.buffers]
        for buffer, column in zip(self.buffers, columns, strict=True):
            buffer[:, self.length] = column
        self.length += 1

    def select(self, rows: Tensor) -> None:
        """Keeps these rows, in this order, repeats allowed."""
        self.buffers = [buffer[rows] for buffer in self.buffers]

    def join(self, other: "TokenHistory") -> None:
        """Adds the rows of `other`; the newest columns stand side by side."""
        length = max(self.length, other.length)
        both = [[_shifted(track, length) for track in (self[i], other[i])] for i in range(len(self.buffers))]
        room = self.buffers[0].shape[1]
        self.buffers = [_wider(torch.cat(pair), max(room, length)) for pair in both]
        self.length = length

    def trim(self, n_first: int) -> None:
        """Forgets the first columns."""
        self.buffers = [_wider(buffer[:, n_first:], buffer.shape[1]) for buffer in self.buffers]
        self.length -= n_first


def _wider(track: Tensor, room: int) -> Tensor:
    R, T, *rest = track.shape
    buffer = track.new_zeros(R, room, *rest)
    buffer[:, :T] = track
    return buffer


def _shifted(track: Tensor, length: int) -> Tensor:
    """The track as the last columns of `length`."""
    missing = length - track.shape[1]
    return torch.cat((track[:, :1].expand(-1, missing, *track.shape[2:]), track), dim=1) if missing else track
