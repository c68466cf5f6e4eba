"""A block: attention, attention over the encoder's output if there is one, feed-forward; each with add & norm."""

from collections.abc import Callable
from typing import Literal

from torch import Tensor, nn

from cutaway.checks import check
from cutaway.errors import InputError
from cutaway.parts.attention import Attention
from cutaway.parts.cache import Cache
from cutaway.parts.dropout import Dropout, add
from cutaway.parts.feedforward import FeedForward
from cutaway.parts.masks import NO_BIAS, Bias
from cutaway.parts.norms import LayerNorm, NormKind, RMSNorm, add_and_norm, norm
from cutaway.parts.positions import Rotation
from cutaway.parts.tap import Tap

NormPlace = Literal["pre", "post"]


class Block(nn.Module):
    """post: x = norm(x + f(x)), as the paper has it; pre: x = x + f(norm(x)), as everybody since GPT-2. x [B, T, D]

    `cross_attention`, over the encoder's output, is what a decoder adds.
    """

    def __init__(
        self,
        self_attention: Attention,
        feedforward: FeedForward,
        cross_attention: Attention | None = None,
        *,
        norm_kind: NormKind = "layer",
        norm_place: NormPlace = "post",
        norm_epsilon: float = 1e-5,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check("Block: norm_place", norm_place, NormPlace)
        d_model = self_attention.q.in_features
        self.norm_place = norm_place
        self.input = Tap("BTD", "the residual stream before this block")
        self.self_attention = self_attention
        self.self_attention_add = Tap("BTD", "x + self_attention")
        self.self_attention_norm = norm(norm_kind, d_model, norm_epsilon)
        self.cross_attention = cross_attention
        if cross_attention is not None:
            self.cross_attention_add = Tap("BTD", "x + cross_attention")
            self.cross_attention_norm = norm(norm_kind, d_model, norm_epsilon)
        self.feedforward = feedforward
        self.feedforward_add = Tap("BTD", "x + feedforward")
        self.feedforward_norm = norm(norm_kind, d_model, norm_epsilon)
        self.dropout = Dropout(dropout)
        self.output = Tap("BTD", "the residual stream after this block")

    def forward(
        self,
        x_BTD: Tensor,
        memory_BSD: Tensor | None = None,
        *,
        bias: Bias = NO_BIAS,
        memory_bias: Bias = NO_BIAS,
        rotation: Rotation | None = None,
        cache: Cache | None = None,
        name: str = "",
        serves: int = 1,
        holders: Tensor | None = None,
    ) -> Tensor:
        """`name` is this block's place in the cache; `serves`: how many rows of x read each row of the memory;
        `holders` [B, S]: the rows of the cache that hold the keys and values of each row's tokens (None: its own)."""
        if memory_BSD is None and self.cross_attention is not None:
            raise InputError("this block has a cross-attention, which needs a memory: the encoder's output")
        if memory_BSD is not None and self.cross_attention is None:
            raise InputError("a memory was given, but this block has no cross-attention to read it; leave it out")
        slot = cache.slot(f"{name}.self_attention") if cache is not None else None
        memory_slot = None
        if cache is not None and self.cross_attention is not None:
            memory_slot = cache.slot(f"{name}.cross_attention", grows=False)

        def attend(x: Tensor) -> Tensor:
            return self.self_attention(x, bias=bias, rotation=rotation, slot=slot, holders=holders)

        x_BTD = self.add_and_norm(self.input(x_BTD), attend, self.self_attention_add, self.self_attention_norm)
        if (cross_attention := self.cross_attention) is not None:

            def attend_memory(x: Tensor) -> Tensor:
                return cross_attention(x, memory_BSD, bias=memory_bias, slot=memory_slot, serves=serves)

            x_BTD = self.add_and_norm(x_BTD, attend_memory, self.cross_attention_add, self.cross_attention_norm)
        x_BTD = self.add_and_norm(x_BTD, self.feedforward, self.feedforward_add, self.feedforward_norm)
        return self.output(x_BTD)

    def add_and_norm(
        self, x_BTD: Tensor, f: Callable[[Tensor], Tensor], added: Tap, norm: LayerNorm | RMSNorm
    ) -> Tensor:
        """The residual connection around one sublayer."""
        p = self.dropout.p if self.training else 0.0
        if self.norm_place == "post":
            return add_and_norm(norm, added, x_BTD, f(x_BTD), p)
        return added(add(x_BTD, f(norm(x_BTD)), p))
