"""What decoding remembers between steps. The caller holds it; no module keeps a thing.

`Memory` is what the encoder made of the source. `Cache` is what the decoder made of the tokens so far: keys and values
per block in a Transformer, the hidden state in a recurrent model.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from cutaway.errors import InputError


@dataclass(frozen=True)
class Memory:
    """The encoder's output: states_BSD, which of them are real (None: all), and a recurrent encoder's last state."""

    states: Tensor
    mask: Tensor | None = None
    final: tuple[Tensor, ...] = ()

    def check(self, n_rows: int, width: int) -> None:
        """Whether a decoder of so many rows, which reads vectors of that width, can read this."""
        if self.states.dim() != 3 or self.states.shape[-1] != width:
            shape = list(self.states.shape)
            raise InputError(f"the memory has shape {shape}; this decoder reads [batch, length, {width}]")
        if self.states.shape[0] != n_rows:
            raise InputError(f"{n_rows} target rows, but the memory has {self.states.shape[0]}; they must be the same")

    def select(self, rows: Tensor) -> "Memory":
        """The memory of these batch rows, in this order, repeats allowed."""
        mask = None if self.mask is None else self.mask[rows]
        return Memory(self.states[rows], mask, tuple(state[rows] for state in self.final))


class KeyValues:
    """The keys and values of one attention, [B, G, S, K] each, in buffers that grow by doubling."""

    def __init__(self, capacity: int = 0, *, grows: bool = True) -> None:
        self.capacity = capacity
        self.grows = grows  # with every token, or made once of a memory
        self.length = 0
        self.keys: Tensor | None = None
        self.values: Tensor | None = None

    @property
    def all(self) -> tuple[Tensor, Tensor] | None:
        """The keys and values so far; None before the first."""
        if self.keys is None or self.values is None:
            return None
        return self.keys[:, :, : self.length], self.values[:, :, : self.length]

    def append(self, k_BGTK: Tensor, v_BGTK: Tensor) -> tuple[Tensor, Tensor]:
        """Adds the newest tokens; gives the keys and values of all tokens so far."""
        length = self.length + k_BGTK.shape[2]
        if torch.is_grad_enabled() and k_BGTK.requires_grad:  # gradients need every step's own tensor
            if (past := self.all) is not None:
                k_BGTK, v_BGTK = torch.cat((past[0], k_BGTK), dim=2), torch.cat((past[1], v_BGTK), dim=2)
            self.keys, self.values, self.length = k_BGTK, v_BGTK, length
            return k_BGTK, v_BGTK
        self.keys = self._written(self.keys, k_BGTK, length)
        self.values = self._written(self.values, v_BGTK, length)
        self.length = length
        return self.keys[:, :, :length], self.values[:, :, :length]

    def _written(self, buffer: Tensor | None, new_BGTK: Tensor, length: int) -> Tensor:
        if buffer is None or length > buffer.shape[2]:
            room = max(length, self.capacity) if buffer is None else max(length, 2 * buffer.shape[2])
            B, G, _, K = new_BGTK.shape
            grown = new_BGTK.new_empty(B, G, room, K)
            if buffer is not None:
                grown[:, :, : self.length] = buffer[:, :, : self.length]
            buffer = grown
        if buffer.is_inference() and not torch.is_inference_mode_enabled():
            buffer = buffer.clone()  # torch lets nobody else write to it
        buffer[:, :, self.length : length] = new_BGTK
        return buffer

    def select(self, rows: Tensor) -> None:
        """Keeps these batch rows, in this order, repeats allowed."""
        if self.keys is not None and self.values is not None:
            self.keys, self.values = self.keys[rows], self.values[rows]


@dataclass
class Cache:
    """Everything one decoder remembers. `capacity`: how many tokens to make room for at once."""

    capacity: int = 0
    length: int = 0
    mask: Tensor | None = None  # which of the tokens so far are real; None: all
    state: tuple[Tensor, ...] = ()  # a recurrent decoder's hidden state, [B, ...] each
    slots: dict[str, KeyValues] = field(default_factory=dict)  # by attention, e.g. "3.self_attention"

    def slot(self, name: str, *, grows: bool = True) -> KeyValues:
        """The keys and values of one attention, empty at first. Those of the memory never grow.

        What a step that failed half-way left behind is forgotten, so that it can be repeated.
        """
        if name not in self.slots:
            self.slots[name] = KeyValues(self.capacity if grows else 0, grows=grows)
        slot = self.slots[name]
        if grows:
            slot.length = min(slot.length, self.length)
        elif self.length == 0:
            slot.length, slot.keys, slot.values = 0, None, None
        return slot

    def check(self, n_rows: int, memory: Memory | None) -> None:
        """Whether the next step has the rows, and the memory the length, of the steps before."""
        if self.length == 0:
            return
        tensors = [self.mask, *self.state, *(slot.keys for slot in self.slots.values())]
        known = next((tensor.shape[0] for tensor in tensors if tensor is not None), n_rows)
        if known != n_rows:
            raise InputError(f"{n_rows} new rows, but the cache has {known}; select() rows, or start a new Cache")
        if memory is None:
            return
        for slot in self.slots.values():
            if not slot.grows and slot.length != memory.states.shape[1]:
                raise InputError(
                    f"the memory has {memory.states.shape[1]} tokens, but the cache was filled with one of "
                    f"{slot.length}; start a new Cache for another source"
                )

    def visible(self, mask_BT: Tensor | None, n_rows: int, n_new: int, device: torch.device) -> Tensor | None:
        """The mask of all tokens once the newest `n_new` are in (None: all real); remembered by `advance`."""
        if mask_BT is None and self.mask is None:
            return None
        old = self.mask if self.mask is not None else torch.ones(n_rows, self.length, dtype=torch.bool, device=device)
        new = mask_BT if mask_BT is not None else torch.ones(n_rows, n_new, dtype=torch.bool, device=device)
        return torch.cat((old, new), dim=1)

    def advance(self, n_new: int, visible_BS: Tensor | None) -> None:
        """The newest tokens are in."""
        self.length += n_new
        self.mask = visible_BS

    def select(self, rows: Tensor) -> None:
        """Keeps these batch rows, in this order, repeats allowed: how beam search follows its hypotheses."""
        self.mask = None if self.mask is None else self.mask[rows]
        self.state = tuple(state[rows] for state in self.state)
        for slot in self.slots.values():
            slot.select(rows)
