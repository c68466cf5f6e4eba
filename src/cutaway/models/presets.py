"""Sizes of the models the notes name, as one table: name -> config. Each family is a function of its few numbers."""

from collections.abc import Callable
from dataclasses import replace

from cutaway.checks import describe
from cutaway.errors import ConfigError, unknown
from cutaway.models.config import (
    Classifier,
    Config,
    LanguageModel,
    PatchConfig,
    RecurrentConfig,
    RecurrentStackConfig,
    SentenceVector,
    StackConfig,
    TransformerConfig,
)
from cutaway.parts.feedforward import Activation
from cutaway.parts.positions import RotaryScaling
from cutaway.parts.recurrent import CellKind
from cutaway.parts.recurrent_attention import RecurrentAttentionKind


def transformer(n_blocks: int, d_model: int, n_heads: int, d_ff: int, vocabulary: int = 37000) -> TransformerConfig:
    """The 2017 Transformer: one table of word pieces for source, target and output (§3.4)."""
    stack = StackConfig(vocabulary=vocabulary, n_blocks=n_blocks, d_model=d_model, n_heads=n_heads, d_ff=d_ff)
    return TransformerConfig(encoder=stack, decoder=stack, head=LanguageModel(), share_embeddings=True)


def bert(n_blocks: int, d_model: int, n_heads: int, *, distilled: bool = False) -> TransformerConfig:
    """BERT; DistilBERT is half as deep and has no segments and no pooler."""
    encoder = StackConfig(
        vocabulary=30522, n_blocks=n_blocks, d_model=d_model, n_heads=n_heads, d_ff=4 * d_model, activation="gelu",
        norm_epsilon=1e-12, positions="learned", max_positions=512, n_segments=0 if distilled else 2,
        scale_embedding=False, norm_embedding=True, attention_dropout=0.1,
    )  # fmt: skip
    head = SentenceVector(pooling="first", hidden=None if distilled else "tanh")
    return TransformerConfig(encoder=encoder, head=head, initialization="normal" if distilled else "truncated_normal")


def gpt2(n_blocks: int, d_model: int, n_heads: int) -> TransformerConfig:
    decoder = StackConfig(
        vocabulary=50257, n_blocks=n_blocks, d_model=d_model, n_heads=n_heads, d_ff=4 * d_model,
        activation="gelu_tanh", norm_place="pre", positions="learned", max_positions=1024, scale_embedding=False,
        attention_dropout=0.1,
    )  # fmt: skip
    return TransformerConfig(decoder=decoder, head=LanguageModel(), initialization="normal_by_depth")


def llama(
    n_blocks: int, d_model: int, n_heads: int, d_ff: int, vocabulary: int, max_positions: int,
    *, n_kv_heads: int | None = None, base: float = 10000.0, scaling: RotaryScaling | None = None, tied: bool = False,
) -> TransformerConfig:  # fmt: skip
    decoder = StackConfig(
        vocabulary=vocabulary, n_blocks=n_blocks, d_model=d_model, n_heads=n_heads, n_kv_heads=n_kv_heads, d_ff=d_ff,
        activation="silu", gated=True, norm="rms", norm_place="pre", positions="rotary", max_positions=max_positions,
        rotary_base=base, rotary_scaling=scaling, scale_embedding=False, qkv_bias=False, out_bias=False, ff_bias=False,
        dropout=0.0,
    )  # fmt: skip
    return TransformerConfig(decoder=decoder, head=LanguageModel(tied=tied), initialization="normal")


def t5(
    n_blocks: int, d_model: int, n_heads: int, d_ff: int, *, d_head: int = 64, flan: bool = False
) -> TransformerConfig:
    """T5; FLAN-T5 (on T5 1.1) has a gated feed-forward network and an output table of its own."""
    activation: Activation = "gelu_tanh" if flan else "relu"
    stack = StackConfig(
        vocabulary=32128, n_blocks=n_blocks, d_model=d_model, n_heads=n_heads, d_head=d_head, d_ff=d_ff,
        activation=activation, gated=flan, norm="rms", norm_place="pre", norm_epsilon=1e-6, positions="t5_bias",
        scale_embedding=False, scale_scores=False, qkv_bias=False, out_bias=False, ff_bias=False,
        attention_dropout=0.1, ff_dropout=0.1,
    )  # fmt: skip
    head = LanguageModel(tied=not flan, scaled=not flan)
    return TransformerConfig(encoder=stack, decoder=stack, head=head, share_embeddings=True, initialization="t5")


def vit(n_blocks: int, d_model: int, n_heads: int) -> TransformerConfig:
    encoder = StackConfig(
        patches=PatchConfig(), n_blocks=n_blocks, d_model=d_model, n_heads=n_heads, d_ff=4 * d_model,
        activation="gelu", norm_place="pre", norm_epsilon=1e-12, positions="learned", scale_embedding=False,
        dropout=0.0,
    )  # fmt: skip
    return TransformerConfig(encoder=encoder, head=Classifier(n_classes=1000), initialization="truncated_normal")


def seq2seq(cell: CellKind, *, attention: RecurrentAttentionKind | None = None) -> RecurrentConfig:
    """A recurrent encoder-decoder: Bahdanau's reads the source in both directions and has one layer on each side,
    Sutskever's reads it backward."""
    stack = RecurrentStackConfig(vocabulary=10000, cell=cell, n_layers=1 if attention else 2)
    encoder = replace(stack, bidirectional=attention is not None, backward=attention is None)
    return RecurrentConfig(encoder=encoder, decoder=stack, attention=attention)


def awd_lstm() -> RecurrentConfig:
    """The language model under ULMFiT."""
    decoder = RecurrentStackConfig(
        vocabulary=60000, cell="lstm", n_layers=3, d_model=400, d_hidden=1150, dropout=0.1, weight_dropout=0.2
    )  # fmt: skip
    return RecurrentConfig(decoder=decoder, head=LanguageModel(bias=True))


LLAMA_3_2 = RotaryScaling(factor=32.0)

PRESETS: dict[str, Callable[[], Config]] = {
    "transformer-tiny": lambda: transformer(4, 128, 4, 256, vocabulary=10000),
    "transformer-small": lambda: transformer(6, 256, 4, 1024, vocabulary=10000),
    "transformer-base": lambda: transformer(6, 512, 8, 2048),
    "transformer-big": lambda: transformer(6, 1024, 16, 4096),
    "t5-small": lambda: t5(6, 512, 8, 2048),
    "t5-base": lambda: t5(12, 768, 12, 3072),
    "t5-large": lambda: t5(24, 1024, 16, 4096),
    "flan-t5-small": lambda: t5(8, 512, 6, 1024, flan=True),
    "flan-t5-base": lambda: t5(12, 768, 12, 2048, flan=True),
    "bert-tiny": lambda: bert(2, 128, 2),
    "bert-base": lambda: bert(12, 768, 12),
    "bert-large": lambda: bert(24, 1024, 16),
    "distilbert-base": lambda: bert(6, 768, 12, distilled=True),
    "gpt2-tiny": lambda: gpt2(4, 128, 4),
    "gpt2": lambda: gpt2(12, 768, 12),
    "gpt2-medium": lambda: gpt2(24, 1024, 16),
    "gpt2-large": lambda: gpt2(36, 1280, 20),
    "gpt2-xl": lambda: gpt2(48, 1600, 25),
    "llama-15m": lambda: llama(6, 288, 6, 768, 32000, 256, tied=True),
    "llama-2-7b": lambda: llama(32, 4096, 32, 11008, 32000, 4096),
    "llama-3.2-1b": lambda: llama(
        16, 2048, 32, 8192, 128256, 131072, n_kv_heads=8, base=500000.0, scaling=LLAMA_3_2, tied=True
    ),
    "vit-tiny": lambda: vit(12, 192, 3),
    "vit-small": lambda: vit(12, 384, 6),
    "vit-base": lambda: vit(12, 768, 12),
    "rnn-seq2seq": lambda: seq2seq("rnn"),
    "lstm-seq2seq": lambda: seq2seq("lstm"),
    "gru-seq2seq": lambda: seq2seq("gru"),
    "bahdanau-gru": lambda: seq2seq("gru", attention="additive"),
    "awd-lstm": awd_lstm,
}


def preset(name: str) -> Config:
    """The config of a known model; change it with `dataclasses.replace`."""
    if not isinstance(name, str):
        raise ConfigError(f"a preset's name is a string like 'gpt2', not {describe(name)}; `cutaway models` lists them")
    if name not in PRESETS:
        raise ConfigError(unknown("preset", name, PRESETS))
    return PRESETS[name]()


def resolve(config: Config | str) -> Config:
    """A config as it is, or the preset of that name."""
    if isinstance(config, str):
        return preset(config)
    if not isinstance(config, Config):
        raise ConfigError(f"give a preset's name or a config, not {describe(config)}; `cutaway models` lists the names")
    return config
