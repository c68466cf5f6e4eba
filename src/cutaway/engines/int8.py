"""A network in 8 bits: weights are quantised once, activations when they come."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from cutaway.engines.int8_layers import FUSED, Gated, Int8Linear, Int8Vocabulary, Part
from cutaway.engines.prepare import on_cpu, twin, with_quick_calls
from cutaway.engines.quantization import QuantizedWeight, form, quantized
from cutaway.engines.stacks import with_whole_stacks
from cutaway.engines.steps import with_quick_steps
from cutaway.errors import ConfigError
from cutaway.models.heads import Vocabulary
from cutaway.models.network import Network
from cutaway.parts.attention import Attention
from cutaway.parts.feedforward import FeedForward


class Quantizer:
    """Makes int8 layers of float ones, or takes their weights from `stored`, what an earlier one made."""

    def __init__(self, stored: Mapping[str, Tensor] | None = None) -> None:
        self.stored = stored
        self.made: dict[str, Tensor] = {}
        """What was quantised, by name: what to keep."""

    def linear(self, name: str, *layers: nn.Linear) -> Int8Linear:
        """One layer for several that read the same x: their outputs are side by side."""
        biases = [torch.zeros(layer.out_features) if layer.bias is None else layer.bias.detach() for layer in layers]
        biased = any(layer.bias is not None for layer in layers)
        return self.layer(name, [layer.weight for layer in layers], torch.cat(biases).float() if biased else None)

    def layer(self, name: str, weights: list[Tensor], bias: Tensor | None) -> Int8Linear:
        if self.stored is None:
            weight = quantized(weights[0] if len(weights) == 1 else torch.cat(weights))
        else:
            numbers, multipliers, scales = (self.stored[f"{name}.{part}"] for part in QuantizedWeight.NAMES)
            weight = QuantizedWeight(numbers, multipliers, scales, form().group)
            weight.check(sum(map(len, weights)), weights[0].shape[1])
        self.made |= {f"{name}.{part}": tensor for part, tensor in weight.tensors.items()}
        return Int8Linear(weight, bias)


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
    with_whole_stacks(copied)
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
