"""The calls every model answers, whichever half it has and however it is built."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from cutaway.errors import InputError
from cutaway.models.config import Config
from cutaway.parts.cache import Cache, Memory


class Network(nn.Module, ABC):
    """encode(source) -> memory; decode(target, memory) -> logits. A model with one half answers one of the two.

    `network(tokens)` runs whichever halves there are: `network(source, target)` with both. Search, training and tracing
    know these calls only. Masks are boolean, True = a real token.
    """

    config: Config

    @abstractmethod
    def encode(self, source: Tensor, mask: Tensor | None = None, segments: Tensor | None = None) -> Memory:
        """tokens [B, S] or images [B, C, I, J] -> the encoder's output. `mask` [B, S]."""

    @abstractmethod
    def decode_hidden(
        self, tokens: Tensor, memory: Memory | None = None, cache: Cache | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """`decode` up to the head: [B, T, D]. Losses that never hold all logits at once start here."""

    @abstractmethod
    def apply_head(self, hidden_BTD: Tensor, mask: Tensor | None = None) -> Tensor:
        """The head on hidden states: logits or a vector; the states themselves if there is no head."""

    @property
    def device(self) -> torch.device:
        """Where its weights are."""
        return next(self.parameters()).device

    @property
    def has_encoder(self) -> bool:
        return self.config.encoder is not None

    @property
    def has_decoder(self) -> bool:
        return self.config.decoder is not None

    def decode(
        self, tokens: Tensor, memory: Memory | None = None, cache: Cache | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """tokens [B, T] -> logits [B, T, V]. With a cache, give only the tokens that are new since the last call.

        A step that fails (a listener raised, or Ctrl-C was pressed) leaves the cache as it was: it can be repeated.
        """
        if not isinstance(cache, Cache):
            return self.apply_head(self.decode_hidden(tokens, memory, cache, mask), mask)
        before = cache.length, cache.mask, cache.state
        try:
            return self.apply_head(self.decode_hidden(tokens, memory, cache, mask), mask)
        except BaseException:
            cache.length, cache.mask, cache.state = before
            raise

    def hidden(
        self,
        tokens: Tensor,
        target: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        target_mask: Tensor | None = None,
        segments: Tensor | None = None,
    ) -> Tensor:
        """`forward` up to the head: [B, T, D]."""
        if target is None and self.has_encoder and self.has_decoder:
            raise InputError("an encoder-decoder needs two inputs: network(source, target)")
        if target is not None and not (self.has_encoder and self.has_decoder):
            raise InputError("this model has only one half, so it takes one input: network(tokens)")
        if target is None and target_mask is not None:
            raise InputError("target_mask was given, but this model has no target; its mask is mask=…")
        if not self.has_encoder:
            if segments is not None:
                raise InputError("segments were given, but a decoder has none; leave them out")
            return self.decode_hidden(tokens, mask=mask)
        memory = self.encode(tokens, mask, segments)
        return memory.states if target is None else self.decode_hidden(target, memory, mask=target_mask)

    def forward(
        self,
        tokens: Tensor,
        target: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        target_mask: Tensor | None = None,
        segments: Tensor | None = None,
    ) -> Tensor:
        """The head's output: logits [B, T, V], [B, C] or [B, T, 2], or a vector [B, D]; without a head, [B, T, D].

        `tokens` are the source of an encoder-decoder and `target` its output, shifted right.
        """
        hidden_BTD = self.hidden(tokens, target, mask=mask, target_mask=target_mask, segments=segments)
        return self.apply_head(hidden_BTD, mask if target is None else target_mask)

    def _check_memory(self, memory: Memory | None, cache: Cache | None) -> None:
        if not self.has_decoder:
            raise InputError("this model has no decoder: encode() its input")
        if self.has_encoder and memory is None:
            raise InputError("this decoder reads an encoder's output: give memory=encode(source)")
        if not self.has_encoder and memory is not None:
            raise InputError("this model has no encoder, so its decoder takes no memory")
        if memory is not None and not isinstance(memory, Memory):
            raise InputError(f"the memory is a {type(memory).__name__}; give what encode(source) returned, a Memory")
        if cache is not None and not isinstance(cache, Cache):
            raise InputError(f"the cache is a {type(cache).__name__}; give a Cache() of cutaway.parts.cache")
