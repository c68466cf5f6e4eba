"""Linear layers in 8 bits: a quarter of the memory, four times the products a second.

Weights are quantised once, per output channel; activations when they come, each token from its smallest number to its
largest (what comes out of a ReLU or GELU is hardly ever below zero: half of the steps would be lost on it). Sums are
exact integers, so a token's product does not depend on its neighbours in the batch.
"""

import copy
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cutaway.engines.kernels import kernels
from cutaway.engines.prepare import on_cpu, twin, with_quick_calls
from cutaway.engines.steps import with_quick_steps
from cutaway.errors import ConfigError
from cutaway.models.heads import Vocabulary
from cutaway.models.network import Network
from cutaway.parts.attention import Attention
from cutaway.parts.feedforward import ACTIVATIONS, Activation, FeedForward
from cutaway.parts.tap import heard

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
    """activation(x Wᵀ + b), with W and x in 8 bits. x [..., D] -> [..., E]"""

    scales: Tensor  # [E]
    sums: Tensor  # [E]: of each row of the weight
    totals: Tensor  # [E]: scales · sums
    bias: Tensor | None

    def __init__(self, weight_ED: Tensor, scales_E: Tensor, bias_E: Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight_ED.shape
        self.register_buffer("scales", scales_E)
        self.register_buffer("sums", weight_ED.sum(-1, dtype=torch.int32))
        self.register_buffer("totals", scales_E * self.sums)
        self.register_buffer("bias", bias_E)
        self.activation = 0  # its number in kernels.c
        built = kernels()
        self.kernels = built if built is not None and built.multiplies_bytes else None
        self.weight = weight_ED if self.kernels is None else packed(weight_ED)
        # Looked up once: a step of a small model spends more time on asking than on multiplying.
        tensors = (self.weight, scales_E, self.sums, self.totals, bias_E)
        self.addresses = tuple(None if each is None else each.data_ptr() for each in tensors)

    def activated(self, activation: int) -> "Int8Linear":
        """The same layer and an activation, in one go; its number is that of kernels.c."""
        layer = copy.copy(self)
        layer.activation = activation
        return layer

    def forward(self, x: Tensor) -> Tensor:
        *shape, D = x.shape
        if self.kernels is None:
            return self._by_torch(x.reshape(-1, D)).view(*shape, -1)
        x, N, E = x.contiguous(), x.numel() // D, self.out_features
        weight, scales, sums, totals, bias = self.addresses
        y = torch.empty(*shape, E)
        room = torch.empty(N * (8 + (D + 3) // 4 * 4), dtype=torch.uint8)
        self.kernels.linear(
            x.data_ptr(), N, D, weight, E, scales, sums, totals, bias, self.activation, room.data_ptr(), y.data_ptr()
        )  # fmt: skip
        return y

    def _by_torch(self, x_ND: Tensor) -> Tensor:
        """The same in torch's own steps, without an activation: where no kernels could be built."""
        low_N1, most_N1 = x_ND.amin(-1, keepdim=True), x_ND.amax(-1, keepdim=True)
        span_N1 = most_N1 - low_N1
        up_N1 = torch.where(span_N1 > 0, 255 / span_N1, 0.0)
        q_ND = ((x_ND - low_N1) * up_N1).add_(0.5).floor_().sub_(128).to(torch.int8)
        scale_N1 = span_N1 / 255
        y_NE = torch._int_mm(q_ND, self.weight.t()) * self.scales
        y_NE = torch.addcmul((low_N1 + 128 * scale_N1) * self.totals, y_NE, scale_N1)
        return y_NE if self.bias is None else y_NE.add_(self.bias)


def packed(weight_ED: Tensor) -> Tensor:
    """[E, D] -> [E / 64, D / 4, 64, 4]: 64 columns side by side, four numbers of each together; rounded up with 0."""
    E, D = weight_ED.shape
    whole = F.pad(weight_ED, (0, -D % 4, 0, -E % 64))
    fours = whole.view(torch.int32).view(-1, 64, whole.shape[1] // 4)
    return fours.transpose(1, 2).contiguous().view(torch.int8)


class Part(nn.Module):
    """Some of the outputs of a layer."""

    def __init__(self, layer: Int8Linear, start: int, stop: int) -> None:
        super().__init__()
        self.layer, self.start, self.stop = layer, start, stop

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[..., self.start : self.stop]


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
        setattr(module, "up", Part(joined, 0, n))  # noqa: B010  # for those who look
        setattr(module, "gate", Part(joined, n, 2 * n))  # noqa: B010
    else:
        up = make.linear(f"{name}.up", module.up)
        activation = FUSED.get(module.activation)
        if activation is not None and up.kernels is not None:
            module.fused = nn.Sequential(up.activated(activation), down)
        setattr(module, "up", up)  # noqa: B010
    setattr(module, "down", down)  # noqa: B010
