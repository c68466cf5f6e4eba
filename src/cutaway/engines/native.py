"""PyTorch as it is: the network itself, in the precision of its weights."""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from cutaway.decoding.generation import Generation, Prompt, Token, Written
from cutaway.engines.engine import Decode, Engine
from cutaway.models.network import Network


class Native(Engine):
    name = "native"
    precision = "float32"

    def __init__(self, network: Network) -> None:
        self.network = network.eval()

    def write(
        self, prompts: Iterable[Prompt], generation: Generation, decode: Decode | None = None
    ) -> Iterator[list[Written]]:
        raise NotImplementedError

    def stream(self, prompt: Prompt, generation: Generation, decode: Decode | None = None) -> Iterator[Token]:
        raise NotImplementedError

    def read(self, inputs: Tensor, mask: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        with torch.inference_mode():
            return self.network(inputs, mask=mask, segments=segments)
