"""What every engine can be asked: write texts, stream one, read a batch."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, Self

import torch
from torch import Tensor

from cutaway.generation import Generation, Prompt, Token, Written

LOG = logging.getLogger("cutaway")

Precision = Literal["float32", "bfloat16", "float16", "int8"]
EngineName = Literal["native", "ctranslate2"]
Decode = Callable[[Sequence[int]], str]
"""Tokens to text, for stop strings."""


class Engine(ABC):
    """One model, ready to run in one precision."""

    name: EngineName
    precision: Precision
    device = torch.device("cpu")  # where inputs of read() belong
    weights: tuple[tuple[int, int], ...] = ()  # the addresses and versions of those it was made of

    def announced(self, model: str) -> Self:
        """Itself, after the log was told what runs the model; on a terminal the commands show that."""
        place = "" if self.device.type == "cpu" else f" on {self.device}"
        LOG.info("%s: %s, %s%s", model, self.name, self.precision, place)
        return self

    def serving(self, generation: Generation) -> "Engine":
        """Which engine writes with these options: itself, or the one that it hands them over to."""
        return self

    @abstractmethod
    def write(
        self, prompts: Iterable[Prompt], generation: Generation, decode: Decode | None = None
    ) -> Iterator[list[Written]]:
        """For each prompt, in the order asked, its `n_best` texts, best first. Takes prompts as it needs them."""

    @abstractmethod
    def stream(self, prompt: Prompt, generation: Generation, decode: Decode | None = None) -> Iterator[Token]:
        """One text, token by token as it is written. Search must be greedy or sampling."""

    @abstractmethod
    def read(self, inputs: Tensor, mask: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """What the network says of one batch, as `network(inputs, mask=mask)` does."""

    @abstractmethod
    def hidden(self, inputs: Tensor, mask: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """What the last block gives for one batch, before the head: [B, T, D]."""
