"""DistilBERT: BERT without segments and without a pooler; its classifier has a dense layer of its own."""

from typing import Any

from cutaway.checkpoints.family import BODY, Architecture, Family, FileTensors, class_keys, n_classes
from cutaway.checkpoints.keys import Key, Keys, write_keys
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


ACTIVATION = Key("activation", "activation", "gelu", Keys.activation)
KEYS = (
    Key("vocab_size", "vocabulary", 30522),
    Key("n_layers", "n_blocks", 6),
    Key("dim", "d_model", 768),
    Key("n_heads", "n_heads", 12),
    Key("hidden_dim", "d_ff", 3072),
    ACTIVATION,
    Key("max_position_embeddings", "max_positions", 512),
    Key("dropout", "dropout", 0.1, Keys.probability),
    Key("attention_dropout", "attention_dropout", 0.1, Keys.probability),
)


def read(keys: Keys, contents: FileTensors, head: Head | None) -> TransformerConfig:
    # sinusoidal_pos_embds: how positions began; the file has them as a table in either case.
    keys.ignore("sinusoidal_pos_embds", "qa_dropout", "seq_classif_dropout", "tie_weights_", "tie_word_embeddings")
    encoder = StackConfig(
        norm_epsilon=EPSILON, positions="learned", scale_embedding=False, norm_embedding=True, **keys.read(KEYS)
    )
    return TransformerConfig(encoder=encoder, head=head, initialization="normal")


def masked_language_model(keys: Keys, contents: FileTensors) -> Head:
    tied = contents.tied(PROJECTION, WORDS)
    return MaskedLanguageModel(tied=tied, norm_epsilon=EPSILON, **keys.read([ACTIVATION]))


def classifier(keys: Keys, contents: FileTensors) -> Head:
    return Classifier(n_classes=n_classes(keys), hidden="relu", dropout=keys.probability("seq_classif_dropout", 0.2))


def write(config: TransformerConfig) -> dict[str, Any]:
    return {
        **write_keys(KEYS, config.last),
        "tie_word_embeddings": getattr(config.head, "tied", True),
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
