"""Llama 1 to 3.x, and models of its shape: Mistral, Qwen2."""

from functools import partial
from typing import Any

from cutaway.checkpoints.family import BODY, Architecture, Family, FileTensors, class_keys, n_classes
from cutaway.checkpoints.keys import Key, Keys, write_keys
from cutaway.checkpoints.rules import NameMap, Rule
from cutaway.errors import CheckpointError
from cutaway.models.config import AnswerSpan, Classifier, Head, LanguageModel, StackConfig, TransformerConfig
from cutaway.parts.positions import RotaryScaling

BLOCK, OURS = "layers.{i}.", "decoder.blocks.{i}."
FULL, SLIDING = "full_attention", "sliding_attention"

# Rotary positions turn halves here as there, so no weight is permuted.
NAMES = NameMap(
    body=[
        Rule("embed_tokens.weight", "decoder.embedding.tokens.weight"),
        Rule(BLOCK + "input_layernorm.weight", OURS + "self_attention_norm.weight"),
        Rule(
            BLOCK + "self_attn.{q_proj,k_proj,v_proj,o_proj}.{weight,bias}",
            OURS + "self_attention.{q,k,v,out}.{weight,bias}",
        ),
        Rule(BLOCK + "post_attention_layernorm.weight", OURS + "feedforward_norm.weight"),
        Rule(
            BLOCK + "mlp.{up_proj,gate_proj,down_proj}.{weight,bias}", OURS + "feedforward.{up,gate,down}.{weight,bias}"
        ),
        Rule("norm.weight", "decoder.final_norm.weight"),
    ],
    head=[
        Rule("lm_head.weight", "head.vocabulary.weight"),
        Rule("score.weight", "head.classes.weight"),
        Rule("qa_outputs.{weight,bias}", "head.ends.{weight,bias}"),
    ],
    copies={"lm_head.weight": "embed_tokens.weight"},
    ignored=("*rotary_emb.inv_freq",),
)


POSITIONS = Key("max_position_embeddings", "max_positions", 2048)
KEYS = (
    Key("vocab_size", "vocabulary", 32000),
    Key("num_hidden_layers", "n_blocks", 32),
    Key("hidden_size", "d_model", 4096),
    Key("num_attention_heads", "n_heads", 32),
    Key("num_key_value_heads", "n_kv_heads"),
    Key("head_dim", "d_head"),
    Key("intermediate_size", "d_ff", 11008),
    Key("hidden_act", "activation", "silu", Keys.activation),
    Key("rms_norm_eps", "norm_epsilon", 1e-6, Keys.positive),
    POSITIONS,
    Key("mlp_bias", "ff_bias", False, Keys.flag),
    Key("attention_dropout", "attention_dropout", 0.0, Keys.probability),
)
SCALING = (
    Key("factor", "factor", 8.0, partial(Keys.number, low=1.0)),
    Key("low_freq_factor", "low_frequency_factor", 1.0, partial(Keys.number, low=1e-6)),
    Key("high_freq_factor", "high_frequency_factor", 4.0, partial(Keys.number, low=1e-6)),
    Key("original_max_position_embeddings", "original_positions"),
)


def rotation(keys: Keys) -> tuple[float, RotaryScaling | None]:
    """Base and scaling: v4 says rope_theta and rope_scaling, v5 rope_parameters."""
    scaling, given = keys.part("rope_scaling"), keys.part("rope_parameters")
    given = scaling if scaling.data else given  # transformers reads them in this order
    base = given.number("rope_theta", keys.number("rope_theta", 10000.0, low=1.001), low=1.001)
    kind = given.get("rope_type", given.get("type", "default"))
    if kind == "default":
        return base, None
    if kind != "llama3":
        raise CheckpointError(
            f"{keys.where}: rotary positions of type {str(kind)[:40]!r}; cutaway knows 'default' and 'llama3'"
        )
    return base, RotaryScaling(**{"original_positions": keys.read([POSITIONS])["max_positions"]} | given.read(SCALING))


def read(keys: Keys, contents: FileTensors, head: Head | None) -> TransformerConfig:
    model_type = keys.get("model_type", "llama")
    keys.only("partial_rotary_factor", 1.0, why="cutaway turns whole heads")
    keys.ignore("tie_word_embeddings", "default_theta")
    base, scaling = rotation(keys)
    given = keys.read(KEYS)
    n_heads, d_model = given["n_heads"], given["d_model"]
    given.setdefault("n_kv_heads", 8 if model_type == "mistral" else n_heads)
    if given.get("d_head", 0) * n_heads == d_model:
        del given["d_head"]  # as if it were not given
    window, window_blocks = _window(keys, model_type, given["n_blocks"], len(contents.places))
    qkv_bias = out_bias = keys.flag("attention_bias", False)
    if model_type == "qwen2":
        qkv_bias, out_bias = True, False  # no key says so
    decoder = StackConfig(
        gated=True,
        norm="rms",
        norm_place="pre",
        positions="rotary",
        rotary_base=base,
        rotary_scaling=scaling,
        window=window,
        window_blocks=window_blocks,
        scale_embedding=False,
        qkv_bias=qkv_bias,
        out_bias=out_bias,
        dropout=0.0,
        **given,
    )
    return TransformerConfig(decoder=decoder, head=head, initialization="normal")


def _window(keys: Keys, model_type: str, n_blocks: int, n_tensors: int) -> tuple[int | None, tuple[int, ...]]:
    """The sliding window, in tokens, and the blocks that have it (none named: all). A Llama has no window,
    whatever it says; Mistral has one in every block; Qwen2 has one in some, if it is used at all.

    More blocks than tensors are an error, told later; until then no list may be as long as they are many.
    """
    keys.ignore("sliding_window", "use_sliding_window", "max_window_layers", "layer_types")
    if model_type not in ("mistral", "qwen2"):
        return None, ()
    window = keys.optional_count("sliding_window") if "sliding_window" in keys.data else 4096
    if model_type == "mistral":
        return window, ()
    if window is None or not keys.flag("use_sliding_window", False):
        return None, ()
    first, kinds = keys.get("max_window_layers", 28), keys.get("layer_types")
    if type(first) is not int or first < 0:
        raise keys.wrong("max_window_layers", first, "a whole number from 0 on")
    n_blocks = min(n_blocks, n_tensors)
    if kinds is None:
        kinds = [FULL if i < first else SLIDING for i in range(n_blocks)]
    if not isinstance(kinds, list) or len(kinds) != n_blocks or not all(kind in (FULL, SLIDING) for kind in kinds):
        raise keys.wrong("layer_types", kinds, f"{FULL} or {SLIDING} for each of the {n_blocks} layers")
    blocks = tuple(i for i, kind in enumerate(kinds) if kind == SLIDING)
    return (window if blocks else None), (() if len(blocks) == n_blocks else blocks)


def _window_keys(stack: StackConfig) -> dict[str, Any]:
    """The same, written. Biases on queries, keys and values alone make a Qwen2; else a window makes a Mistral."""
    if stack.qkv_bias and not stack.out_bias:
        kinds = [FULL if stack.window_of(i) is None else SLIDING for i in range(stack.n_blocks)]
        return {
            "model_type": "qwen2",
            "use_sliding_window": stack.window is not None,
            "sliding_window": stack.window,
            "max_window_layers": kinds.index(SLIDING) if SLIDING in kinds else stack.n_blocks,  # all that v4 knows
            "layer_types": kinds,
        }
    if stack.window is None:
        return {"attention_bias": stack.qkv_bias, "sliding_window": None}
    if stack.window_blocks or stack.qkv_bias or stack.ff_bias:
        raise CheckpointError("Mistral has a sliding window in every block and no biases, and this model differs")
    return {"model_type": "mistral", "sliding_window": stack.window}


def write(config: TransformerConfig) -> dict[str, Any]:
    stack = config.last
    rope: dict[str, Any] = {"rope_theta": stack.rotary_base, "rope_type": "default"}
    if (scaling := stack.rotary_scaling) is not None:
        rope |= {"rope_type": "llama3", **write_keys(SCALING, scaling)}
    return {
        **_window_keys(stack),
        **write_keys(KEYS, stack),
        "rope_theta": stack.rotary_base,  # said twice: for readers of v4 and of v5
        "rope_scaling": None if scaling is None else rope,
        "rope_parameters": rope,
        "tie_word_embeddings": isinstance(config.head, LanguageModel) and config.head.tied,
        **class_keys(config),
    }


def language_model(keys: Keys, contents: FileTensors) -> Head:
    return LanguageModel(tied=contents.tied("lm_head.weight", "embed_tokens.weight"))


def classifier(keys: Keys, contents: FileTensors) -> Head:
    """Reads the last token, which alone has seen the whole text."""
    return Classifier(n_classes=n_classes(keys), pooling="last", bias=False)


def _architectures(name: str) -> dict[str, Architecture]:
    return {
        f"{name}ForCausalLM": Architecture(LanguageModel, language_model),
        f"{name}ForSequenceClassification": Architecture(Classifier, classifier),
        f"{name}ForQuestionAnswering": Architecture(
            AnswerSpan, lambda keys, contents: AnswerSpan(), prefix=None if name == "Mistral" else "transformer."
        ),
        f"{name}Model": BODY,
    }


FAMILY = Family(
    name="Llama",
    model_types=("llama", "mistral", "qwen2"),
    architectures=_architectures("Llama") | _architectures("Mistral") | _architectures("Qwen2"),
    read=read,
    write=write,
    names=lambda config: NAMES,
    prefixes=("model.", "transformer."),
)
