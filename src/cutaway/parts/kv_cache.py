"""The keys and values that one attention reads, and the buffers that keep them between steps: a part of a `Cache`."""

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

    They grow by doubling.
    """

    def __init__(self, capacity: int = 0, *, grows: bool = True) -> None:
        self.capacity = capacity
        self.grows = grows  # with every token, or made once of a memory
        self.length = 0
        self.rows = 0
        self.buffers: tuple[Tensor, Tensor] | None = None  # None before the first token
        self.row_index: Tensor | None = None  # for this step: see KV

    @property
    def filled(self) -> KV | None:
        """The keys and values so far; None before the first."""
        if self.buffers is None:
            return None
        keys, values = self.buffers
        return KV(keys[: self.rows, :, : self.length], values[: self.rows, :, : self.length], self.row_index)

    def append(self, k_BGTK: Tensor, v_BGTK: Tensor) -> KV:
        """Adds the newest tokens; gives the keys and values of all tokens so far."""
        length = self.length + k_BGTK.shape[2]
        self.rows = k_BGTK.shape[0]
        if torch.is_grad_enabled() and k_BGTK.requires_grad:  # gradients need every step's own tensor
            if (past := self.filled) is not None:
                k_BGTK, v_BGTK = torch.cat((past.keys, k_BGTK), dim=2), torch.cat((past.values, v_BGTK), dim=2)
            self.buffers, self.length = (k_BGTK, v_BGTK), length
            return KV(k_BGTK, v_BGTK, self.row_index)
        keys, values = self.buffers or (None, None)
        keys, values = self._with_room(keys, k_BGTK, length), self._with_room(values, v_BGTK, length)
        keys[: self.rows, :, self.length : length] = k_BGTK
        values[: self.rows, :, self.length : length] = v_BGTK
        self.buffers, self.length = (keys, values), length
        return KV(keys[: self.rows, :, :length], values[: self.rows, :, :length], self.row_index)

    def reserve(self, n_rows: int, n_groups: int, n_new: int, width: int) -> tuple[Tensor, Tensor]:
        """The buffers [B or more, G, S or more, K] in float32, with room for `n_new` tokens after the last, which the
        caller then writes."""
        self.rows, length = n_rows, self.length + n_new
        if self.buffers is None or length > self.buffers[0].shape[2] or not torch.is_inference_mode_enabled():
            like = torch.empty(n_rows, n_groups, 0, width, dtype=torch.float32)
            keys, values = self.buffers or (None, None)
            self.buffers = self._with_room(keys, like, length), self._with_room(values, like, length)
        return self.buffers

    def _with_room(self, buffer: Tensor | None, like_BGTK: Tensor, length: int) -> Tensor:
        """For `length` tokens of such rows."""
        if buffer is None or length > buffer.shape[2]:
            B, G, _, K = like_BGTK.shape
            room = max(length, self.capacity) if buffer is None else max(length, 2 * buffer.shape[2])
            grown = like_BGTK.new_empty(B if buffer is None else buffer.shape[0], G, room, K)
            if buffer is not None:
                grown[:B, :, : self.length] = buffer[:B, :, : self.length]
            buffer = grown
        return writable(buffer)

    def select(self, rows: Tensor) -> None:
        """Keeps these batch rows, in this order, repeats allowed."""
        if (kept := self.filled) is not None:
            self.buffers, self.length = None, 0
            self.append(kept.keys[rows], kept.values[rows])


def writable(buffer: Tensor) -> Tensor:
    """A copy, if it was made in torch's inference mode and is to be written outside."""
    return buffer.clone() if buffer.is_inference() and not torch.is_inference_mode_enabled() else buffer


def gathered(buffer_BGSK: Tensor, rows_BS: Tensor) -> Tensor:
    """The key (or value) of each row's tokens from the rows that hold them. -> [B, G, S, K]"""
    columns_S = torch.arange(rows_BS.shape[1], device=rows_BS.device)
    return buffer_BGSK.transpose(1, 2)[rows_BS, columns_S].transpose(1, 2)
