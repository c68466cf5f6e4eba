"""A block: attention, attention over the encoder's output if there is one, feed-forward; each with add & norm."""

from typing import Literal

from torch import Tensor, nn

from cutaway.checks import check
from cutaway.errors import InputError
from cutaway.kernels import norms as kernels
from cutaway.kernels.dropout import add_dropout
from cutaway.parts.attention import Attention
from cutaway.parts.cache import Cache
from cutaway.parts.dropout import Dropout
from cutaway.parts.feedforward import FeedForward
from cutaway.parts.masks import NO_BIAS, Bias
from cutaway.parts.norms import LayerNorm, NormKind, RMSNorm, norm
from cutaway.parts.positions import Rotation
from cutaway.parts.tap import Tap, heard

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
    ) -> Tensor:
        """`name` is this block's place in the cache."""
        if memory_BSD is None and self.cross_attention is not None:
            raise InputError("this block has a cross-attention, which needs a memory: the encoder's output")
        if memory_BSD is not None and self.cross_attention is None:
            raise InputError("a memory was given, but this block has no cross-attention to read it; leave it out")
        kv_cache = None if cache is None else cache.of(f"{name}.self_attention")
        x_BTD = self.input(x_BTD)
        y_BTD = self.self_attention(
            self.before(x_BTD, self.self_attention_norm), bias=bias, rotation=rotation, kv_cache=kv_cache
        )
        x_BTD = self.add_and_norm(x_BTD, y_BTD, self.self_attention_add, self.self_attention_norm)
        if self.cross_attention is not None:
            kv_cache = None if cache is None else cache.of(f"{name}.cross_attention", grows=False)
            y_BTD = self.cross_attention(
                self.before(x_BTD, self.cross_attention_norm), memory_BSD, bias=memory_bias, kv_cache=kv_cache
            )
            x_BTD = self.add_and_norm(x_BTD, y_BTD, self.cross_attention_add, self.cross_attention_norm)
        y_BTD = self.feedforward(self.before(x_BTD, self.feedforward_norm))
        return self.output(self.add_and_norm(x_BTD, y_BTD, self.feedforward_add, self.feedforward_norm))

    def before(self, x_BTD: Tensor, norm: LayerNorm | RMSNorm) -> Tensor:
        """The input of a sublayer."""
        return norm(x_BTD) if self.norm_place == "pre" else x_BTD

    def add_and_norm(self, x_BTD: Tensor, y_BTD: Tensor, added: Tap, norm: LayerNorm | RMSNorm) -> Tensor:
        """The residual connection around a sublayer whose output is y."""
        p = self.dropout.p if self.training else 0.0
        if self.norm_place == "pre":
            return added(add_dropout(x_BTD, y_BTD, p))
        if self.training and not heard(added, *norm.internal_taps):
            bias = norm.bias if isinstance(norm, LayerNorm) else None
            if (z_BTD := kernels.norm(x_BTD, y_BTD, norm.weight, bias, norm.epsilon, p)) is not None:
                return norm.output(z_BTD)
        return norm(added(add_dropout(x_BTD, y_BTD, p)))
