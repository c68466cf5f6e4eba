"""cutaway's own engine: the network itself in PyTorch, in float32, bfloat16 or with int8 products."""

import copy
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from cutaway.decoding.generation import Generation, Prompt, Token, Written
from cutaway.decoding.search import stream, write
from cutaway.engines.engine import Decode, Engine, EngineName, Precision
from cutaway.engines.int8 import in_int8
from cutaway.models.network import Network
from cutaway.models.usage import Usage


class Native(Engine):
    """A network, prepared for one precision. float32 is the network as it is."""

    name: EngineName = "native"

    def __init__(self, network: Network, usage: Usage, precision: Precision = "float32") -> None:
        self.precision = precision
        self.network = prepared(network, precision).eval()
        self.usage = usage

    def write(
        self, prompts: Iterable[Prompt], generation: Generation, decode: Decode | None = None
    ) -> Iterator[list[Written]]:
        return write(self.network, prompts, generation, self.usage, decode)

    def stream(self, prompt: Prompt, generation: Generation, decode: Decode | None = None) -> Iterator[Token]:
        return stream(self.network, prompt, generation, self.usage, decode)

    def read(self, inputs: Tensor, mask: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        with torch.inference_mode():
            return self.network(inputs, mask=mask, segments=segments)


def prepared(network: Network, precision: Precision) -> Network:
    """The network in that precision; float32 is the network itself."""
    if precision == "int8":
        return in_int8(network)
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    if all(weight.dtype == dtype for weight in network.parameters()):
        return network
    return copy.deepcopy(network).to(dtype)
