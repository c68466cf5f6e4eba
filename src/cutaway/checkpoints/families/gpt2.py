"""GPT-2."""

from typing import Any

from cutaway.checkpoints.family import BODY, Architecture, Family, FileTensors, class_keys, n_classes
from cutaway.checkpoints.keys import Key, Keys, write_keys
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


KEYS = (
    Key("vocab_size", "vocabulary", 50257),
    Key("n_layer", "n_blocks", 12),
    Key("n_embd", "d_model", 768),
    Key("n_head", "n_heads", 12),
    Key("n_inner", "d_ff"),
    Key("activation_function", "activation", "gelu_new", Keys.activation),
    Key("layer_norm_epsilon", "norm_epsilon", 1e-5, Keys.positive),
    Key("n_positions", "max_positions", 1024),
    Key("scale_attn_weights", "scale_scores", True, Keys.flag),
    Key("resid_pdrop", "dropout", 0.1, Keys.probability),
    Key("attn_pdrop", "attention_dropout", 0.1, Keys.probability),
)


def read(keys: Keys, contents: FileTensors, head: Head | None) -> TransformerConfig:
    keys.only("scale_attn_by_inverse_layer_idx", False, why="cutaway does not scale scores by depth")
    keys.only("add_cross_attention", False, why="cutaway's GPT-2 has no encoder")
    # n_ctx repeats n_positions; reorder_and_upcast_attn changes the order of computing, not the result.
    keys.ignore("n_ctx", "reorder_and_upcast_attn", "embd_pdrop", "tie_word_embeddings")
    keys.ignore(*(f"summary_{name}" for name in ("type", "use_proj", "activation", "proj_to_labels", "first_dropout")))
    given = keys.read(KEYS)
    given.setdefault("d_ff", 4 * given["d_model"])
    decoder = StackConfig(norm_place="pre", positions="learned", scale_embedding=False, **given)
    return TransformerConfig(decoder=decoder, head=head, initialization="normal_by_depth")


def language_model(keys: Keys, contents: FileTensors) -> Head:
    return LanguageModel(tied=contents.tied("lm_head.weight", "wte.weight"))


def classifier(keys: Keys, contents: FileTensors) -> Head:
    """Reads the last token, which alone has seen the whole text."""
    return Classifier(n_classes=n_classes(keys), pooling="last", bias=False)


def write(config: TransformerConfig) -> dict[str, Any]:
    return {
        **write_keys(KEYS, config.last),
        "embd_pdrop": config.last.dropout,
        "tie_word_embeddings": getattr(config.head, "tied", True),
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
