"""Llama 1 to 3.x, and what is shaped like it: Mistral, Qwen2."""

from typing import Any

from cutaway.checkpoints.family import BODY, Architecture, Contents, Family, class_keys, n_classes
from cutaway.checkpoints.keys import ACTIVATION_NAMES, Keys
from cutaway.checkpoints.rules import NameMap, Rule
from cutaway.errors import CheckpointError
from cutaway.models.config import AnswerSpan, Classifier, Head, LanguageModel, StackConfig, TransformerConfig
from cutaway.parts.positions import RotaryScaling

BLOCK, OURS = "layers.{i}.", "decoder.blocks.{i}."

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
    return base, RotaryScaling(
        factor=given.number("factor", 8.0, low=1.0),
        low_frequency_factor=given.number("low_freq_factor", 1.0, low=1e-6),
        high_frequency_factor=given.number("high_freq_factor", 4.0, low=1e-6),
        original_positions=given.count("original_max_position_embeddings", keys.count("max_position_embeddings", 2048)),
    )


def read(keys: Keys, contents: Contents, head: Head | None) -> TransformerConfig:
    model_type = keys.get("model_type", "llama")
    _no_window(keys, model_type)
    keys.only("partial_rotary_factor", 1.0, why="cutaway turns whole heads")
    keys.ignore("max_window_layers", "layer_types", "tie_word_embeddings", "default_theta")
    base, scaling = rotation(keys)
    n_heads = keys.count("num_attention_heads", 32)
    d_model = keys.count("hidden_size", 4096)
    d_head = keys.optional_count("head_dim")
    qkv_bias = out_bias = keys.flag("attention_bias", False)
    if model_type == "qwen2":
        qkv_bias, out_bias = True, False  # no key says so
    decoder = StackConfig(
        vocabulary=keys.count("vocab_size", 32000),
        n_blocks=keys.count("num_hidden_layers", 32),
        d_model=d_model,
        n_heads=n_heads,
        n_kv_heads=keys.count("num_key_value_heads", 8 if model_type == "mistral" else n_heads),
        d_head=None if d_head is None or d_head * n_heads == d_model else d_head,
        d_ff=keys.count("intermediate_size", 11008),
        activation=keys.activation("hidden_act", "silu"),
        gated=True,
        norm="rms",
        norm_place="pre",
        norm_epsilon=keys.number("rms_norm_eps", 1e-6, low=1e-30),
        positions="rotary",
        max_positions=keys.count("max_position_embeddings", 2048),
        rotary_base=base,
        rotary_scaling=scaling,
        scale_embedding=False,
        qkv_bias=qkv_bias,
        out_bias=out_bias,
        ff_bias=keys.flag("mlp_bias", False),
        dropout=0.0,
        attention_dropout=keys.probability("attention_dropout", 0.0),
    )
    return TransformerConfig(decoder=decoder, head=head, initialization="normal")


def _no_window(keys: Keys, model_type: str) -> None:
    """Attention that sees only the last so many tokens, if the model was trained on more than that."""
    window = keys.optional_count("sliding_window")
    used = keys.flag("use_sliding_window", model_type == "mistral")
    if used and window is not None and window < keys.count("max_position_embeddings", 2048):
        raise CheckpointError(
            f"{keys.where}: sliding_window={window}: cutaway's attention sees everything, so texts longer than that "
            "would give other numbers; if yours are shorter, set sliding_window to null in a copy of the model"
        )


def write(config: TransformerConfig) -> dict[str, Any]:
    stack = config.last
    rope: dict[str, Any] = {"rope_theta": stack.rotary_base, "rope_type": "default"}
    if (scaling := stack.rotary_scaling) is not None:
        rope |= {
            "rope_type": "llama3",
            "factor": scaling.factor,
            "low_freq_factor": scaling.low_frequency_factor,
            "high_freq_factor": scaling.high_frequency_factor,
            "original_max_position_embeddings": scaling.original_positions,
        }
    return {
        # Biases on queries, keys and values alone are Qwen2's, which is a Llama otherwise.
        **({"model_type": "qwen2"} if stack.qkv_bias and not stack.out_bias else {"attention_bias": stack.qkv_bias}),
        "vocab_size": stack.vocabulary,
        "num_hidden_layers": stack.n_blocks,
        "hidden_size": stack.d_model,
        "num_attention_heads": stack.n_heads,
        "num_key_value_heads": stack.kv_heads,
        "head_dim": stack.head_width,
        "intermediate_size": stack.d_ff,
        "hidden_act": ACTIVATION_NAMES[stack.activation],
        "rms_norm_eps": stack.norm_epsilon,
        "max_position_embeddings": stack.max_positions or 2048,
        "rope_theta": stack.rotary_base,  # said twice: for readers of v4 and of v5
        "rope_scaling": None if scaling is None else rope,
        "rope_parameters": rope,
        "mlp_bias": stack.ff_bias,
        "attention_dropout": stack.attention_dropout,
        "tie_word_embeddings": isinstance(config.head, LanguageModel) and config.head.tied,
        **class_keys(config),
    }


def language_model(keys: Keys, contents: Contents) -> Head:
    return LanguageModel(tied=contents.tied("lm_head.weight", "embed_tokens.weight"))


def classifier(keys: Keys, contents: Contents) -> Head:
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
