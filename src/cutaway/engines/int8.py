"""Linear layers in 8 bits: a quarter of the memory, four times the products a second.

Weights are quantised once, per output channel; activations when they come, each token from its smallest number to its
largest (what comes out of a ReLU or GELU is hardly ever below zero: half of the steps would be lost on it). Sums are
exact integers, so a token's product does not depend on its neighbours in the batch.
"""

import copy
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from cutaway.engines.kernels import Kernels, kernels
from cutaway.engines.prepare import on_cpu, twin, with_quick_calls
from cutaway.engines.steps import with_quick_steps
from cutaway.errors import ConfigError
from cutaway.models.heads import Vocabulary
from cutaway.models.network import Network
from cutaway.parts.attention import Attention
from cutaway.parts.feedforward import ACTIVATIONS, Activation, FeedForward
from cutaway.parts.tap import heard

FEW = 8  # rows up to which reading the weights takes longer than multiplying: measured, see docs/performance.md
_NUMBERED: tuple[Activation, ...] = ("relu", "gelu", "gelu_tanh", "silu")
FUSED = {ACTIVATIONS[name]: number for number, name in enumerate(_NUMBERED, start=1)}
"""The activations of kernels.c, and their numbers there."""
SMALLEST = 1e-30  # the largest number of a row of zeros


def quantized(weight_ED: Tensor) -> tuple[Tensor, Tensor]:
    """W ≈ q · scales, q from -127 to 127 and a scale for each row."""
    wide = weight_ED.detach().float()
    scales_E = wide.abs().amax(-1).clamp_(min=SMALLEST) / 127
    return (wide / scales_E.unsqueeze(-1)).round_().to(torch.int8), scales_E


class Int8Linear(nn.Module):
    """y = x Wᵀ + b, with W and x in 8 bits. x [..., D] -> [..., E]"""

    weight: Tensor  # [E, D]
    scales: Tensor  # [E]
    sums: Tensor  # [E]: of each row of the weight
    totals: Tensor  # [E]: scales · sums
    bias: Tensor | None

    def __init__(self, weight: Tensor, scales: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.activation = 0
        self.out_features, self.in_features = weight.shape
        self.register_buffer("weight", weight)
        self.register_buffer("scales", scales)
        self.register_buffer("sums", weight.sum(-1, dtype=torch.int32), persistent=False)
        self.register_buffer("totals", scales * self.sums, persistent=False)
        self.register_buffer("bias", bias, persistent=False)
        self.kernels = kernels()
        # Looked up once: a step of a small model spends more time on asking than on multiplying.
        self.addresses = tuple(
            None if each is None else each.data_ptr() for each in (weight, scales, self.sums, self.totals, bias)
        )

    def rows(self, start: int, stop: int) -> "Int8Linear":
        """The layer that gives these of its outputs."""
        bias = None if self.bias is None else self.bias[start:stop]
        return Int8Linear(self.weight[start:stop], self.scales[start:stop], bias)

    def activated(self, activation: int) -> "Int8Linear":
        """activation(x Wᵀ + b) in one go; its number is that of kernels.c."""
        layer = copy.copy(self)
        layer.activation = activation
        return layer

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape
        return self.product(x.reshape(-1, shape[-1])).view(*shape[:-1], self.out_features)

    def product(self, x_ND: Tensor) -> Tensor:
        """[N, D] -> [N, E]"""
        if self.kernels is None:
            return self._by_torch(x_ND)
        (N, D), E = x_ND.shape, self.out_features
        weight, scales, sums, totals, bias = self.addresses
        x_ND, y_NE = x_ND.contiguous(), torch.empty(N, E)
        if N <= FEW and E >= 4:
            room = torch.empty(N * D, dtype=torch.uint8)
            self.kernels.few_rows(
                x_ND.data_ptr(), N, D, weight, E, scales, sums, totals, bias, self.activation,
                room.data_ptr(), y_NE.data_ptr(),
            )  # fmt: skip
            return y_NE
        return self.restored(*self.sums_of(*quantized_rows(self.kernels, x_ND)))

    def sums_of(self, q_ND: Tensor, scales_N: Tensor, lows_N: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Σ q w, and what it has to be restored with."""
        return torch._int_mm(q_ND, self.weight.t()), scales_N, lows_N

    def restored(self, sums_NE: Tensor, scales_N: Tensor, lows_N: Tensor) -> Tensor:
        """activation(x Wᵀ + b) of the sums."""
        assert self.kernels is not None
        (N, E), (_, scales, _, totals, bias) = sums_NE.shape, self.addresses
        y_NE = torch.empty(N, E)
        self.kernels.dequantize(
            sums_NE.data_ptr(), N, E, scales_N.data_ptr(), lows_N.data_ptr(), scales, totals, bias, self.activation,
            y_NE.data_ptr(),
        )  # fmt: skip
        return y_NE

    def quantized_again(self, sums_NE: Tensor, scales_N: Tensor, lows_N: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """`restored`, quantised for the layer that follows."""
        assert self.kernels is not None
        (N, E), (_, scales, _, totals, bias) = sums_NE.shape, self.addresses
        q_NE, new_scales_N, new_lows_N = torch.empty(N, E, dtype=torch.int8), torch.empty(N), torch.empty(N)
        self.kernels.requantize(
            sums_NE.data_ptr(), N, E, scales_N.data_ptr(), lows_N.data_ptr(), scales, totals, bias, self.activation,
            q_NE.data_ptr(), new_scales_N.data_ptr(), new_lows_N.data_ptr(),
        )  # fmt: skip
        return q_NE, new_scales_N, new_lows_N

    def _by_torch(self, x_ND: Tensor) -> Tensor:
        """The same in torch's own steps, where no kernels could be built."""
        low_N1, most_N1 = x_ND.amin(-1, keepdim=True), x_ND.amax(-1, keepdim=True)
        span_N1 = most_N1 - low_N1
        up_N1 = torch.where(span_N1 > 0, 255 / span_N1, 0.0)
        q_ND = ((x_ND - low_N1) * up_N1).add_(0.5).floor_().sub_(128).to(torch.int8)
        scale_N1 = span_N1 / 255
        y_NE = torch._int_mm(q_ND, self.weight.t()) * self.scales
        y_NE = torch.addcmul((low_N1 + 128 * scale_N1) * self.totals, y_NE, scale_N1)
        return y_NE if self.bias is None else y_NE.add_(self.bias)


def quantized_rows(kernels: Kernels, x_ND: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """x ≈ low + scale · (q + 128) for each row: q, scales, lows."""
    N, D = x_ND.shape
    q_ND, scales_N, lows_N = torch.empty(N, D, dtype=torch.int8), torch.empty(N), torch.empty(N)
    kernels.quantize(x_ND.data_ptr(), N, D, q_ND.data_ptr(), scales_N.data_ptr(), lows_N.data_ptr())
    return q_ND, scales_N, lows_N


class TwoLayers(nn.Module):
    """activation(x W₁ + b₁) W₂ + b₂: what is between the two is quantised where it is made."""

    def __init__(self, up: Int8Linear, down: Int8Linear) -> None:
        super().__init__()
        self.up, self.down = up, down

    def forward(self, x_BTD: Tensor) -> Tensor:
        shape = x_BTD.shape
        x_ND = x_BTD.reshape(-1, shape[-1])
        if len(x_ND) <= FEW or self.up.kernels is None:
            return self.down(self.up(x_BTD))
        sums = self.up.sums_of(*quantized_rows(self.up.kernels, x_ND.contiguous()))
        return self.down.restored(*self.down.sums_of(*self.up.quantized_again(*sums))).view(shape)


class Gated(nn.Module):
    """act(x W_gate) · x W₁, with both products in one."""

    def __init__(self, joined: Int8Linear, activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.joined, self.activation = joined, activation

    def forward(self, x_BTD: Tensor) -> Tensor:
        up_BTF, gate_BTF = self.joined(x_BTD).chunk(2, dim=-1)
        return self.activation(gate_BTF).mul_(up_BTF)


class Int8Vocabulary(nn.Module):
    """The last layer, in 8 bits; a tied one has its own copy of the table."""

    def __init__(self, vocabulary: Vocabulary, linear: Int8Linear) -> None:
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


class Quantizer:
    """Makes int8 layers of float ones, or takes their weights from `stored`, what an earlier one made."""

    def __init__(self, stored: Mapping[str, Tensor] | None = None) -> None:
        self.stored = stored
        self.made: dict[str, Tensor] = {}
        """Weights and scales by name: what to keep."""

    def linear(self, name: str, *layers: nn.Linear) -> Int8Linear:
        """One layer for several that read the same x: their outputs are side by side."""
        biases = [torch.zeros(layer.out_features) if layer.bias is None else layer.bias.detach() for layer in layers]
        biased = any(layer.bias is not None for layer in layers)
        return self.layer(name, [layer.weight for layer in layers], torch.cat(biases).float() if biased else None)

    def layer(self, name: str, weights: list[Tensor], bias: Tensor | None) -> Int8Linear:
        names = f"{name}.weight", f"{name}.scales"
        if self.stored is not None:
            weight, scales = (self.stored[each] for each in names)
            shape = sum(len(each) for each in weights), weights[0].shape[1]
            if (weight.shape, weight.dtype, scales.shape) != (shape, torch.int8, shape[:1]):
                raise ValueError(f"{names[0]} is not the weight of this layer")
        else:
            weight, scales = quantized(weights[0] if len(weights) == 1 else torch.cat(weights))
        self.made.update(zip(names, (weight, scales), strict=True))
        return Int8Linear(weight, scales, bias)


def in_int8(network: Network, quantizer: Quantizer | None = None) -> Network:
    """The network with its large products in 8 bits. All else, and who listens to it, is shared with the original."""
    make = quantizer or Quantizer()
    if not on_cpu(network):
        raise ConfigError("int8 runs on the CPU, and this network is elsewhere; move it there with .to('cpu')")
    copied = twin(network, torch.float32)
    for name, module in list(copied.named_modules()):
        if isinstance(module, Attention):
            _attention(module, name, make)
        elif isinstance(module, FeedForward):
            _feedforward(module, name, make)
    vocabulary = getattr(copied.head, "vocabulary", None)
    if isinstance(vocabulary, Vocabulary):
        weight = copied.table if vocabulary.weight is None else vocabulary.weight
        bias = None if vocabulary.bias is None else vocabulary.bias.detach().float()
        assert isinstance(copied.head, nn.Module)
        assert isinstance(weight, Tensor)
        copied.head.vocabulary = Int8Vocabulary(vocabulary, make.layer("head.vocabulary", [weight], bias))
    with_quick_steps(copied)
    with_quick_calls(copied)
    return copied


def _attention(module: Attention, name: str, make: Quantizer) -> None:
    if module.cross:
        for part in ("q", "k", "v"):
            setattr(module, part, make.linear(f"{name}.{part}", getattr(module, part)))
    else:
        module.joined = make.linear(f"{name}.joined", module.q, module.k, module.v)
    setattr(module, "out", make.linear(f"{name}.out", module.out))  # noqa: B010  # typed as what it is not any more


def _feedforward(module: FeedForward, name: str, make: Quantizer) -> None:
    down = make.linear(f"{name}.down", module.down)
    if module.gate is not None:
        joined, n = make.linear(f"{name}.joined", module.up, module.gate), module.up.out_features
        module.fused = nn.Sequential(Gated(joined, module.activation), down)
        setattr(module, "up", joined.rows(0, n))  # noqa: B010  # for those who look
        setattr(module, "gate", joined.rows(n, 2 * n))  # noqa: B010
    else:
        up = make.linear(f"{name}.up", module.up)
        activation = FUSED.get(module.activation)
        if activation is not None and up.kernels is not None:
            module.fused = TwoLayers(up.activated(activation), down)
        setattr(module, "up", up)  # noqa: B010
    setattr(module, "down", down)  # noqa: B010
