"""A network made ready to run, and only to run: what training or changing it would need is out of the way."""

import copy

from torch import nn

from cutaway.engines.attention import attend
from cutaway.engines.kernels import kernels
from cutaway.models.network import Network
from cutaway.parts.attention import Attention
from cutaway.parts.tap import taps


def twin(network: Network) -> Network:
    """The same network again: other modules, but the same weights and taps, so that who listens to one hears both."""
    shared = [*network.parameters(), *network.buffers(), *taps(network).values()]
    return copy.deepcopy(network, {id(each): each for each in shared}).eval()


def with_quick_attention(network: Network) -> None:
    """Attention by our kernel where that is faster, if it could be built."""
    if kernels() is not None:
        for module in network.modules():
            if isinstance(module, Attention):
                module.fused = attend


def with_quick_calls(network: Network) -> None:
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
