"""From a config, or a preset's name, to a network."""

import torch
from torch import nn

from cutaway.errors import ConfigError
from cutaway.models.config import Config, TransformerConfig
from cutaway.models.init import initialize
from cutaway.models.network import Network
from cutaway.models.presets import resolve
from cutaway.models.recurrent import Recurrent
from cutaway.models.transformer import Transformer


def on_meta(config: Config | str) -> Network:
    """The network without its numbers: shapes only, on torch's meta device. A 7B model takes no memory."""
    config = resolve(config)
    with torch.device("meta"):
        return Transformer(config) if isinstance(config, TransformerConfig) else Recurrent(config)


def empty(config: Config | str) -> Network:
    """The network with memory for its numbers, yet to be filled: what loading a checkpoint starts from."""
    network = on_meta(config)
    for module in network.modules():  # not to_empty(): on the meta device it loads torch's compiler, 0.7 s
        for name, weight in module.named_parameters(recurse=False):
            setattr(module, name, nn.Parameter(torch.empty(weight.shape, dtype=weight.dtype)))
    return network.eval()


def build(config: Config | str, seed: int = 0) -> Network:
    """A network with its first weights, as its paper draws them; in evaluation mode until `.train()`."""
    if type(seed) is not int or not -(2**63) <= seed < 2**64:  # before memory is taken
        raise ConfigError(f"seed={seed!r} must be a whole number of at most 64 bits")
    return initialize(empty(config), seed)
