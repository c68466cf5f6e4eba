"""A network in 8 bits: weights are quantised once, activations when they come."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from cutaway.engines.fused_modules import install_fused_modules
from cutaway.engines.fused_stack import install_fused_stacks
from cutaway.engines.int8_layers import (
    FUSED,
    Int8Attention,
    Int8FeedForward,
    Int8Linear,
    Int8Vocabulary,
    OutputSlice,
)
from cutaway.engines.prepare import bypass_module_call, on_cpu, twin
from cutaway.engines.quantization import QuantizedWeight, quantized, weight_format
from cutaway.errors import ConfigError
from cutaway.models.heads import VocabularyProjection
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
            weight = QuantizedWeight(numbers, multipliers, scales, weight_format().group)
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
    if isinstance(vocabulary, VocabularyProjection):
        weight = copied.table if vocabulary.weight is None else vocabulary.weight
        bias = None if vocabulary.bias is None else vocabulary.bias.detach().float()
        assert isinstance(copied.head, nn.Module)
        assert isinstance(weight, Tensor)
        copied.head.vocabulary = Int8Vocabulary(vocabulary, make.layer("head.vocabulary", [weight], bias))
    install_fused_modules(copied)
    install_fused_stacks(copied)
    bypass_module_call(copied)
    return copied


def _attention(module: Attention, name: str, make: Quantizer) -> None:
    made = {part: make.linear(f"{name}.{part}", getattr(module, part)) for part in ("q", "k", "v") if module.cross}
    if not module.cross:
        made["qkv"] = make.linear(f"{name}.qkv", module.q, module.k, module.v)
    made["out"] = make.linear(f"{name}.out", module.out)
    _become(module, Int8Attention, made)


def _feedforward(module: FeedForward, name: str, make: Quantizer) -> None:
    down = make.linear(f"{name}.down", module.down)
    if module.gate is not None:
        first, n = make.linear(f"{name}.first", module.up, module.gate), module.up.out_features
        slices = {"up": OutputSlice(first, 0, n), "gate": OutputSlice(first, n, 2 * n)}  # for those who look
        _become(module, Int8FeedForward, {"first": first, "down": down, **slices})
        return
    up = make.linear(f"{name}.up", module.up)
    activation = FUSED.get(module.activation)
    if activation is not None and up.kernels is not None:
        _become(module, Int8FeedForward, {"first": up.activated(activation), "up": up, "down": down})
    else:
        _become(module, FeedForward, {"up": up, "down": down})


def _become(module: nn.Module, kind: type[nn.Module], layers: Mapping[str, nn.Module]) -> None:
    module.__class__ = kind
    for name, layer in layers.items():
        setattr(module, name, layer)
