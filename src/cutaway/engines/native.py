"""cutaway's own engine: the network itself in PyTorch, in float32, half precision or with int8 products."""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from cutaway.decoding.plan import Plan
from cutaway.decoding.search import generate, generate_stream
from cutaway.devices import DTYPES, memory_explained
from cutaway.engines.engine import Engine, EngineName, Precision
from cutaway.engines.fused_modules import install_fused_modules
from cutaway.engines.int8 import Quantizer, in_int8
from cutaway.engines.prepare import bypass_module_call, on_cpu, twin
from cutaway.generation import Prompt, Token, Written
from cutaway.models.network import Network
from cutaway.models.usage import Usage


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

    def generate(self, plan: Plan, prompts: Iterable[Prompt | None]) -> Iterator[list[Written]]:
        return generate(plan, prompts)

    def generate_stream(self, plan: Plan, prompt: Prompt) -> Iterator[Token]:
        return generate_stream(plan, prompt)

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
