"""RNN, GRU and LSTM, the road to the Transformer: one layer, by formula; torch's fused loop without listeners."""

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import rnn

from cutaway.checks import Probability, Size, check, check_arguments
from cutaway.errors import InputError
from cutaway.kernels.dropout import dropout
from cutaway.parts import masks
from cutaway.parts.tap import Tap, heard

CellKind = Literal["rnn", "gru", "lstm"]
State = tuple[Tensor, ...]
"""(h,), or (h, c) for an LSTM; [B, D] each."""

_FUSED: dict[CellKind, Callable[..., Any]] = {"rnn": torch.rnn_tanh, "gru": torch.gru, "lstm": torch.lstm}
_GATES: dict[CellKind, int] = {"rnn": 1, "gru": 3, "lstm": 4}


class RecurrentLayer(nn.Module):
    """h_t = f(x_t, h_{t-1}), token after token. x [B, T, E], state -> outputs [B, T, D], state

    rnn   h = tanh(W x + U h)
    gru   r, z = σ(W x + U h);  n = tanh(W x + r · U h);  h = (1 - z) · n + z · h
    lstm  i, f, o = σ(W x + U h);  g = tanh(W x + U h);  c = f · c + i · g;  h = o · tanh(c)

    Each W and U has rows of its own for every gate, stacked in that order (lstm: i, f, g, o). paper (Cho 2014): the GRU
    resets h before U; here, as in torch and cuDNN: after it, because U h is then one product for all gates.
    """

    def __init__(
        self, cell: CellKind, d_in: int, d_hidden: int, *, reverse: bool = False, weight_dropout: float = 0.0
    ) -> None:
        super().__init__()
        check("RecurrentLayer: cell", cell, CellKind)
        check_arguments("RecurrentLayer", Size, d_in=d_in, d_hidden=d_hidden)
        check_arguments("RecurrentLayer", Probability, weight_dropout=weight_dropout)
        self.cell: CellKind = cell
        self.d_hidden = d_hidden
        self.reverse = reverse
        self.weight_dropout = weight_dropout  # of U, as in AWD-LSTM, on which ULMFiT stands
        self.input = nn.Linear(d_in, _GATES[cell] * d_hidden)
        self.state = nn.Linear(d_hidden, _GATES[cell] * d_hidden)
        if cell == "gru":
            self.reset_gate = Tap("BTD", "r = σ(W_r x + U_r h)")
            self.update_gate = Tap("BTD", "z = σ(W_z x + U_z h)")
            self.candidate = Tap("BTD", "n = tanh(W_n x + r · U_n h)")
        elif cell == "lstm":
            self.input_gate = Tap("BTD", "i = σ(W_i x + U_i h)")
            self.forget_gate = Tap("BTD", "f = σ(W_f x + U_f h)")
            self.candidate = Tap("BTD", "g = tanh(W_g x + U_g h)")
            self.output_gate = Tap("BTD", "o = σ(W_o x + U_o h)")
            self.cell_state = Tap("BTD", "c = f · c + i · g")
        self.hidden = Tap("BTD", {"rnn": "tanh(W x + U h)", "gru": "(1 - z) · n + z · h", "lstm": "o · tanh(c)"}[cell])
        self._taps = tuple(module for module in self.children() if isinstance(module, Tap))
        for tap in self._taps:
            tap.last_first = reverse

    def first_state(self, like_BTE: Tensor) -> State:
        """Zeros, as the state before the first token."""
        zeros_BD = like_BTE.new_zeros(like_BTE.shape[0], self.d_hidden)
        return (zeros_BD, zeros_BD) if self.cell == "lstm" else (zeros_BD,)

    def step(self, projected_BE: Tensor, state: State, u_weight: Tensor) -> State:
        """One token: `projected` is W x + b for it."""
        carried = nn.functional.linear(state[0], u_weight, self.state.bias)
        if self.cell == "rnn":
            return (self._heard(self.hidden, torch.tanh(projected_BE + carried)),)
        if self.cell == "gru":
            x_r, x_z, x_n = projected_BE.chunk(3, dim=-1)
            h_r, h_z, h_n = carried.chunk(3, dim=-1)
            r = self._heard(self.reset_gate, torch.sigmoid(x_r + h_r))
            z = self._heard(self.update_gate, torch.sigmoid(x_z + h_z))
            n = self._heard(self.candidate, torch.tanh(x_n + r * h_n))
            return (self._heard(self.hidden, (1 - z) * n + z * state[0]),)
        x_i, x_f, x_g, x_o = (projected_BE + carried).chunk(4, dim=-1)
        i = self._heard(self.input_gate, torch.sigmoid(x_i))
        f = self._heard(self.forget_gate, torch.sigmoid(x_f))
        g = self._heard(self.candidate, torch.tanh(x_g))
        o = self._heard(self.output_gate, torch.sigmoid(x_o))
        c = self._heard(self.cell_state, f * state[1] + i * g)
        return (self._heard(self.hidden, o * torch.tanh(c)), c)

    @staticmethod
    def _heard(tap: Tap, value_BD: Tensor) -> Tensor:
        """Taps of a step have a time axis of 1, so that a trace can lay the steps side by side."""
        return tap(value_BD.unsqueeze(1)).squeeze(1)

    def recurrent_weight(self) -> Tensor:
        """U, dropped out: drawn once for all steps of a sequence (AWD-LSTM)."""
        return dropout(self.state.weight, self.weight_dropout) if self.training else self.state.weight

    def forward(
        self,
        x_BTE: Tensor,
        state: State | None = None,
        *,
        mask_BT: Tensor | None = None,
        u_weight: Tensor | None = None,
    ) -> tuple[Tensor, State]:
        """`mask`, True = a real token: padding leaves the state as it was, and its own output is 0.

        `u_weight`: `recurrent_weight()` drawn by a caller that goes step by step.
        """
        self._check(x_BTE, state, mask_BT)
        state = self.first_state(x_BTE) if state is None else state
        u_weight = self.recurrent_weight() if u_weight is None else u_weight
        if not heard(*self._taps) and _can_fuse(mask_BT):
            return self._fused(x_BTE, state, u_weight, mask_BT)
        projected_BTE = self.input(x_BTE)
        outputs: list[Tensor] = []
        times = range(x_BTE.shape[1])
        for t in reversed(times) if self.reverse else times:
            new = self.step(projected_BTE[:, t], state, u_weight)
            if mask_BT is None:
                state = new
                outputs.append(new[0])
            else:
                real_B1 = mask_BT[:, t : t + 1]
                state = tuple(torch.where(real_B1, after, before) for after, before in zip(new, state, strict=True))
                outputs.append(new[0] * real_B1)
        return torch.stack(outputs[::-1] if self.reverse else outputs, dim=1), state

    def _check(self, x_BTE: Tensor, state: State | None, mask_BT: Tensor | None) -> None:
        """torch's fused LSTM does not look: a state of fewer rows is read beyond its end, and the process dies."""
        E, D = self.input.in_features, self.d_hidden
        if x_BTE.dim() != 3 or x_BTE.shape[-1] != E:
            raise InputError(f"x has shape {list(x_BTE.shape)}; this layer takes [batch, length, {E}]")
        if mask_BT is not None:
            masks.check_mask(mask_BT, x_BTE.shape[:2], "the mask")
        if state is None:
            return
        n = 2 if self.cell == "lstm" else 1
        if len(state) != n:
            raise InputError(f"the state has {len(state)} parts; the state of this {self.cell} has {n}")
        for part in state:
            if list(part.shape) != [x_BTE.shape[0], D]:
                raise InputError(f"the state has shape {list(part.shape)}, for x it must have {[x_BTE.shape[0], D]}")

    def _fused(self, x_BTE: Tensor, state: State, u_weight: Tensor, mask_BT: Tensor | None) -> tuple[Tensor, State]:
        """The same loop inside torch."""
        weights = [self.input.weight, u_weight, self.input.bias, self.state.bias]
        T = x_BTE.shape[1]
        lengths_B = None if mask_BT is None else mask_BT.sum(1)
        if self.reverse:
            x_BTE = _reversed(x_BTE, lengths_B)
        fused = _FUSED[self.cell]
        if lengths_B is None:
            outputs_BTD, *last = fused(x_BTE, self._start(state), weights, True, 1, 0.0, self.training, False, True)
        else:
            packed = rnn.pack_padded_sequence(x_BTE, lengths_B.cpu(), batch_first=True, enforce_sorted=False)
            order, back = packed.sorted_indices, packed.unsorted_indices
            start = self._start(tuple(part[order] for part in state))
            data, *last = fused(packed.data, packed.batch_sizes, start, weights, True, 1, 0.0, self.training, False)
            last = [part[:, back] for part in last]
            outputs_BTD, _ = rnn.pad_packed_sequence(packed._replace(data=data), batch_first=True, total_length=T)
        if self.reverse:
            outputs_BTD = _reversed(outputs_BTD, lengths_B)
        return outputs_BTD, tuple(part.squeeze(0) for part in last)

    def _start(self, state: State) -> Tensor | State:
        layered = tuple(part.unsqueeze(0) for part in state)
        return layered if self.cell == "lstm" else layered[0]


def _can_fuse(mask_BT: Tensor | None) -> bool:
    """torch packs rows of one real token or more, padded on the right; its packing can't be compiled."""
    if torch.compiler.is_compiling():
        return False
    return mask_BT is None or (bool(mask_BT[:, 0].all()) and masks.right_padded(mask_BT))


def _reversed(x_BTE: Tensor, lengths_B: Tensor | None) -> Tensor:
    """Each row back to front, its padding left where it is."""
    if lengths_B is None:
        return x_BTE.flip(1)
    t = torch.arange(x_BTE.shape[1], device=x_BTE.device)
    from_BT = torch.where(t < lengths_B[:, None], lengths_B[:, None] - 1 - t, t)
    return x_BTE.gather(1, from_BT.unsqueeze(-1).expand_as(x_BTE))
