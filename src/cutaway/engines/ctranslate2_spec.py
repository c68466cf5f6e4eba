"""Our network as CTranslate2 describes one: the same parts under other names, in one table for every family.

`to_spec(network, usage)` gives a filled `ctranslate2.specs` model, ready to be saved; what it can't hold is a sentence.
"""

import importlib
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from cutaway.errors import ConfigError
from cutaway.models.config import LanguageModel, StackConfig
from cutaway.models.heads import LanguageModelHead
from cutaway.models.network import Network
from cutaway.models.transformer import Transformer
from cutaway.models.usage import Usage
from cutaway.parts.embedding import Embedding
from cutaway.parts.feedforward import Activation
from cutaway.parts.positions import RotaryScaling, sinusoidal
from cutaway.parts.stack import Stack

INSTALL = "CTranslate2 is not installed; `pip install cutaway[ctranslate2]` brings it, or use the native engine"

Row = tuple[str, tuple[str, ...]]
"""Their layer, and those of our modules that it holds: several linear layers are fused into one, in this order."""

STACK: tuple[Row, ...] = (
    ("layernorm_embedding", ("embedding.norm",)),
    ("layer_norm", ("final_norm",)),
)
BLOCK: tuple[Row, ...] = (
    ("self_attention.layer_norm", ("self_attention_norm",)),
    ("self_attention.linear.0", ("self_attention.q", "self_attention.k", "self_attention.v")),
    ("self_attention.linear.1", ("self_attention.out",)),
    ("attention.layer_norm", ("cross_attention_norm",)),
    ("attention.linear.0", ("cross_attention.q",)),
    ("attention.linear.1", ("cross_attention.k", "cross_attention.v")),
    ("attention.linear.2", ("cross_attention.out",)),
    ("ffn.layer_norm", ("feedforward_norm",)),
    ("ffn.linear_1", ("feedforward.down",)),
)
PLAIN: tuple[Row, ...] = (*BLOCK, ("ffn.linear_0", ("feedforward.up",)))
GATED: tuple[Row, ...] = (
    *BLOCK,
    ("ffn.linear_0", ("feedforward.gate",)),  # the one that is activated
    ("ffn.linear_0_noact", ("feedforward.up",)),
)

ACTIVATIONS: dict[Activation, str] = {
    "relu": "RELU", "gelu": "GELU", "gelu_tanh": "GELUTanh", "silu": "SWISH", "tanh": "Tanh",
}  # fmt: skip
NO_TOKEN = "none"
PLACES = 2048  # rows of a sinusoidal table, at least: theirs has another formula, so ours is written out


def unsupported(network: Network) -> str | None:
    """Why CTranslate2 can't run this network, in one sentence; None if it can."""
    config = network.config
    if not isinstance(network, Transformer):
        return f"CTranslate2 runs Transformers, not a {config.kind} model"
    stacks = [stack for stack in (network.config.encoder, network.config.decoder) if stack is not None]
    if any(stack.patches is not None for stack in stacks):
        return "CTranslate2 reads text, not images"
    if len({stack.norm_epsilon for stack in stacks}) > 1:
        return "CTranslate2 has one norm_epsilon for a whole model; this one's encoder and decoder differ"
    if network.config.decoder is not None and not isinstance(network.config.head, LanguageModel):
        return "CTranslate2 runs a decoder to write text; this one has no language_model head"
    for stack in stacks:
        if stack.positions == "none" or (stack.positions == "t5_bias" and network.config.encoder is None):
            return f"CTranslate2 has no such model with positions='{stack.positions}'"
        if stack.positions == "rotary" and network.config.encoder is not None:
            return "CTranslate2 turns queries and keys (positions='rotary') of decoder-only models"
    last = network.config.last  # a window as long as the context hides nothing within it
    if last.window is not None and (last.max_positions is None or last.window < last.max_positions):
        return "CTranslate2 reads a prompt that is longer than the sliding window in another way"
    if len(stacks) == 2 and any(stack.kv_heads != stack.n_heads for stack in stacks):
        return "CTranslate2 groups queries (n_kv_heads) in decoder-only models"
    if network.config.encoder is not None and network.config.decoder is not None and any(s.n_segments for s in stacks):
        return "CTranslate2 has segments in encoder-only models"
    return None


def to_spec(network: Network, usage: Usage) -> Any:
    """A `ctranslate2.specs` model with every weight of `network`, its tokens named by their ids."""
    if (reason := unsupported(network)) is not None:
        raise ConfigError(f"{reason}; the native engine runs it")
    specs = library("specs.transformer_spec")
    assert isinstance(network, Transformer)
    encoder = decoder = None
    if network.encoder is not None and network.config.encoder is not None:
        encoder = _stack(network.encoder, network.config.encoder, specs.TransformerEncoderSpec)
    if network.decoder is not None and network.config.decoder is not None:
        decoder = _stack(network.decoder, network.config.decoder, specs.TransformerDecoderSpec, encoder is not None)
        _head(decoder, network)
    if encoder is not None and decoder is not None:
        spec = specs.TransformerSpec(encoder, decoder)
        assert network.config.encoder is not None
        spec.register_source_vocabulary(names(network.config.encoder))
        spec.register_target_vocabulary(names(network.config.last))
        spec.config.decoder_start_token = str(usage.start if usage.start is not None else 0)
    else:
        one = specs.TransformerDecoderModelSpec if encoder is None else specs.TransformerEncoderModelSpec
        spec = one(decoder if encoder is None else encoder)
        spec.register_vocabulary(names(network.config.last))
    # No text has an unknown token: it only has to exist. The end is for callers who do not say it with each call.
    spec.config.unk_token, spec.config.bos_token = "0", NO_TOKEN
    spec.config.eos_token = str(usage.end[0]) if usage.end else NO_TOKEN
    spec.config.layer_norm_epsilon = network.config.last.norm_epsilon
    return spec


def names(stack: StackConfig) -> list[str]:
    """CTranslate2 wants words: the numbers themselves, so that no two tokens are written alike."""
    return [str(i) for i in range(stack.vocabulary or 0)]


def library(module: str = "") -> Any:
    """CTranslate2, or a module of it, imported when it is used first."""
    try:
        return importlib.import_module(f"ctranslate2.{module}" if module else "ctranslate2")
    except ImportError as error:
        if error.name is not None and error.name.partition(".")[0] != "ctranslate2":
            raise ConfigError(f"CTranslate2 can't be imported: {error}; the native engine does without it") from None
        raise ConfigError(INSTALL) from None


def _stack(stack: Stack, config: StackConfig, kind: Any, cross: bool | None = None) -> Any:
    """An encoder (`cross` None) or a decoder, filled."""
    common_spec, attention_spec = library("specs.common_spec"), library("specs.attention_spec")
    rotary = config.positions == "rotary"
    options: dict[str, Any] = {
        "pre_norm": config.norm_place == "pre",
        "activation": getattr(common_spec.Activation, ACTIVATIONS[config.activation]),
        "layernorm_embedding": config.norm_embedding,
        "relative_attention_bias": config.positions == "t5_bias",
        "ffn_glu": config.gated,
        "rms_norm": config.norm == "rms",
        "num_heads_kv": None if config.kv_heads == config.n_heads else config.kv_heads,
        "head_dim": config.head_width,
    }
    if rotary:
        options |= {"rotary_dim": 0, "rotary_interleave": False, "rotary_base": config.rotary_base}
    scaling = config.rotary_scaling
    if rotary and scaling is not None:
        options["rotary_scaling_type"] = attention_spec.RotaryScalingType.Llama3
    if cross is not None:
        options["with_encoder_attention"] = cross
    elif config.n_segments:
        options |= {"num_source_embeddings": 2, "embeddings_merge": common_spec.EmbeddingsMerge.ADD}
    spec = kind(config.n_blocks, config.n_heads, **options)

    embedding = stack.embedding
    assert isinstance(embedding, Embedding)
    tables = spec.embeddings if isinstance(spec.embeddings, list) else [spec.embeddings]
    tables[0].weight = _copy([embedding.tokens.weight])
    if embedding.segments is not None:
        tables[1].weight = _copy([embedding.segments.weight])
    spec.scale_embeddings = embedding.scale
    if embedding.positions is not None:
        spec.position_encodings.encodings = _copy([embedding.positions.weight])
    elif config.positions in ("sinusoidal", "sinusoidal_halves"):
        layout: Literal["interleaved", "halves"] = "interleaved" if config.positions == "sinusoidal" else "halves"
        spec.position_encodings.encodings = sinusoidal(torch.arange(places(config)), config.d_model, layout=layout)
    _fill(spec, stack, STACK)
    for theirs, block in zip(spec.layer, stack.blocks, strict=True):
        _fill(theirs, block, GATED if config.gated else PLAIN)
        attentions = [theirs.self_attention] + ([theirs.attention] if cross else [])
        if not config.scale_scores:
            for attention in attentions:
                attention.queries_scale = 1.0
        if stack.relative_bias is not None:
            theirs.self_attention.relative_attention_bias = _copy([stack.relative_bias.weight])
            theirs.self_attention.relative_attention_max_distance = _whole(config.t5_max_distance)
        if scaling is not None:
            _stretch(theirs.self_attention, scaling)
    return spec


def _stretch(attention: Any, scaling: RotaryScaling) -> None:
    """Llama 3's scaling. The library reads all four numbers; its spec declares two, and without the others it stretches
    nothing (as its own converter of 4.8 does)."""
    vars(attention).update(
        rotary_low_freq_factor=scaling.low_frequency_factor,
        rotary_high_freq_factor=scaling.high_frequency_factor,
        rotary_scaling_factor=scaling.factor,
        original_max_position_embeddings=_whole(scaling.original_positions),
    )


def places(config: StackConfig) -> int:
    """How many tokens CTranslate2 has positions for."""
    if config.positions == "learned":
        return config.max_positions or 0
    return max(PLACES, config.max_positions or 0) if config.positions.startswith("sinusoidal") else 2**31 - 1


def _head(decoder: Any, network: Transformer) -> None:
    assert network.decoder is not None
    assert isinstance(network.head, LanguageModelHead)
    assert isinstance(network.decoder.embedding, Embedding)
    vocabulary, table = network.head.vocabulary, network.decoder.embedding.tokens.weight
    decoder.projection.weight = _copy([table if vocabulary.weight is None else vocabulary.weight])
    if vocabulary.bias is not None:
        decoder.projection.bias = _copy([vocabulary.bias])
    if vocabulary.scale != 1.0:
        decoder.scale_outputs = vocabulary.scale


def _fill(spec: Any, module: nn.Module, rows: Iterable[Row]) -> None:
    """Each of their layers gets the numbers of ours; layers that this module does not have are passed over."""
    ours = dict(module.named_modules())
    for path, parts in rows:
        modules = [ours[part] for part in parts if part in ours]
        if not modules:
            continue
        layer = spec
        for step in path.split("."):
            layer = layer[int(step)] if step.isdecimal() else getattr(layer, step)
        weight, bias = ("weight", "bias") if isinstance(modules[0], nn.Linear) else ("gamma", "beta")
        setattr(layer, weight, _copy([each.get_parameter("weight") for each in modules]))
        if getattr(modules[0], "bias", None) is not None:
            setattr(layer, bias, _copy([each.get_parameter("bias") for each in modules]))


def _copy(tensors: Sequence[Tensor]) -> Tensor:
    """Side by side, and our own weights out of reach: quantising happens in place."""
    return torch.cat([tensor.detach().float().cpu() for tensor in tensors])


def _whole(number: int) -> Tensor:
    return torch.tensor(number, dtype=torch.int32)
