"""A model as data. The defaults are the 2017 paper's base model; every departure is a visible field."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

from cutaway import schema
from cutaway.checks import AboveOne, CheckedFields, Count, Positive, Probability, Size, check_fields
from cutaway.errors import ConfigError
from cutaway.parts.attention import head_width
from cutaway.parts.block import NormPlace
from cutaway.parts.embedding import Positions
from cutaway.parts.feedforward import Activation
from cutaway.parts.norms import NormKind
from cutaway.parts.positions import RotaryScaling
from cutaway.parts.recurrent import CellKind
from cutaway.parts.recurrent_attention import RecurrentAttentionKind


@dataclass(frozen=True, kw_only=True)
class PatchConfig:
    """How an image becomes a sequence (ViT)."""

    image_size: Size = 224
    patch_size: Size = 16
    channels: Size = 3

    def __post_init__(self) -> None:
        check_fields(self)
        if self.image_size % self.patch_size:
            raise ConfigError(
                f"patch_size={self.patch_size} does not divide image_size={self.image_size}: patches must tile it"
            )

    @property
    def n_positions(self) -> int:
        """The patches, and the class token in front of them."""
        return 1 + (self.image_size // self.patch_size) ** 2


@dataclass(frozen=True, kw_only=True)
class StackConfig:
    """An encoder or a decoder. Exactly one of `vocabulary` (text) and `patches` (images) is given."""

    vocabulary: Size | None = None
    patches: PatchConfig | None = None
    n_blocks: Size = 6
    d_model: Size = 512
    n_heads: Size = 8
    n_kv_heads: Size | None = None  # None: as many as n_heads; fewer: grouped queries
    d_head: Size | None = None  # None: d_model / n_heads
    d_ff: Size = 2048
    activation: Activation = "relu"
    gated: bool = False
    norm: NormKind = "layer"
    norm_place: NormPlace = "post"
    norm_epsilon: Positive = 1e-5
    positions: Positions = "sinusoidal"
    max_positions: Size | None = None  # learned: how many there are; else how many it was trained on, no limit
    rotary_base: AboveOne = 10000.0
    rotary_scaling: RotaryScaling | None = None
    t5_buckets: Size = 32
    t5_max_distance: Size = 128
    window: Size | None = None  # a decoder's query sees so many of the newest tokens, its own included; None: all
    window_blocks: tuple[int, ...] = ()  # the blocks that have the window, from 0; none named: all
    n_segments: Count = 0
    scale_embedding: bool = True  # by √d_model
    norm_embedding: bool = False
    scale_scores: bool = True  # by 1/√d_head
    qkv_bias: bool = True
    out_bias: bool = True
    ff_bias: bool = True
    dropout: Probability = 0.1  # of the embedding and of each sublayer's output
    attention_dropout: Probability = 0.0
    ff_dropout: Probability = 0.0

    def __post_init__(self) -> None:
        check_fields(self)
        if (self.vocabulary is None) == (self.patches is None):
            raise ConfigError(
                "a stack reads either text (vocabulary=…) or images (patches=…): give exactly one of them"
            )
        width = self.head_width
        if self.n_heads % self.kv_heads:
            raise ConfigError(f"n_kv_heads={self.n_kv_heads} does not divide n_heads={self.n_heads}")
        if self.positions == "rotary" and width % 2:
            raise ConfigError(f"rotary positions turn pairs of numbers, so d_head={width} must be even")
        if self.positions.startswith("sinusoidal") and self.d_model % 2:
            raise ConfigError(f"sinusoidal positions pair sines with cosines, so d_model={self.d_model} must be even")
        if self.positions == "learned" and self.patches is None and self.max_positions is None:
            raise ConfigError("positions='learned' needs max_positions: how many vectors to learn")
        if self.positions == "t5_bias" and (self.t5_buckets < 4 or self.t5_max_distance <= self.t5_buckets // 2):
            raise ConfigError(
                f"t5_buckets={self.t5_buckets} must be at least 4, "
                f"and t5_max_distance={self.t5_max_distance} above half of it"
            )
        if self.window_blocks and self.window is None:
            raise ConfigError(f"window_blocks={list(self.window_blocks)} have no window: say how many tokens they see")
        if any(type(block) is not int or block < 0 for block in self.window_blocks):
            raise ConfigError(f"window_blocks={list(self.window_blocks)} must be numbers of blocks, from 0")
        if self.patches is not None and self.positions != "learned":
            raise ConfigError(f"image patches have learned positions, not positions='{self.positions}'")

    @property
    def kv_heads(self) -> int:
        return self.n_heads if self.n_kv_heads is None else self.n_kv_heads

    @property
    def head_width(self) -> int:
        return head_width(self.d_model, self.n_heads, self.d_head)

    def window_of(self, block: int) -> int | None:
        """The window of one block's self-attention; None: it sees all."""
        return self.window if not self.window_blocks or block in self.window_blocks else None


Pooling = Literal["first", "mean", "last"]


@dataclass(frozen=True, kw_only=True)
class LanguageModel(CheckedFields):
    """The next token: hidden · tableᵀ. Tied: the table is the embedding's."""

    kind: ClassVar[str] = "language_model"
    tied: bool = True
    bias: bool = False
    scaled: bool = False  # hidden · d_model^-½ first: the first T5, which ties without scaling its embedding


@dataclass(frozen=True, kw_only=True)
class MaskedLanguageModel(CheckedFields):
    """The token behind a mask: dense, activation, layer norm, then hidden · tableᵀ + b (BERT, DistilBERT)."""

    kind: ClassVar[str] = "masked_language_model"
    tied: bool = True
    activation: Activation = "gelu"
    norm_epsilon: Positive = 1e-12


@dataclass(frozen=True, kw_only=True)
class Classifier(CheckedFields):
    """One of `n_classes`: pool the tokens, a dense layer if `hidden` names its activation, then a linear layer."""

    kind: ClassVar[str] = "classifier"
    n_classes: Size
    pooling: Pooling = "first"
    hidden: Activation | None = None  # tanh: BERT's pooler; relu: DistilBERT
    bias: bool = True
    dropout: Probability = 0.0


@dataclass(frozen=True, kw_only=True)
class AnswerSpan:
    """Where the answer starts and ends: two scores for each token (SQuAD)."""

    kind: ClassVar[str] = "answer_span"


@dataclass(frozen=True, kw_only=True)
class SentenceVector(CheckedFields):
    """One vector for a sentence: pool the tokens, a dense layer if `hidden` names its activation, length 1 if asked."""

    kind: ClassVar[str] = "sentence_vector"
    pooling: Pooling = "mean"
    hidden: Activation | None = None
    normalized: bool = False


Head = LanguageModel | MaskedLanguageModel | Classifier | AnswerSpan | SentenceVector

Initialization = Literal["xavier", "normal", "normal_by_depth", "truncated_normal", "t5"]
"""See models/init.py, where each is one short function."""


class JsonConfig:
    """A config that is written to JSON and read from it."""

    def to_json(self) -> dict[str, Any]:
        return dict(schema.to_json(self))

    @classmethod
    def from_json(cls, data: Any) -> Self:
        return schema.from_json(cls, data)


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(JsonConfig):
    """An encoder, a decoder, or both; and what is read off the last block (None: its hidden states)."""

    kind: ClassVar[str] = "transformer"
    encoder: StackConfig | None = None
    decoder: StackConfig | None = None
    head: Head | None = None
    share_embeddings: bool = False  # encoder and decoder read one table
    initialization: Initialization = "xavier"

    def __post_init__(self) -> None:
        check_fields(self)
        if self.encoder is None and self.decoder is None:
            raise ConfigError("a Transformer has an encoder, a decoder or both; the config gives neither")
        if self.decoder is not None and self.decoder.vocabulary is None:
            raise ConfigError("a decoder writes text: its config needs a vocabulary")
        if self.encoder is not None and self.encoder.window is not None:
            raise ConfigError(f"window={self.encoder.window}: an encoder looks both ways; only a decoder has a window")
        if self.encoder is not None and self.decoder is not None and self.encoder.d_model != self.decoder.d_model:
            raise ConfigError(
                f"the decoder (d_model={self.decoder.d_model}) reads the encoder's output "
                f"(d_model={self.encoder.d_model}): they must be equally wide"
            )
        _check_sharing(self)
        if isinstance(self.head, LanguageModel) and self.decoder is None:
            raise ConfigError("a language_model head predicts the next token: it needs a decoder")
        if isinstance(self.head, MaskedLanguageModel) and (self.decoder is not None or self.last.vocabulary is None):
            raise ConfigError("a masked_language_model head needs an encoder of text and no decoder")

    @property
    def last(self) -> StackConfig:
        """The stack that the head reads: the decoder, or else the encoder."""
        stack = self.decoder or self.encoder
        assert stack is not None
        return stack


@dataclass(frozen=True, kw_only=True)
class RecurrentStackConfig:
    """N recurrent layers over an embedding."""

    vocabulary: Size
    cell: CellKind = "gru"
    n_layers: Size = 2
    d_model: Size = 256  # width of the embedding
    d_hidden: Size = 512
    bidirectional: bool = False
    backward: bool = False  # from the last word to the first
    dropout: Probability = 0.2  # of the embedding and between layers
    weight_dropout: Probability = 0.0  # of the hidden-to-hidden weights

    def __post_init__(self) -> None:
        check_fields(self)
        if self.backward and self.bidirectional:
            raise ConfigError("bidirectional reads forward and backward; leave one of backward and bidirectional out")

    @property
    def d_output(self) -> int:
        return self.d_hidden * (2 if self.bidirectional else 1)


@dataclass(frozen=True, kw_only=True)
class RecurrentConfig(JsonConfig):
    """A recurrent encoder-decoder, with or without attention; without an encoder, a recurrent language model."""

    kind: ClassVar[str] = "recurrent"
    encoder: RecurrentStackConfig | None = None
    decoder: RecurrentStackConfig
    attention: RecurrentAttentionKind | None = None
    head: LanguageModel = LanguageModel()
    share_embeddings: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("bidirectional", "backward"):
            if getattr(self.decoder, name):
                raise ConfigError(f"a decoder can't be {name}: it would read the words it has yet to say")
        if self.attention is not None and self.encoder is None:
            raise ConfigError(
                f"attention='{self.attention}' looks at an encoder's states, and the config has no encoder"
            )
        if self.encoder is not None and self.encoder.cell != self.decoder.cell:
            raise ConfigError(
                f"the encoder's last state starts the decoder, so both need one cell, not {self.encoder.cell} "
                f"and {self.decoder.cell}"
            )
        _check_sharing(self)


Config = TransformerConfig | RecurrentConfig


def _check_sharing(config: Config) -> None:
    tables = [stack and (stack.vocabulary, stack.d_model) for stack in (config.encoder, config.decoder)]
    if config.share_embeddings and (None in tables or tables[0] != tables[1]):
        raise ConfigError("share_embeddings needs an encoder and a decoder with the same vocabulary and d_model")


def config_from_json(data: Any) -> Config:
    """Either kind of config, by its "kind"."""
    kinds: tuple[type[Config], ...] = (TransformerConfig, RecurrentConfig)
    return schema.from_json_of(kinds, data)
