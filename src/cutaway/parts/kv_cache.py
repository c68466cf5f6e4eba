"""The keys and values that one attention reads, and what keeps them between steps: a part of a `Cache`."""

from typing import NamedTuple

import torch
from torch import Tensor


class KV(NamedTuple):
    """Keys and values, [B, G, S, K] each. Neighbouring rows of queries may share one of these rows.

    `row_index` [B, S]: in which row the key and value of each row's tokens are (None: in its own).
    """

    keys: Tensor
    values: Tensor
    row_index: Tensor | None = None

    def dense(self) -> tuple[Tensor, Tensor]:
        """Every row with its own keys and values."""
        if self.row_index is None:
            return self.keys, self.values
        return gathered(self.keys, self.row_index), gathered(self.values, self.row_index)

    def repeated(self, n_rows: int) -> tuple[Tensor, Tensor]:
        """Dense, for so many rows of queries."""
        k_BGSK, v_BGSK = self.dense()
        n = n_rows // max(1, len(k_BGSK))
        return (k_BGSK, v_BGSK) if n <= 1 else (k_BGSK.repeat_interleave(n, dim=0), v_BGSK.repeat_interleave(n, dim=0))


class KVCache:
    """The keys and values of one attention, [B, G, S, K] each, in buffers with room for more rows and more tokens.

    They grow by doubling. Rows that leave make room for rows that join: nothing else is copied then.
    """

    def __init__(self, capacity: int = 0, *, grows: bool = True) -> None:
        self.capacity = capacity
        self.grows = grows  # with every token, or made once of a memory
        self.length = 0
        self.rows = 0
        self.keys: Tensor | None = None
        self.values: Tensor | None = None
        self.row_index: Tensor | None = None  # for this step: see KV
        self._spare: tuple[Tensor | None, Tensor | None] = (None, None)

    @property
    def filled(self) -> KV | None:
        """The keys and values so far; None before the first."""
        if self.keys is None or self.values is None:
            return None
        rows, length = self.rows, self.length
        return KV(self.keys[:rows, :, :length], self.values[:rows, :, :length], self.row_index)

    def append(self, k_BGTK: Tensor, v_BGTK: Tensor) -> KV:
        """Adds the newest tokens; gives the keys and values of all tokens so far."""
        length = self.length + k_BGTK.shape[2]
        self.rows = k_BGTK.shape[0]
        if torch.is_grad_enabled() and k_BGTK.requires_grad:  # gradients need every step's own tensor
            if (past := self.filled) is not None:
                k_BGTK, v_BGTK = torch.cat((past.keys, k_BGTK), dim=2), torch.cat((past.values, v_BGTK), dim=2)
            self.keys, self.values, self.length = k_BGTK, v_BGTK, length
            return KV(k_BGTK, v_BGTK, self.row_index)
        self.keys = self._written(self.keys, k_BGTK, length)
        self.values = self._written(self.values, v_BGTK, length)
        self.length = length
        return KV(self.keys[: self.rows, :, :length], self.values[: self.rows, :, :length], self.row_index)

    def reserve(self, n_rows: int, n_groups: int, n_new: int, width: int) -> tuple[Tensor, Tensor]:
        """The buffers [B or more, G, S or more, K] in float32, with room for `n_new` tokens after the last, which who
        asks then writes."""
        self.rows, length = n_rows, self.length + n_new
        if (
            self.keys is None
            or self.values is None
            or length > self.keys.shape[2]
            or not torch.is_inference_mode_enabled()
        ):
            like = torch.empty(n_rows, n_groups, 0, width, dtype=torch.float32)
            self.keys, self.values = (self._with_room(buffer, like, length) for buffer in (self.keys, self.values))
        return self.keys, self.values

    def _with_room(self, buffer: Tensor | None, like_BGTK: Tensor, length: int) -> Tensor:
        """For `length` tokens of such rows."""
        if buffer is None or length > buffer.shape[2]:
            B, G, _, K = like_BGTK.shape
            room = max(length, self.capacity) if buffer is None else max(length, 2 * buffer.shape[2])
            grown = like_BGTK.new_empty(B if buffer is None else buffer.shape[0], G, room, K)
            if buffer is not None:
                grown[:B, :, : self.length] = buffer[:B, :, : self.length]
            buffer = grown
        return _writable(buffer)

    def _written(self, buffer: Tensor | None, new_BGTK: Tensor, length: int) -> Tensor:
        buffer = self._with_room(buffer, new_BGTK, length)
        buffer[: len(new_BGTK), :, self.length : length] = new_BGTK
        return buffer

    def select(self, rows: Tensor) -> None:
        """Keeps these batch rows, in this order, repeats allowed."""
        if self.keys is None or self.values is None:
            return
        spare_keys, spare_values = self._spare
        keys, values = self._selected(self.keys, rows, spare_keys), self._selected(self.values, rows, spare_values)
        self._spare = self.keys, self.values  # a beam search comes back at every step: two buffers take turns
        self.keys, self.values, self.rows = keys, values, len(rows)

    def _selected(self, buffer: Tensor, rows: Tensor, spare: Tensor | None) -> Tensor:
        """Only what is filled is copied, not the room that is yet to be."""
        filled = buffer[: self.rows, :, : self.length]
        if torch.is_grad_enabled() and buffer.requires_grad:
            return filled[rows]
        n_rows, (_, G, room, K) = len(rows), buffer.shape
        if spare is None or spare.shape[0] < n_rows or spare.shape[1:] != buffer.shape[1:]:
            spare = buffer.new_empty(n_rows, G, room, K)
        spare = _writable(spare)
        torch.index_select(filled, 0, rows, out=spare[:n_rows, :, : self.length])
        return spare

    def move(self, here: Tensor, there: Tensor, n_rows: int) -> None:
        """Row here[i] becomes what row there[i] was, then the first `n_rows` stay: how finished rows leave. No row is
        in both."""
        if self.keys is None or self.values is None:
            return
        self.keys, self.values = _writable(self.keys), _writable(self.values)
        for filled in (self.keys[:, :, : self.length], self.values[:, :, : self.length]):
            if filled.device.type == "cpu":  # row by row: indexing takes number by number, 8 times as long
                for to, from_ in zip(here.tolist(), there.tolist(), strict=True):
                    filled[to] = filled[from_]
            else:
                filled[here] = filled[there]
        self.rows = n_rows

    def join(self, other: "KVCache", length: int) -> None:
        """Adds the rows of `other`. Both become `length` long: tokens end together, a memory's begin together."""
        if self.keys is None or self.values is None or other.keys is None or other.values is None:
            return
        self.keys = self._joined(self.keys, other.keys, other, length)
        self.values = self._joined(self.values, other.values, other, length)
        self.rows, self.length = self.rows + other.rows, length

    def _joined(self, ours: Tensor, theirs: Tensor, other: "KVCache", length: int) -> Tensor:
        n_rows = self.rows + other.rows
        if length > self.length or n_rows > ours.shape[0] or length > ours.shape[2]:
            _, G, room, K = ours.shape
            # Hidden keys get a weight of 0, but 0 · NaN is NaN: room that is hidden must hold numbers.
            n_room = ours.shape[0] if n_rows <= ours.shape[0] else n_rows + n_rows // 4  # others may come
            wider = ours.new_zeros(n_room, G, max(length, room), K)
            wider[: self.rows, :, self._columns(self, length)] = ours[: self.rows, :, : self.length]
            ours = wider
        else:
            ours = _writable(ours)
            ours[self.rows : n_rows, :, :length] = 0.0
        ours[self.rows : n_rows, :, self._columns(other, length)] = theirs[: other.rows, :, : other.length]
        return ours

    def _columns(self, part: "KVCache", length: int) -> slice:
        return slice(length - part.length, length) if self.grows else slice(0, part.length)

    def trim(self, n_first: int, length: int) -> None:
        """Forgets the first `n_first` tokens, and those after `length` more."""
        if n_first and self.keys is not None and self.values is not None:
            self.keys, self.values = _writable(self.keys), _writable(self.values)
            for buffer in (self.keys, self.values):
                buffer[: self.rows, :, :length] = buffer[: self.rows, :, n_first : n_first + length].clone()
        self.length = min(self.length, length)


def _writable(buffer: Tensor) -> Tensor:
    """torch lets nobody outside its inference mode write to what was made inside."""
    return buffer.clone() if buffer.is_inference() and not torch.is_inference_mode_enabled() else buffer


def gathered(buffer_BGSK: Tensor, rows_BS: Tensor) -> Tensor:
    """The key (or value) of each row's tokens from the rows that hold them. -> [B, G, S, K]"""
    columns_S = torch.arange(rows_BS.shape[1], device=rows_BS.device)
    return buffer_BGSK.transpose(1, 2)[rows_BS, columns_S].transpose(1, 2)
