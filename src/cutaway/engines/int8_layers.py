"""Layers in 8 bits: a quarter of the memory, two to four times the products a second.

Activations are quantised when they come, each token by itself, from its smallest number to its largest (what comes out
of a ReLU or GELU is hardly ever below zero: half of the steps would be lost on it), outliers apart: kernels/products.c.
Without kernels the weights alone are in 8 bits. A token's product does not depend on its neighbours in the batch.
"""

import copy
import ctypes

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cutaway.engines.fused_modules import FusedAttention
from cutaway.engines.quantization import QuantizedWeight
from cutaway.kernels import LinearRecord, kernels
from cutaway.kernels.arguments import address
from cutaway.models.heads import VocabularyProjection
from cutaway.parts.feedforward import ACTIVATIONS, Activation, FeedForward
from cutaway.parts.tap import heard

_NUMBERED: tuple[Activation, ...] = ("relu", "gelu", "gelu_tanh", "silu")
FUSED = {ACTIVATIONS[name]: number for number, name in enumerate(_NUMBERED, start=1)}
"""The activations of kernels.h, and their numbers there."""


class Int8Linear(nn.Module):
    """activation(x Wᵀ + b), with W and x in 8 bits. x [..., D] -> [..., E]"""

    bias: Tensor | None

    def __init__(self, weight: QuantizedWeight, bias_E: Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.numbers.shape
        self.register_buffer("bias", bias_E)
        built = kernels()
        self.kernels = built if built is not None and built.multiply else None
        self.weight = weight if self.kernels is None else None
        if self.kernels is not None:
            missing = -self.out_features % self.kernels.tile
            numbers = (weight.scales, weight.totals(), self.bias)
            self.kept = [  # the record has their addresses only
                packed(weight.numbers, self.kernels.tile),
                packed_multipliers(weight.multipliers, self.kernels.tile),
                *(None if each is None else F.pad(each, (0, missing)) for each in numbers),
            ]
            addresses = [None if each is None else each.data_ptr() for each in self.kept]
            self.record = LinearRecord(*addresses, n_in=self.in_features, n_out=self.out_features, activation=0)
            # Looked up once: a step of a small model spends more time on asking than on multiplying.
            self.address, self.room = ctypes.byref(self.record), self.kernels.linear_room(self.in_features, 1)

    def activated(self, activation: int) -> "Int8Linear":
        """The same layer and an activation, in one go; its number is that of kernels.h."""
        layer = copy.copy(self)
        layer.record = LinearRecord.from_buffer_copy(self.record)
        layer.record.activation = activation
        layer.address = ctypes.byref(layer.record)
        return layer

    def forward(self, x: Tensor) -> Tensor:
        if self.weight is not None:
            return F.linear(x.float(), self.weight.dequantized(), self.bias)
        assert self.kernels is not None
        *shape, D = x.shape
        x, N = x.float().contiguous(), x.numel() // D
        y = x.new_empty(*shape, self.out_features, dtype=torch.float32)
        room = x.new_empty(N * self.room, dtype=torch.uint8)
        self.kernels.linear(self.address, address(x, (*shape, self.in_features)), N, y.data_ptr(), room.data_ptr())
        return y


def packed(weight_ED: Tensor, columns: int) -> Tensor:
    """[E, D] -> [E / columns, D / 4, columns, 4]: some columns side by side, four numbers of each together; rounded up
    with 0, D to a multiple of 8."""
    E, D = weight_ED.shape
    whole = F.pad(weight_ED, (0, -D % 8, 0, -E % columns))
    fours = whole.view(torch.int32).view(-1, columns, whole.shape[1] // 4)
    return fours.transpose(1, 2).contiguous().view(torch.int8)


def packed_multipliers(multipliers_EG: Tensor, columns: int) -> Tensor:
    """[E, G] -> [E / columns, G, columns]"""
    E, G = multipliers_EG.shape
    return F.pad(multipliers_EG, (0, 0, 0, -E % columns)).view(-1, columns, G).transpose(1, 2).contiguous()


class OutputSlice(nn.Module):
    """Some of the outputs of a layer."""

    def __init__(self, layer: Int8Linear, start: int, stop: int) -> None:
        super().__init__()
        self.layer, self.start, self.stop = layer, start, stop

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[..., self.start : self.stop]


class Int8Attention(FusedAttention):
    """Attention with its products in 8 bits; q, k and v of self-attention in one."""

    qkv: Int8Linear

    def project(self, x_BTD: Tensor, source_BSD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if self.cross:
            return super().project(x_BTD, source_BSD)
        E, G = self.q.out_features, self.k.out_features
        q_BTE, k_BSE, v_BSE = self.qkv(x_BTD).split((E, G, G), dim=-1)
        return q_BTE, k_BSE, v_BSE


class Int8FeedForward(FeedForward):
    """A feed-forward network with its products in 8 bits: what comes before `down` in one, activation included if it is
    not gated."""

    first: Int8Linear

    def forward(self, x_BTD: Tensor) -> Tensor:
        if self.gate is None:
            if heard(self.hidden, self.activated):
                return super().forward(x_BTD)
            return self.output(self.down(self.first(x_BTD)))
        if heard(self.hidden, self.gates, self.activated):
            return super().forward(x_BTD)
        up_BTF, gate_BTF = self.first(x_BTD).chunk(2, dim=-1)
        return self.output(self.down(self.activation(gate_BTF).mul_(up_BTF)))


class Int8Vocabulary(nn.Module):
    """The last layer, in 8 bits; a tied one has its own copy of the table."""

    def __init__(self, vocabulary: VocabularyProjection, linear: Int8Linear) -> None:
        super().__init__()
        self.scale = vocabulary.scale
        self.linear = linear
        self.logits, self.probabilities = vocabulary.logits, vocabulary.probabilities

    def forward(self, hidden_BTD: Tensor, table_VD: Tensor) -> Tensor:
        hidden_BTD = hidden_BTD * self.scale if self.scale != 1.0 else hidden_BTD
        logits_BTV = self.logits(self.linear(hidden_BTD))
        if heard(self.probabilities):
            self.probabilities(logits_BTV.softmax(-1))
        return logits_BTV
