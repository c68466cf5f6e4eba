"""A cache for a batch that stays full: texts that are done leave, others join, and the room of both is used again."""

import torch
from torch import Tensor
from torch.nn import functional as F

from cutaway.parts.cache import Cache
from cutaway.parts.kv_cache import KVCache, writable


class BatchCache(Cache):
    """A cache whose rows leave and join between steps. Each text has the same number of neighbouring rows."""

    def move(self, here: Tensor, there: Tensor, n_rows: int, repeats: int = 1) -> None:
        """Row here[i] becomes row there[i], then the first `n_rows` stay. Each is `repeats` neighbouring rows, which
        share a row of the memory."""
        rows = torch.arange(n_rows, device=here.device)
        rows[here] = there
        wide_rows, wide_here, wide_there = (_widened(each, repeats) for each in (rows, here, there))
        self.mask = None if self.mask is None else self.mask[wide_rows]
        self.beam_index = None if self.beam_index is None else self.beam_index[wide_rows]
        self.state = tuple(state[wide_rows] for state in self.state)
        for kv in self.kv.values():
            if kv.grows:
                _move(kv, wide_here, wide_there, n_rows * repeats)
            else:
                _move(kv, here, there, n_rows)

    def join(self, other: "BatchCache") -> None:
        """Adds the rows of another cache of the same network. The newest tokens stand side by side: those of the
        shorter cache begin later, with hidden ones before them. A memory's begin together."""
        length = max(self.length, other.length)
        both = (self, other)
        if self.mask is not None or other.mask is not None or self.length != other.length:
            self.mask = torch.cat([cache._mask_of(length) for cache in both])
        self.state = tuple(torch.cat(pair) for pair in zip(self.state, other.state, strict=True))
        if self.beam_index is not None or other.beam_index is not None:
            self.beam_index = torch.cat([cache._beam_index_of(length) for cache in both])
        for name, kv in self.kv.items():
            _join(kv, other.kv[name], length if kv.grows else max(kv.length, other.kv[name].length))
        self.length = length

    def _rows(self) -> tuple[int, torch.device]:
        """How many there are, and where."""
        for kv in self.kv.values():
            if kv.grows and kv.buffers is not None:
                return kv.rows, kv.buffers[0].device
        return len(self.state[0]), self.state[0].device

    def _mask_of(self, length: int) -> Tensor:
        """The mask with hidden tokens before the first, up to this length."""
        n_rows, device = self._rows()
        mask = self.mask
        if mask is None:
            mask = torch.ones(n_rows, self.length, dtype=torch.bool, device=device)
        return F.pad(mask, (length - self.length, 0))

    def _beam_index_of(self, length: int) -> Tensor:
        """As `_mask_of`: each row keeps the hidden tokens before its first."""
        n_rows, device = self._rows()
        own_B1 = (torch.arange(n_rows, device=device) % self.width).unsqueeze(1)
        index_BS = self.extended_beam_index(n_rows, device, self.length)
        return torch.cat((own_B1.expand(-1, length - self.length), index_BS), dim=1)

    def trim(self, n_first: int) -> None:
        """Forgets the first tokens, which are hidden in every row."""
        self.length -= n_first
        if self.mask is not None:
            self.mask = self.mask[:, n_first:]
            self.mask = None if bool(self.mask.all()) else self.mask
        self.beam_index = None if self.beam_index is None else self.beam_index[:, n_first:]
        for kv in self.kv.values():
            if kv.grows:
                _trim(kv, n_first, self.length)

    def trim_memory(self, length: int) -> None:
        """Forgets the memory's tokens after the first `length`, which are hidden in every row."""
        for kv in self.kv.values():
            if not kv.grows:
                kv.length = min(kv.length, length)


def _widened(rows: Tensor, n: int) -> Tensor:
    """Each row as its `n` neighbours: [2, 0] -> [4, 5, 0, 1]"""
    return rows if n == 1 else (rows[:, None] * n + torch.arange(n, device=rows.device)).flatten()


def _move(kv: KVCache, here: Tensor, there: Tensor, n_rows: int) -> None:
    """Row here[i] becomes what row there[i] was, then the first `n_rows` stay. No row is in both."""
    if kv.buffers is None:
        return
    keys, values = kv.buffers
    kv.buffers = writable(keys), writable(values)
    for buffer in kv.buffers:
        filled = buffer[:, :, : kv.length]
        if filled.device.type == "cpu":  # row by row: indexing takes number by number, 8 times as long
            for to, from_ in zip(here.tolist(), there.tolist(), strict=True):
                filled[to] = filled[from_]
        else:
            filled[here] = filled[there]
    kv.rows = n_rows


def _join(kv: KVCache, other: KVCache, length: int) -> None:
    """Adds the rows of `other`. Both become `length` long: tokens end together, a memory's begin together."""
    if kv.buffers is None or other.buffers is None:
        return
    (keys, values), (more_keys, more_values) = kv.buffers, other.buffers
    kv.buffers = _joined(keys, more_keys, kv, other, length), _joined(values, more_values, kv, other, length)
    kv.rows, kv.length = kv.rows + other.rows, length


def _joined(buffer: Tensor, more: Tensor, kv: KVCache, other: KVCache, length: int) -> Tensor:
    n_rows = kv.rows + other.rows
    if length > kv.length or n_rows > buffer.shape[0] or length > buffer.shape[2]:
        _, G, room, K = buffer.shape
        # Hidden keys get a weight of 0, but 0 · NaN is NaN: room that is hidden must hold numbers.
        n_room = buffer.shape[0] if n_rows <= buffer.shape[0] else n_rows + n_rows // 4  # others may come
        wider = buffer.new_zeros(n_room, G, max(length, room), K)
        wider[: kv.rows, :, _columns(kv, length)] = buffer[: kv.rows, :, : kv.length]
        buffer = wider
    else:
        buffer = writable(buffer)
        buffer[kv.rows : n_rows, :, :length] = 0.0
    buffer[kv.rows : n_rows, :, _columns(other, length)] = more[: other.rows, :, : other.length]
    return buffer


def _columns(kv: KVCache, length: int) -> slice:
    """Where its tokens stand among `length`."""
    return slice(length - kv.length, length) if kv.grows else slice(0, kv.length)


def _trim(kv: KVCache, n_first: int, length: int) -> None:
    """Forgets the first `n_first` tokens, and those after `length` more."""
    if n_first and kv.buffers is not None:
        keys, values = kv.buffers
        kv.buffers = writable(keys), writable(values)
        for buffer in kv.buffers:
            buffer[: kv.rows, :, :length] = buffer[: kv.rows, :, n_first : n_first + length].clone()
    kv.length = min(kv.length, length)
