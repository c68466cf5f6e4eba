"""The interface of every engine: write texts, stream one, read a batch."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Literal, Self

import torch
from torch import Tensor

from cutaway.decoding.plan import Decode, Plan
from cutaway.generation import Generation, Prompt, Token, Written
from cutaway.models.network import Network
from cutaway.models.usage import Usage

LOG = logging.getLogger("cutaway")

Precision = Literal["float32", "bfloat16", "float16", "int8"]
EngineName = Literal["native", "ctranslate2"]


class Engine(ABC):
    """One model, ready to run in one precision."""

    name: EngineName
    precision: Precision
    network: Network
    usage: Usage
    device = torch.device("cpu")  # where inputs of read() belong
    weights: tuple[tuple[int, int], ...] = ()  # the addresses and versions of those it was made of

    def logged(self, model: str) -> Self:
        """Itself, after a line to the log about what runs the model; on a terminal the commands show it."""
        place = "" if self.device.type == "cpu" else f" on {self.device}"
        LOG.info("%s: %s, %s%s", model, self.name, self.precision, place)
        return self

    def engine_for(self, generation: Generation) -> "Engine":
        """Which engine writes with these options: itself, or the one that it hands them over to."""
        return self

    def plan(self, generation: Generation, decode: Decode | None = None) -> Plan:
        """The options, checked against the network: what generate() and generate_stream() take."""
        return Plan(self.network, generation, self.usage, decode)

    @abstractmethod
    def generate(self, plan: Plan, prompts: Iterable[Prompt | None]) -> Iterator[list[Written]]:
        """For each prompt, in the order asked, its `n_best` texts, best first; None is left out and has none. Takes
        prompts as it needs them."""

    @abstractmethod
    def generate_stream(self, plan: Plan, prompt: Prompt) -> Iterator[Token]:
        """One text, token by token as it is written. Search must be greedy or sampling."""

    def write(
        self, prompts: Iterable[Prompt], generation: Generation, decode: Decode | None = None
    ) -> Iterator[list[Written]]:
        """generate() from options instead of a plan, by the engine that has them all."""
        engine = self.engine_for(generation)
        return engine.generate(engine.plan(generation, decode), prompts)

    def stream(self, prompt: Prompt, generation: Generation, decode: Decode | None = None) -> Iterator[Token]:
        """generate_stream() from options instead of a plan, by the engine that has them all."""
        engine = self.engine_for(generation)
        return engine.generate_stream(engine.plan(generation, decode), prompt)

    @abstractmethod
    def read(self, inputs: Tensor, mask: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """What the network says of one batch, as `network(inputs, mask=mask)` does."""

    @abstractmethod
    def hidden(self, inputs: Tensor, mask: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """What the last block gives for one batch, before the head: [B, T, D]."""
