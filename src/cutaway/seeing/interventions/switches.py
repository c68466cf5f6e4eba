"""Switches: the ideas of a Transformer that can be turned off, and the parts of a network that each is in."""

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from cutaway.models.network import Network
from cutaway.parts.attention import Attention
from cutaway.parts.block import Block
from cutaway.parts.stack import Stack
from cutaway.parts.tap import taps
from cutaway.seeing.interventions.apply import Change, TapValue

Switch = Literal["scaling", "mask", "positions", "residual", "block"]
Places = dict[str, list[Change]]
"""Name of a part -> the changes that turn a switch off there."""


def switches(network: Network) -> list[str]:
    """The names of a network's switches."""
    return [name for name, places in SWITCHES.items() if places(network)]


def _becomes(name: str, source: str) -> Change:
    """Replaces one value by another."""
    return Change(name, lambda now: now.heard[source], (source,))


def _attentions(network: Network) -> dict[str, Attention]:
    return {name: module for name, module in network.named_modules() if isinstance(module, Attention)}


def _scaling(network: Network) -> Places:
    return {
        name: [_becomes(f"{name}.scaled_scores", f"{name}.scores")]
        for name, attention in _attentions(network).items()
        if attention.scale != 1.0
    }


def _mask(network: Network) -> Places:
    return {
        name: [_unmasked(name, f"{side}.relative_bias.output" if stack.relative_bias is not None else None)]
        for side, stack in _stacks(network).items()
        for name, attention in _attentions(network).items()
        if stack.causal and name.startswith(f"{side}.") and not attention.cross
    }


def _unmasked(name: str, bias: str | None) -> Change:
    scaled = f"{name}.scaled_scores"

    def apply(now: TapValue) -> Tensor:
        scores = now.heard[scaled] if bias is None else now.heard[scaled] + now.heard[bias]
        return torch.where(now.value == -math.inf, scores, now.value)

    return Change(f"{name}.masked_scores", apply, (scaled,) if bias is None else (scaled, bias))


def _positions(network: Network) -> Places:
    known = taps(network)
    found: Places = {}
    for side in _stacks(network):
        for name in (f"{side}.embedding.position_vectors", f"{side}.relative_bias.output"):
            if name in known:
                found[name.rpartition(".")[0]] = [Change(name, lambda now: torch.zeros_like(now.value))]
    for name, attention in _attentions(network).items():
        if attention.rotary:
            found[name] = [_becomes(f"{name}.rotated_{each}", f"{name}.{each}") for each in ("queries", "keys")]
    return found


def _residual(network: Network) -> Places:
    known = taps(network)
    sublayers = ("self_attention", "cross_attention", "feedforward")
    names = [f"{block}.{each}" for block in _blocks(network) for each in sublayers]
    return {name: [_becomes(f"{name}_add", f"{name}.output")] for name in names if f"{name}_add" in known}


def _block(network: Network) -> Places:
    return {name: [_becomes(f"{name}.output", f"{name}.input")] for name in _blocks(network)}


def _blocks(network: Network) -> list[str]:
    return [name for name, module in network.named_modules() if isinstance(module, Block)]


def _stacks(network: Network) -> dict[str, Stack]:
    return {side: stack for side, stack in network.named_children() if isinstance(stack, Stack)}


SWITCHES: dict[Switch, Callable[[Network], Places]] = {
    "scaling": _scaling,
    "mask": _mask,
    "positions": _positions,
    "residual": _residual,
    "block": _block,
}
