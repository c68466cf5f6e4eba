"""cutaway's own engine: the network itself in PyTorch, in float32, half precision or with int8 products."""

from collections.abc import Iterable, Iterator
from typing import TypeVar

import torch
from torch import Tensor

from cutaway.decoding.search import stream, write
from cutaway.devices import DTYPES, memory_explained
from cutaway.engines.engine import Decode, Engine, EngineName, Precision
from cutaway.engines.fused_modules import install_fused_modules
from cutaway.engines.int8 import Quantizer, in_int8
from cutaway.engines.prepare import bypass_module_call, on_cpu, twin
from cutaway.generation import Generation, Prompt, Token, Written
from cutaway.models.network import Network
from cutaway.models.usage import Usage

X = TypeVar("X")


class Native(Engine):
    """A network in one precision, with the same weights or copies of them."""

    name: EngineName = "native"

    def __init__(
        self, network: Network, usage: Usage, precision: Precision = "float32", quantizer: Quantizer | None = None
    ) -> None:
        """`quantizer` gives the weights of int8, if they were made before."""
        self.precision, self.device = precision, network.device
        with memory_explained(self.device):
            self.network = in_int8(network, quantizer) if precision == "int8" else in_precision(network, precision)
        self.usage = usage

    def write(
        self, prompts: Iterable[Prompt], generation: Generation, decode: Decode | None = None
    ) -> Iterator[list[Written]]:
        return self._explained(write(self.network, prompts, generation, self.usage, decode))

    def stream(self, prompt: Prompt, generation: Generation, decode: Decode | None = None) -> Iterator[Token]:
        return self._explained(stream(self.network, prompt, generation, self.usage, decode))

    def _explained(self, texts: Iterator[X]) -> Iterator[X]:
        with memory_explained(self.device):
            yield from texts

    def read(self, inputs: Tensor, mask: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        with torch.inference_mode(), memory_explained(self.device):
            return self.network(inputs, mask=mask, segments=segments)

    def hidden(self, inputs: Tensor, mask: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        with torch.inference_mode(), memory_explained(self.device):
            return self.network.hidden(inputs, mask=mask, segments=segments)


def in_precision(network: Network, precision: Precision) -> Network:
    """A network with the same weights, or copies in another dtype, ready to run."""
    ready = twin(network, DTYPES[precision])
    if precision == "float32" and on_cpu(network):
        install_fused_modules(ready)
    bypass_module_call(ready)
    return ready
