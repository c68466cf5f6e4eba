"""MarianMT: the 2017 Transformer as Helsinki-NLP publishes it, with sinusoids as all sines, then all cosines."""

from typing import Any

from cutaway.checkpoints.family import BODY, Architecture, Family, FileTensors
from cutaway.checkpoints.keys import Key, Keys, write_keys
from cutaway.checkpoints.rules import ROW, NameMap, Rule
from cutaway.errors import CheckpointError
from cutaway.models.config import Head, LanguageModel, StackConfig, TransformerConfig


def _attention(theirs: str, ours: str) -> list[Rule]:
    return [
        Rule(theirs + ".{q_proj,k_proj,v_proj,out_proj}.{weight,bias}", ours + ".{q,k,v,out}.{weight,bias}"),
        Rule(theirs + "_layer_norm.{weight,bias}", ours + "_norm.{weight,bias}"),
    ]


def _stack(name: str) -> list[Rule]:
    theirs, ours = name + ".layers.{i}.", name + ".blocks.{i}."
    return [
        *_attention(theirs + "self_attn", ours + "self_attention"),
        *_attention(theirs + "encoder_attn", ours + "cross_attention"),
        Rule(theirs + "{fc1,fc2}.{weight,bias}", ours + "feedforward.{up,down}.{weight,bias}"),
        Rule(theirs + "final_layer_norm.{weight,bias}", ours + "feedforward_norm.{weight,bias}"),
    ]


def names(config: TransformerConfig) -> NameMap:
    tables = [
        Rule("encoder.embed_tokens.weight", "encoder.embedding.tokens.weight"),
        Rule("decoder.embed_tokens.weight", "decoder.embedding.tokens.weight"),
    ]
    copies = {"lm_head.weight": "decoder.embed_tokens.weight"}
    ignored = ["shared.weight"]  # never used, if each side has a table
    if config.share_embeddings:
        ignored = []
        tables = [Rule("shared.weight", "encoder.embedding.tokens.weight")]
        copies = dict.fromkeys(
            ("lm_head.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"), "shared.weight"
        )  # fmt: skip
    return NameMap(
        body=[*tables, *_stack("encoder"), *_stack("decoder")],
        head=[
            Rule("lm_head.weight", "head.vocabulary.weight"),
            Rule("final_logits_bias", "head.vocabulary.bias", ROW),
        ],
        copies=copies,
        ignored=[*ignored, "encoder.embed_positions.weight", "decoder.embed_positions.weight"],  # sinusoids
    )


KEYS = (
    Key("{side}_layers", "n_blocks", 12),
    Key("d_model", "d_model", 1024),
    Key("{side}_attention_heads", "n_heads", 16),
    Key("{side}_ffn_dim", "d_ff", 4096),
    Key("activation_function", "activation", "gelu", Keys.activation),
    Key("max_position_embeddings", "max_positions", 1024),
    Key("scale_embedding", "scale_embedding", False, Keys.flag),
    Key("dropout", "dropout", 0.1, Keys.probability),
    Key("attention_dropout", "attention_dropout", 0.0, Keys.probability),
    Key("activation_dropout", "ff_dropout", 0.0, Keys.probability),
)


def read(keys: Keys, contents: FileTensors, head: Head | None) -> TransformerConfig:
    why = "cutaway's Marian is the 2017 Transformer, with norms after each sublayer and sinusoidal positions"
    keys.only("normalize_before", False, why=why)
    keys.only("normalize_embedding", False, why=why)
    keys.only("add_final_layer_norm", False, why=why)
    keys.only("static_position_embeddings", True, why=why)
    keys.only("extra_pos_embeddings", 0, 1, 2, why=why)  # of another model of that code; sinusoids need none
    keys.ignore("add_bias_logits", "tie_word_embeddings", "classifier_dropout", "classif_dropout", "num_hidden_layers")
    keys.ignore("hidden_size", "num_attention_heads", "is_decoder", "bos_token_id", "do_blenderbot_90_layernorm")
    shared = keys.flag("share_encoder_decoder_embeddings", True) and not _two_tables(contents)
    vocabulary = keys.count("vocab_size", 58101)
    target_vocabulary = keys.count("decoder_vocab_size", vocabulary)

    def stack(side: str, n_words: int) -> StackConfig:
        return StackConfig(vocabulary=n_words, positions="sinusoidal_halves", **keys.read(KEYS, side))

    decoder = stack("decoder", vocabulary if shared else target_vocabulary)
    return TransformerConfig(encoder=stack("encoder", vocabulary), decoder=decoder, head=head, share_embeddings=shared)


def _two_tables(contents: FileTensors) -> bool:
    """Whether source and target have unlike tables in the file, though config.json may call them shared."""
    tables = "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"
    return all(table in contents for table in tables) and contents.differ(*tables)


def language_model(keys: Keys, contents: FileTensors) -> Head:
    tables = ("shared.weight", "decoder.embed_tokens.weight")
    return LanguageModel(tied=contents.tied("lm_head.weight", *tables), bias="final_logits_bias" in contents)


def write(config: TransformerConfig) -> dict[str, Any]:
    if config.share_embeddings and isinstance(config.head, LanguageModel) and not config.head.tied:
        raise CheckpointError("all of its embedding tables are shared, the output's too, or none")
    sides: dict[str, Any] = {}
    for side, stack in (("encoder", config.encoder), ("decoder", config.decoder)):
        sides |= {} if stack is None else write_keys(KEYS, stack, side)
    last = config.last
    return {
        **sides,
        "num_hidden_layers": (config.encoder or last).n_blocks,
        "vocab_size": (config.encoder or last).vocabulary,
        "decoder_vocab_size": last.vocabulary,
        "share_encoder_decoder_embeddings": config.share_embeddings,
        "tie_word_embeddings": not isinstance(config.head, LanguageModel) or config.head.tied,
        "is_encoder_decoder": True,
    }


FAMILY = Family(
    name="MarianMT",
    model_types=("marian",),
    architectures={"MarianMTModel": Architecture(LanguageModel, language_model), "MarianModel": BODY},
    read=read,
    write=write,
    names=names,
    prefixes=("model.",),
    writes_pad=False,
    task="translate",
)
