"""GPT-2."""

from typing import Any

from cutaway.checkpoints.family import BODY, Architecture, Contents, Family, class_keys, n_classes
from cutaway.checkpoints.keys import ACTIVATION_NAMES, Keys
from cutaway.checkpoints.rules import FLIP, NameMap, Rule, split, split_columns
from cutaway.models.config import AnswerSpan, Classifier, Head, LanguageModel, StackConfig, TransformerConfig

BLOCK, OURS = "h.{i}.", "decoder.blocks.{i}."

NAMES = NameMap(
    body=[
        Rule("wte.weight", "decoder.embedding.tokens.weight"),
        Rule("wpe.weight", "decoder.embedding.positions.weight"),
        Rule(BLOCK + "ln_1.{weight,bias}", OURS + "self_attention_norm.{weight,bias}"),
        # Conv1D: weights lie as [in, out], queries, keys and values side by side.
        Rule(BLOCK + "attn.c_attn.weight", OURS + "self_attention.[q,k,v].weight", split_columns(3)),
        Rule(BLOCK + "attn.c_attn.bias", OURS + "self_attention.[q,k,v].bias", split(3)),
        Rule(BLOCK + "attn.c_proj.weight", OURS + "self_attention.out.weight", FLIP),
        Rule(BLOCK + "attn.c_proj.bias", OURS + "self_attention.out.bias"),
        Rule(BLOCK + "ln_2.{weight,bias}", OURS + "feedforward_norm.{weight,bias}"),
        Rule(BLOCK + "mlp.{c_fc,c_proj}.weight", OURS + "feedforward.{up,down}.weight", FLIP),
        Rule(BLOCK + "mlp.{c_fc,c_proj}.bias", OURS + "feedforward.{up,down}.bias"),
        Rule("ln_f.{weight,bias}", "decoder.final_norm.{weight,bias}"),
    ],
    head=[
        Rule("lm_head.weight", "head.vocabulary.weight"),
        Rule("score.weight", "head.classes.weight"),
        Rule("qa_outputs.{weight,bias}", "head.ends.{weight,bias}"),
    ],
    copies={"lm_head.weight": "wte.weight"},
    ignored=("h.*.attn.bias", "h.*.attn.masked_bias"),  # the look-ahead mask, once saved as if it were learnt
)


def read(keys: Keys, contents: Contents, head: Head | None) -> TransformerConfig:
    keys.only("scale_attn_by_inverse_layer_idx", False, why="cutaway does not scale scores by depth")
    keys.only("add_cross_attention", False, why="cutaway's GPT-2 has no encoder")
    # n_ctx repeats n_positions; reorder_and_upcast_attn changes the order of computing, not the result.
    keys.ignore("n_ctx", "reorder_and_upcast_attn", "embd_pdrop", "tie_word_embeddings")
    keys.ignore(*(f"summary_{name}" for name in ("type", "use_proj", "activation", "proj_to_labels", "first_dropout")))
    d_model = keys.count("n_embd", 768)
    decoder = StackConfig(
        vocabulary=keys.count("vocab_size", 50257),
        n_blocks=keys.count("n_layer", 12),
        d_model=d_model,
        n_heads=keys.count("n_head", 12),
        d_ff=keys.optional_count("n_inner") or 4 * d_model,
        activation=keys.activation("activation_function", "gelu_new"),
        norm_place="pre",
        norm_epsilon=keys.number("layer_norm_epsilon", 1e-5, low=1e-30),
        positions="learned",
        max_positions=keys.count("n_positions", 1024),
        scale_embedding=False,
        scale_scores=keys.flag("scale_attn_weights", True),
        dropout=keys.probability("resid_pdrop", 0.1),
        attention_dropout=keys.probability("attn_pdrop", 0.1),
    )
    return TransformerConfig(decoder=decoder, head=head, initialization="normal_by_depth")


def language_model(keys: Keys, contents: Contents) -> Head:
    return LanguageModel(tied=contents.tied("lm_head.weight", "wte.weight"))


def classifier(keys: Keys, contents: Contents) -> Head:
    """Reads the last token, which alone has seen the whole text."""
    return Classifier(n_classes=n_classes(keys), pooling="last", bias=False)


def write(config: TransformerConfig) -> dict[str, Any]:
    stack = config.last
    return {
        "vocab_size": stack.vocabulary,
        "n_layer": stack.n_blocks,
        "n_embd": stack.d_model,
        "n_head": stack.n_heads,
        "n_inner": stack.d_ff,
        "activation_function": ACTIVATION_NAMES[stack.activation],
        "layer_norm_epsilon": stack.norm_epsilon,
        "n_positions": stack.max_positions,
        "scale_attn_weights": stack.scale_scores,
        "resid_pdrop": stack.dropout,
        "embd_pdrop": stack.dropout,
        "attn_pdrop": stack.attention_dropout,
        "tie_word_embeddings": config.head.tied if isinstance(config.head, LanguageModel) else True,
        **class_keys(config),
    }


FAMILY = Family(
    name="GPT-2",
    model_types=("gpt2",),
    architectures={
        "GPT2LMHeadModel": Architecture(LanguageModel, language_model),
        "GPT2ForSequenceClassification": Architecture(Classifier, classifier),
        "GPT2ForQuestionAnswering": Architecture(AnswerSpan, lambda keys, contents: AnswerSpan()),
        "GPT2Model": BODY,
    },
    read=read,
    write=write,
    names=lambda config: NAMES,
    prefixes=("transformer.",),
    aliases={
        "hidden_size": "n_embd",
        "max_position_embeddings": "n_positions",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
    },
)
