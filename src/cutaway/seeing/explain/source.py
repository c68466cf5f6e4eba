"""The numbers of a trace that rules read: its values, and the weights, the config and the inputs of its network."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cutaway.errors import InputError
from cutaway.models.config import Config, RecurrentConfig, RecurrentStackConfig, StackConfig, TransformerConfig
from cutaway.seeing.explain.expression import Number, Place, Vector

if TYPE_CHECKING:
    from cutaway.seeing.trace.trace import Trace


class Source:
    """Reads single numbers and rows from the tensors of a trace. `name`: the value that is being explained."""

    def __init__(self, trace: "Trace", name: str) -> None:
        self.trace, self.name = trace, name
        self.epsilon = self.smallest = 0.0  # of the coarsest tensor that was read
        if trace.run.config is None:
            raise InputError(
                "this is the trace of one part of a network, whose inputs have no names; "
                "trace the whole network to have its numbers explained"
            )
        self.config: Config = trace.run.config

    # Values and weights

    def number(self, name: str, *at: int) -> Number:
        return self._number(self._value(name), name, at)

    def vector(self, name: str, *at: int | None) -> Vector:
        return self._vector(self._value(name), name, at)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._value(name).shape)

    def weight(self, name: str, *at: int) -> Number:
        return self._number(self.weight_tensor(name), name, at)

    def weights(self, name: str, *at: int | None, start: int = 0, length: int | None = None) -> Vector:
        return self._vector(self.weight_tensor(name), name, at, start, length)

    def has_weight(self, name: str) -> bool:
        return name in self.trace.run.weights

    def weight_tensor(self, name: str) -> Tensor:
        weight = self.trace.run.weights.get(name)
        if weight is None:
            raise InputError(
                f"'{self.name}' is computed from the weight '{name}', which this trace does not have: "
                "weights are not saved with it; trace the text again"
            )
        return self._read(weight)

    def _value(self, name: str) -> Tensor:
        if name not in self.trace:
            raise InputError(
                f"'{self.name}' is computed from '{name}', which this trace did not keep; trace again with keep=\"*\""
            )
        return self._read(self.trace[name])

    def _read(self, tensor: Tensor) -> Tensor:
        precision = torch.finfo(tensor.dtype)
        self.epsilon = max(self.epsilon, precision.eps)
        self.smallest = max(self.smallest, precision.tiny * precision.eps)
        return tensor

    @staticmethod
    def _number(tensor: Tensor, name: str, at: tuple[int, ...]) -> Number:
        return Number(float(tensor[at]), name, at)

    @staticmethod
    def _vector(tensor: Tensor, name: str, at: Place, start: int = 0, length: int | None = None) -> Vector:
        along = slice(start, None if length is None else start + length)
        values = tensor[tuple(along if index is None else index for index in at)].tolist()
        return Vector(tuple(values), name, at, start)

    # The config

    @property
    def is_encoder_decoder(self) -> bool:
        return self.config.encoder is not None and self.config.decoder is not None

    @property
    def last_side(self) -> str:
        """The stack whose output the head reads."""
        return "encoder" if self.config.decoder is None else "decoder"

    def stack(self, side: str) -> StackConfig:
        stack = self.config.encoder if side == "encoder" else self.config.decoder
        assert isinstance(stack, StackConfig)
        return stack

    @property
    def transformer(self) -> TransformerConfig:
        assert isinstance(self.config, TransformerConfig)
        return self.config

    @property
    def recurrent(self) -> RecurrentConfig:
        assert isinstance(self.config, RecurrentConfig)
        return self.config

    @property
    def recurrent_encoder(self) -> RecurrentStackConfig:
        assert self.recurrent.encoder is not None
        return self.recurrent.encoder

    # The network's inputs

    def argument(self, name: str) -> Tensor | None:
        value = self.trace.run.inputs.get(name)
        assert value is None or isinstance(value, Tensor)
        return value

    def input(self, side: str) -> Tensor:
        """The tokens or images that a stack reads."""
        value = self.argument("target" if self.is_encoder_decoder and side == "decoder" else "tokens")
        if value is None:
            raise InputError(f"'{self.name}' is computed from inputs, which this trace does not have; trace again")
        return value

    def mask_name(self, side: str) -> str:
        return "target_mask" if self.is_encoder_decoder and side == "decoder" else "mask"

    def mask(self, side: str) -> Tensor | None:
        """[B, T], True = a real token; None: all tokens are."""
        return self.argument(self.mask_name(side))

    def real(self, side: str, b: int, n: int) -> list[bool]:
        """For each of the n tokens of a row, whether it is a real one."""
        mask = self.mask(side)
        return [True] * n if mask is None else [bool(real) for real in mask[b].tolist()]
