"""DistilBERT: BERT without segments and without a pooler; its classifier has a dense layer of its own."""

from typing import Any

from cutaway.checkpoints.family import BODY, Architecture, Contents, Family, class_keys, n_classes
from cutaway.checkpoints.keys import ACTIVATION_NAMES, Keys
from cutaway.checkpoints.rules import NameMap, Rule
from cutaway.models.config import (
    AnswerSpan,
    Classifier,
    Head,
    MaskedLanguageModel,
    StackConfig,
    TransformerConfig,
)

EPSILON = 1e-12  # of every norm; no key says so
WORDS, PROJECTION = "embeddings.word_embeddings.weight", "vocab_projector.weight"
BLOCK, OURS = "transformer.layer.{i}.", "encoder.blocks.{i}."

NAMES = NameMap(
    body=[
        Rule(WORDS, "encoder.embedding.tokens.weight"),
        Rule("embeddings.position_embeddings.weight", "encoder.embedding.positions.weight"),
        Rule("embeddings.LayerNorm.{weight,bias}", "encoder.embedding.norm.{weight,bias}"),
        Rule(
            BLOCK + "attention.{q_lin,k_lin,v_lin,out_lin}.{weight,bias}",
            OURS + "self_attention.{q,k,v,out}.{weight,bias}",
        ),
        Rule(BLOCK + "sa_layer_norm.{weight,bias}", OURS + "self_attention_norm.{weight,bias}"),
        Rule(BLOCK + "ffn.{lin1,lin2}.{weight,bias}", OURS + "feedforward.{up,down}.{weight,bias}"),
        Rule(BLOCK + "output_layer_norm.{weight,bias}", OURS + "feedforward_norm.{weight,bias}"),
    ],
    head=[
        Rule("vocab_transform.{weight,bias}", "head.dense.{weight,bias}"),
        Rule("vocab_layer_norm.{weight,bias}", "head.norm.{weight,bias}"),
        Rule("vocab_projector.{weight,bias}", "head.vocabulary.{weight,bias}"),
        Rule("pre_classifier.{weight,bias}", "head.pool.dense.{weight,bias}"),
        Rule("classifier.{weight,bias}", "head.classes.{weight,bias}"),
        Rule("qa_outputs.{weight,bias}", "head.ends.{weight,bias}"),
    ],
    copies={PROJECTION: WORDS},
    ignored=("embeddings.position_ids",),
)


def read(keys: Keys, contents: Contents, head: Head | None) -> TransformerConfig:
    # sinusoidal_pos_embds: how positions began; the file has them as a table in either case.
    keys.ignore("sinusoidal_pos_embds", "qa_dropout", "seq_classif_dropout", "tie_weights_", "tie_word_embeddings")
    encoder = StackConfig(
        vocabulary=keys.count("vocab_size", 30522),
        n_blocks=keys.count("n_layers", 6),
        d_model=keys.count("dim", 768),
        n_heads=keys.count("n_heads", 12),
        d_ff=keys.count("hidden_dim", 3072),
        activation=keys.activation("activation", "gelu"),
        norm_epsilon=EPSILON,
        positions="learned",
        max_positions=keys.count("max_position_embeddings", 512),
        scale_embedding=False,
        norm_embedding=True,
        dropout=keys.probability("dropout", 0.1),
        attention_dropout=keys.probability("attention_dropout", 0.1),
    )
    return TransformerConfig(encoder=encoder, head=head, initialization="normal")


def masked_language_model(keys: Keys, contents: Contents) -> Head:
    return MaskedLanguageModel(
        tied=contents.tied(PROJECTION, WORDS), activation=keys.activation("activation", "gelu"), norm_epsilon=EPSILON
    )


def classifier(keys: Keys, contents: Contents) -> Head:
    return Classifier(n_classes=n_classes(keys), hidden="relu", dropout=keys.probability("seq_classif_dropout", 0.2))


def write(config: TransformerConfig) -> dict[str, Any]:
    stack = config.last
    return {
        "vocab_size": stack.vocabulary,
        "n_layers": stack.n_blocks,
        "dim": stack.d_model,
        "n_heads": stack.n_heads,
        "hidden_dim": stack.d_ff,
        "activation": ACTIVATION_NAMES[stack.activation],
        "max_position_embeddings": stack.max_positions,
        "dropout": stack.dropout,
        "attention_dropout": stack.attention_dropout,
        "tie_word_embeddings": config.head.tied if isinstance(config.head, MaskedLanguageModel) else True,
        **({"seq_classif_dropout": config.head.dropout} if isinstance(config.head, Classifier) else {}),
        **class_keys(config),
    }


FAMILY = Family(
    name="DistilBERT",
    model_types=("distilbert",),
    architectures={
        "DistilBertForMaskedLM": Architecture(MaskedLanguageModel, masked_language_model),
        "DistilBertForSequenceClassification": Architecture(Classifier, classifier),
        "DistilBertForQuestionAnswering": Architecture(AnswerSpan, lambda keys, contents: AnswerSpan()),
        "DistilBertModel": BODY,
    },
    read=read,
    write=write,
    names=lambda config: NAMES,
    prefixes=("distilbert.",),
    aliases={"hidden_size": "dim", "num_attention_heads": "n_heads", "num_hidden_layers": "n_layers"},
)
