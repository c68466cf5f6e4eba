"""Memory and Cache: the state of decoding between steps. The caller holds it; modules keep nothing.

`Memory` is what the encoder made of the source. `Cache` is what the decoder made of the tokens so far: keys and values
per block in a Transformer, the hidden state in a recurrent model.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from cutaway.errors import InputError
from cutaway.parts.kv_cache import KVCache, gathered


@dataclass(frozen=True)
class Memory:
    """The encoder's output: states_BSD, which of them are real (None: all), and a recurrent encoder's last state.

    `repeats`: how many neighbouring rows of the decoder read each row, as the beams of one text do.
    """

    states: Tensor
    mask: Tensor | None = None
    final: tuple[Tensor, ...] = ()
    repeats: int = 1

    def check(self, n_rows: int, width: int) -> None:
        """Whether a decoder of so many rows, which reads vectors of that width, can read this."""
        if self.states.dim() != 3 or self.states.shape[-1] != width:
            shape = list(self.states.shape)
            raise InputError(f"the memory has shape {shape}; this decoder reads [batch, length, {width}]")
        if (rows := self.states.shape[0] * self.repeats) != n_rows:
            raise InputError(f"{n_rows} target rows, but the memory has {rows}; they must be the same")

    def select(self, rows: Tensor) -> "Memory":
        """The memory of these batch rows, in this order, repeats allowed."""
        mask = None if self.mask is None else self.mask[rows]
        return Memory(self.states[rows], mask, tuple(state[rows] for state in self.final), self.repeats)

    def join(self, other: "Memory") -> "Memory":
        """The rows of both; the shorter ones are padded on the right."""
        length = max(self.states.shape[1], other.states.shape[1])
        parts = [memory.padded(length) for memory in (self, other)]
        mask = None
        if any(part.mask is not None for part in parts):
            mask = torch.cat([_real(part.mask, part.states) for part in parts])
        final = tuple(torch.cat(pair) for pair in zip(self.final, other.final, strict=True))
        return Memory(torch.cat([part.states for part in parts]), mask, final, self.repeats)

    def padded(self, length: int) -> "Memory":
        """With hidden tokens after the last, up to this length; or cut after it, where only hidden ones are lost."""
        missing = length - self.states.shape[1]
        if missing == 0:
            return self
        mask = F.pad(_real(self.mask, self.states), (0, missing))
        return Memory(F.pad(self.states, (0, 0, 0, missing)), mask, self.final, self.repeats)


def _real(mask_BS: Tensor | None, states_BSD: Tensor) -> Tensor:
    if mask_BS is not None:
        return mask_BS
    return torch.ones(states_BSD.shape[:2], dtype=torch.bool, device=states_BSD.device)


@dataclass
class Cache:
    """Everything one decoder remembers. `capacity`: how many tokens to make room for at once."""

    capacity: int = 0
    length: int = 0
    mask: Tensor | None = None  # which of the tokens so far are real; None: all
    state: tuple[Tensor, ...] = ()  # a recurrent decoder's hidden state, [B, ...] each
    beam_index: Tensor | None = None  # [B, S]: in which row of its text (its beams) each token is kept; None: its own
    width: int = 1  # rows of a text
    kv: dict[str, KVCache] = field(default_factory=dict)  # by attention, e.g. "3.self_attention"
    step_row_index: Tensor | None = None  # `row_index` in the step that is being made

    def of(self, name: str, *, grows: bool = True) -> KVCache:
        """The keys and values of one attention, empty at first. Those of the memory never grow.

        The remains of a step that failed half-way are forgotten, so that it can be repeated.
        """
        if name not in self.kv:
            self.kv[name] = KVCache(self.capacity if grows else 0, grows=grows)
        kv_cache = self.kv[name]
        if grows:
            kv_cache.length, kv_cache.row_index = min(kv_cache.length, self.length), self.step_row_index
        elif self.length == 0:
            kv_cache.length, kv_cache.buffers = 0, None
        return kv_cache

    def check(self, n_rows: int, memory: Memory | None) -> None:
        """Whether the next step has the rows, and the memory the length, of the steps before."""
        if self.length == 0:
            return
        known = next((tensor.shape[0] for tensor in (self.mask, *self.state) if tensor is not None), None)
        if known is None:
            known = next((kv.rows for kv in self.kv.values() if kv.grows and kv.rows), n_rows)
        if known != n_rows:
            raise InputError(f"{n_rows} new rows, but the cache has {known}; select() rows, or start a new Cache")
        if memory is None:
            return
        for kv in self.kv.values():
            if not kv.grows and kv.length != memory.states.shape[1]:
                raise InputError(
                    f"the memory has {memory.states.shape[1]} tokens, but the cache was filled with one of "
                    f"{kv.length}; start a new Cache for another source"
                )

    def begin(self, n_new: int) -> None:
        """A step of so many tokens."""
        self.step_row_index = self.row_index(n_new)

    def visible(self, mask_BT: Tensor | None, n_rows: int, n_new: int, device: torch.device) -> Tensor | None:
        """The mask of all tokens once the newest `n_new` are in (None: all real); remembered by `advance`."""
        if mask_BT is None and self.mask is None:
            return None
        old = self.mask if self.mask is not None else torch.ones(n_rows, self.length, dtype=torch.bool, device=device)
        new = mask_BT if mask_BT is not None else torch.ones(n_rows, n_new, dtype=torch.bool, device=device)
        return torch.cat((old, new), dim=1)

    def row_index(self, n_new: int) -> Tensor | None:
        """Of every token, the newest `n_new` too, the row that keeps its key and value [B, S]; None: each its own."""
        if self.beam_index is None:
            return None
        n_rows, device = len(self.beam_index), self.beam_index.device
        first_B1 = torch.arange(n_rows, device=device).unsqueeze(1) // self.width * self.width  # of its text
        return first_B1 + self.extended_beam_index(n_rows, device, self.length + n_new)

    def advance(self, n_new: int, visible_BS: Tensor | None) -> None:
        """The newest tokens are in."""
        self.length += n_new
        self.mask = visible_BS

    def select(self, rows: Tensor) -> None:
        """Keeps these batch rows, in this order, repeats allowed."""
        self._materialize()
        self.mask = None if self.mask is None else self.mask[rows]
        self.state = tuple(state[rows] for state in self.state)
        for kv in self.kv.values():
            kv.select(rows)

    def widen(self, width: int) -> None:
        """Each row becomes `width` neighbours, all alike; they share the keys and values of the memory."""
        self.mask = None if self.mask is None else self.mask.repeat_interleave(width, dim=0)
        self.state = tuple(state.repeat_interleave(width, dim=0) for state in self.state)
        for kv in self.kv.values():
            if kv.grows and kv.buffers is not None:
                kv.select(torch.arange(kv.rows, device=kv.buffers[0].device).repeat_interleave(width))
        self.width = width

    def reorder(self, rows: Tensor) -> None:
        """Row i becomes what row rows[i] of the same text was: how beam search follows its hypotheses.

        No key moves: `beam_index` says which row keeps it, and attention looks there.
        """
        self.mask = None if self.mask is None else self.mask[rows]
        self.state = tuple(state[rows] for state in self.state)
        if any(kv.grows for kv in self.kv.values()):
            self.beam_index = self.extended_beam_index(len(rows), rows.device, self.length)[rows]

    def extended_beam_index(self, n_rows: int, device: torch.device, length: int) -> Tensor:
        """`beam_index` up to so many tokens: each row keeps those since the last reordering."""
        own_B1 = (torch.arange(n_rows, device=device) % self.width).unsqueeze(1)
        if self.beam_index is None:
            return own_B1.expand(-1, length)
        return torch.cat((self.beam_index, own_B1.expand(-1, length - self.beam_index.shape[1])), dim=1)

    def _materialize(self) -> None:
        """Every row keeps its own keys and values."""
        if (rows_BS := self.row_index(0)) is not None:
            for kv in self.kv.values():
                if kv.grows and kv.buffers is not None:
                    for buffer in kv.buffers:
                        buffer[: kv.rows, :, : kv.length] = gathered(buffer, rows_BS)
            self.beam_index = None
