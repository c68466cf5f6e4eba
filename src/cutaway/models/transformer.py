"""The Transformer: an encoder stack, a decoder stack, or both."""

from functools import partial

from torch import Tensor

from cutaway.checks import describe
from cutaway.errors import ConfigError, InputError
from cutaway.models.config import StackConfig, TransformerConfig
from cutaway.models.heads import build_head
from cutaway.models.network import Network
from cutaway.parts.attention import Attention
from cutaway.parts.block import Block
from cutaway.parts.cache import Cache, Memory
from cutaway.parts.embedding import Embedding, PatchEmbedding
from cutaway.parts.feedforward import FeedForward
from cutaway.parts.norms import norm
from cutaway.parts.positions import RelativeBias, rotary
from cutaway.parts.stack import Stack
from cutaway.parts.tap import cache_taps


def build_embedding(config: StackConfig) -> Embedding | PatchEmbedding:
    if config.patches is not None:
        return PatchEmbedding(
            config.d_model,
            image_size=config.patches.image_size,
            patch_size=config.patches.patch_size,
            channels=config.patches.channels,
            dropout=config.dropout,
        )
    assert config.vocabulary is not None
    return Embedding(
        config.vocabulary,
        config.d_model,
        positions=config.positions,
        max_positions=config.max_positions,
        n_segments=config.n_segments,
        scaled=config.scale_embedding,
        norm_kind=config.norm if config.norm_embedding else None,
        norm_epsilon=config.norm_epsilon,
        dropout=config.dropout,
    )


def build_attention(config: StackConfig, *, cross: bool) -> Attention:
    """Positions act between tokens of one sequence: between two, distances mean nothing."""
    return Attention(
        config.d_model,
        config.n_heads,
        n_kv_heads=config.n_kv_heads,
        d_head=config.d_head,
        qkv_bias=config.qkv_bias,
        out_bias=config.out_bias,
        scale_scores=config.scale_scores,
        rotary=config.positions == "rotary" and not cross,
        cross=cross,
        position_bias=config.positions == "t5_bias" and not cross,
        dropout=config.attention_dropout,
    )


def build_block(config: StackConfig, *, cross: bool) -> Block:
    feedforward = FeedForward(
        config.d_model,
        config.d_ff,
        activation=config.activation,
        gated=config.gated,
        bias=config.ff_bias,
        dropout=config.ff_dropout,
    )
    return Block(
        build_attention(config, cross=False),
        feedforward,
        build_attention(config, cross=True) if cross else None,
        norm_kind=config.norm,
        norm_place=config.norm_place,
        norm_epsilon=config.norm_epsilon,
        dropout=config.dropout,
    )


def build_stack(config: StackConfig, *, causal: bool, cross: bool) -> Stack:
    """A config's fields, handed to the parts they belong to."""
    rotate = relative_bias = final_norm = None
    if config.positions == "rotary":
        rotate = partial(rotary, d_head=config.head_width, base=config.rotary_base, scaling=config.rotary_scaling)
    if config.positions == "t5_bias":
        relative_bias = RelativeBias(config.t5_buckets, config.t5_max_distance, config.n_heads, both_ways=not causal)
    if config.norm_place == "pre":
        final_norm = norm(config.norm, config.d_model, config.norm_epsilon)
    return Stack(
        build_embedding(config),
        [build_block(config, cross=cross) for _ in range(config.n_blocks)],
        causal=causal,
        windows=[config.window_of(i) for i in range(config.n_blocks)],
        rotate=rotate,
        relative_bias=relative_bias,
        final_norm=final_norm,
    )


class Transformer(Network):
    """An encoder, a decoder, or both, and a head; what each is made of, the config says.

    Its first weights are torch's defaults; `cutaway.build` draws them as the model's paper does.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        if not isinstance(config, TransformerConfig):
            raise ConfigError(f"Transformer takes a TransformerConfig, not {describe(config)}; see cutaway.build")
        self.config: TransformerConfig = config
        both = config.encoder is not None and config.decoder is not None
        self.encoder = None if config.encoder is None else build_stack(config.encoder, causal=False, cross=False)
        self.decoder = None if config.decoder is None else build_stack(config.decoder, causal=True, cross=both)
        if config.share_embeddings and self.encoder is not None and self.decoder is not None:
            self.decoder.embedding.tokens = self.encoder.embedding.tokens  # one module, so one table wherever it moves
        self.head = None
        if config.head is not None:
            self.head = build_head(config.head, config.last.d_model, config.last.vocabulary)
        cache_taps(self)

    def encode(self, source: Tensor, mask: Tensor | None = None, segments: Tensor | None = None) -> Memory:
        if self.encoder is None:
            raise InputError("this model has no encoder: decode() its tokens")
        return Memory(self.encoder(source, mask=mask, segments=segments), mask)

    def decode_hidden(
        self, tokens: Tensor, memory: Memory | None = None, cache: Cache | None = None, mask: Tensor | None = None
    ) -> Tensor:
        self._check_memory(memory, cache)
        assert self.decoder is not None
        return self.decoder(tokens, memory, mask=mask, cache=cache)

    def apply_head(self, hidden_BTD: Tensor, mask: Tensor | None = None) -> Tensor:
        if self.head is None:
            return hidden_BTD
        return self.head(hidden_BTD, mask, self.table)

    @property
    def table(self) -> Tensor | None:
        """The word vectors of the stack that the head reads; None if it reads images."""
        stack = self.decoder if self.decoder is not None else self.encoder
        assert stack is not None
        return stack.embedding.tokens.weight if isinstance(stack.embedding, Embedding) else None
