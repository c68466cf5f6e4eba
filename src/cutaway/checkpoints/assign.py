"""From tensors to a network: made without numbers, then given each loaded tensor as a parameter."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from cutaway.errors import CheckpointError
from cutaway.models.build import on_meta
from cutaway.models.config import Config, TransformerConfig
from cutaway.models.network import Network

_DEEPEST = 1000  # blocks: to outline one takes milliseconds
_LARGEST = 2**55  # numbers of a tensor: torch counts the bytes of several in 64 bits


def on_meta_safely(config: Config, n_tensors: int, where: object = "the config") -> Network:
    """The network without numbers, unless a config asks for something absurd: `n_tensors` is what its file holds."""
    for half in (config.encoder, config.decoder):
        n_layers = 0 if half is None else _depth(config, half)
        if n_layers > n_tensors:
            raise CheckpointError(f"{where}: {n_layers:,} blocks, but the weights have only {n_tensors:,} tensors")
        if n_layers > _DEEPEST:
            raise CheckpointError(f"{where}: {n_layers:,} blocks; cutaway reads models of up to {_DEEPEST:,}")
    too_large = CheckpointError(f"{where} describes tensors that are larger than any memory")
    try:
        network = on_meta(config)
    except (RuntimeError, OverflowError, MemoryError, TypeError):  # numbers that torch can't even take
        raise too_large from None
    if any(weight.numel() > _LARGEST for weight in network.parameters()):  # of several, torch can't take the sum
        raise too_large
    return network


def _depth(config: Config, half: object) -> int:
    return int(getattr(half, "n_blocks" if isinstance(config, TransformerConfig) else "n_layers"))


def unwrap(network: object) -> Network:
    """The network itself, out of what torch.compile or torch.nn.parallel put around it."""
    for around in ("_orig_mod", "module"):
        network = getattr(network, around, network)
    if not isinstance(network, Network):
        raise CheckpointError(f"a {type(network).__name__} can't be saved: only what cutaway builds or loads")
    if any(weight.is_meta for weight in network.parameters()):
        raise CheckpointError("this network has no numbers yet: there is nothing to save")
    return network


def common_dtype(dtypes: Iterable[torch.dtype]) -> torch.dtype:
    """The one that all weights have, or else the widest."""
    found = set(dtypes)
    if len(found) == 1:
        return found.pop()
    return torch.float64 if torch.float64 in found else torch.float32


def assign_weights(network: Network, tensors: Mapping[str, Tensor]) -> Network:
    """Puts the tensors in, by name; a tensor that is mapped from a file stays so."""
    for name, tensor in tensors.items():
        path, _, last = name.rpartition(".")
        module = network.get_submodule(path)
        if last in module._parameters:
            setattr(module, last, nn.Parameter(tensor))
        else:
            setattr(module, last, tensor)
    return network.eval()
