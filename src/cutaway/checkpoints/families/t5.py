"""T5: v1.0, and v1.1 with FLAN-T5, which is gated, does not scale its output and has an output table of its own."""

from typing import Any

from cutaway.checkpoints.family import Architecture, Family, FileTensors
from cutaway.checkpoints.keys import ACTIVATION_NAMES, ACTIVATIONS, Key, Keys, write_keys
from cutaway.checkpoints.rules import NameMap, Rule
from cutaway.errors import CheckpointError
from cutaway.models.config import Head, LanguageModel, StackConfig, TransformerConfig
from cutaway.parts.feedforward import Activation

THEIR_ATTENTION, OUR_ATTENTION = "{q,k,v,o}.weight", "{q,k,v,out}.weight"


def _stack(name: str, feedforward: int) -> list[Rule]:
    """One half. The table of distances lies in block 0, though every block uses it."""
    theirs, ours = name + ".block.{i}.layer.", name + ".blocks.{i}."
    ff = f"{theirs}{feedforward}."
    return [
        Rule(f"{name}.block.0.layer.0.SelfAttention.relative_attention_bias.weight", f"{name}.relative_bias.weight"),
        Rule(theirs + "0.SelfAttention." + THEIR_ATTENTION, ours + "self_attention." + OUR_ATTENTION),
        Rule(theirs + "0.layer_norm.weight", ours + "self_attention_norm.weight"),
        Rule(ff + "DenseReluDense.{wi,wo}.weight", ours + "feedforward.{up,down}.weight"),
        Rule(ff + "layer_norm.weight", ours + "feedforward_norm.weight"),
        Rule(f"{name}.final_layer_norm.weight", f"{name}.final_norm.weight"),
    ]


def names(config: TransformerConfig) -> NameMap:
    rules = _stack("encoder", 1) + _stack("decoder", 2)
    rules += [
        Rule("shared.weight", "encoder.embedding.tokens.weight"),
        Rule(
            "decoder.block.{i}.layer.1.EncDecAttention." + THEIR_ATTENTION,
            "decoder.blocks.{i}.cross_attention." + OUR_ATTENTION,
        ),
        Rule("decoder.block.{i}.layer.1.layer_norm.weight", "decoder.blocks.{i}.cross_attention_norm.weight"),
    ]
    if config.last.gated:  # wi_0 goes through the activation, wi_1 does not
        rules = [_gated(rule) for rule in rules]
    return NameMap(
        body=rules,
        head=[Rule("lm_head.weight", "head.vocabulary.weight")],
        copies={
            "encoder.embed_tokens.weight": "shared.weight",
            "decoder.embed_tokens.weight": "shared.weight",
            "lm_head.weight": "shared.weight",
        },
        ignored=("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",),  # never used, once saved
    )


def _gated(rule: Rule) -> Rule:
    return Rule(rule.theirs.replace("{wi,wo}", "{wi_0,wi_1,wo}"), rule.ours.replace("{up,down}", "{gate,up,down}"))


def _feedforward(keys: Keys) -> tuple[Activation, bool]:
    kind = keys.get("feed_forward_proj", "relu")
    gated, _, name = str(kind).rpartition("-")
    if gated not in ("", "gated") or name not in ACTIVATIONS:
        raise CheckpointError(f"{keys.where}: feed_forward_proj={str(kind)[:40]!r} is not one of relu, gated-gelu, …")
    keys.ignore("dense_act_fn", "is_gated_act")  # repeat it
    if kind == "gated-gelu":  # in T5's own code gelu is the tanh approximation
        return "gelu_tanh", True
    return ACTIVATIONS[name], gated == "gated"


KEYS = (
    Key("vocab_size", "vocabulary", 32128),
    Key("d_model", "d_model", 512),
    Key("num_heads", "n_heads", 8),
    Key("d_kv", "d_head", 64),
    Key("d_ff", "d_ff", 2048),
    Key("layer_norm_epsilon", "norm_epsilon", 1e-6, Keys.positive),
    Key("relative_attention_num_buckets", "t5_buckets", 32),
    Key("relative_attention_max_distance", "t5_max_distance", 128),
    Key("dropout_rate", "dropout", 0.1, Keys.probability),
)


def read(keys: Keys, contents: FileTensors, head: Head | None) -> TransformerConfig:
    keys.ignore("tie_word_embeddings", "scale_decoder_outputs", "n_positions", "classifier_dropout", "is_decoder")
    activation, gated = _feedforward(keys)
    n_blocks = keys.count("num_layers", 6)
    given = keys.read(KEYS)
    sizes = given | {
        "activation": activation,
        "gated": gated,
        "norm": "rms",
        "norm_place": "pre",
        "positions": "t5_bias",
        "scale_embedding": False,
        "scale_scores": False,
        "qkv_bias": False,
        "out_bias": False,
        "ff_bias": False,
        "attention_dropout": given["dropout"],
        "ff_dropout": given["dropout"],
    }
    decoder_blocks = keys.count("num_decoder_layers", n_blocks)
    encoder = StackConfig(n_blocks=n_blocks, **sizes)
    if "encoder.final_layer_norm.weight" in contents and "decoder.final_layer_norm.weight" not in contents:
        return TransformerConfig(encoder=encoder, head=head, initialization="t5")  # T5EncoderModel
    decoder = StackConfig(n_blocks=decoder_blocks, **sizes)
    return TransformerConfig(encoder=encoder, decoder=decoder, head=head, share_embeddings=True, initialization="t5")


def language_model(keys: Keys, contents: FileTensors) -> Head:
    """v4 scales the output unless tie_word_embeddings is false; v5 says scale_decoder_outputs, and calls all tied."""
    scaled = keys.flag("scale_decoder_outputs", keys.flag("tie_word_embeddings", True))
    return LanguageModel(tied=contents.tied("lm_head.weight", "shared.weight"), scaled=scaled)


def no_head(keys: Keys, contents: FileTensors) -> Head | None:
    return None


def write(config: TransformerConfig) -> dict[str, Any]:
    stack = config.last
    name = ACTIVATION_NAMES[stack.activation]
    gated_gelu = stack.gated and stack.activation == "gelu_tanh"
    scaled = not isinstance(config.head, LanguageModel) or config.head.scaled
    return {
        **write_keys(KEYS, stack),
        "num_layers": (config.encoder or stack).n_blocks,
        "num_decoder_layers": stack.n_blocks,
        "feed_forward_proj": "gated-gelu" if gated_gelu else f"gated-{name}" if stack.gated else name,
        "tie_word_embeddings": scaled,  # v4 means the scaling by it, and so does v5 when it reads such a file
        "scale_decoder_outputs": scaled,
        "is_encoder_decoder": config.decoder is not None,
    }


FAMILY = Family(
    name="T5",
    model_types=("t5",),
    architectures={
        "T5ForConditionalGeneration": Architecture(LanguageModel, language_model),
        "T5WithLMHeadModel": Architecture(LanguageModel, language_model),  # its name until 2020
        "T5EncoderModel": Architecture(None, no_head, bare=True, fits=lambda config: config.decoder is None),
        "T5Model": Architecture(None, no_head, bare=True, fits=lambda config: config.decoder is not None),
    },
    read=read,
    write=write,
    names=names,
    aliases={
        "head_dim": "d_kv",
        "hidden_size": "d_model",
        "num_attention_heads": "num_heads",
        "num_hidden_layers": "num_layers",
    },
)
