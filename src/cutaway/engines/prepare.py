"""A network made ready to run, and only to run: what training or changing it would need is out of the way."""

import copy

import torch
from torch import nn

from cutaway.models.network import Network
from cutaway.parts.tap import taps


def twin(network: Network, dtype: torch.dtype | None = None) -> Network:
    """The same network again: other modules, but the same weights and taps, so that who listens to one hears both.

    Weights of another dtype than asked for are copied.
    """
    kept = [weight for weight in (*network.parameters(), *network.buffers()) if dtype in (None, weight.dtype)]
    shared = {id(each): each for each in (*kept, *taps(network).values())}
    other = copy.deepcopy(network, shared).eval()
    if dtype is not None and any(weight.dtype != dtype for weight in network.parameters()):
        other = other.to(dtype)
    return other


def on_cpu(network: Network) -> bool:
    return all(weight.device.type == "cpu" for weight in network.parameters())


def bypass_module_call(network: Network) -> None:
    """Modules and weights found as plain attributes, and called without a look at torch's hooks, of which a twin has
    none (taps are heard as ever).

    Both are written in Python, to be able to change a network while it runs: fifty look-ups and a dozen calls for a
    block of a step, which took half of a small model's time.
    """
    quick: dict[type[nn.Module], type[nn.Module]] = {}
    for module in network.modules():
        for held in (module._modules, module._parameters, module._buffers):
            module.__dict__.update(held)
        kind = type(module)
        if kind.__call__ is nn.Module.__call__:
            if kind not in quick:
                quick[kind] = type(kind.__name__, (kind,), {"__call__": kind.forward})
            module.__class__ = quick[kind]
