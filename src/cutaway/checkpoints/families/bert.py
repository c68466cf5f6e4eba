"""BERT, and models of its shape (MiniLM)."""

from dataclasses import replace
from typing import Any

from cutaway.checkpoints.family import Architecture, Family, FileTensors, class_keys, n_classes
from cutaway.checkpoints.keys import Key, Keys, write_keys
from cutaway.checkpoints.rules import NameMap, Rule
from cutaway.models.config import (
    AnswerSpan,
    Classifier,
    Head,
    MaskedLanguageModel,
    SentenceVector,
    StackConfig,
    TransformerConfig,
)

WORDS, PROJECTION = "embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"
BLOCK, OURS = "encoder.layer.{i}.", "encoder.blocks.{i}."

NAMES = NameMap(
    body=[
        Rule(WORDS, "encoder.embedding.tokens.weight"),
        Rule("embeddings.position_embeddings.weight", "encoder.embedding.positions.weight"),
        Rule("embeddings.token_type_embeddings.weight", "encoder.embedding.segments.weight"),
        Rule("embeddings.LayerNorm.{weight,bias}", "encoder.embedding.norm.{weight,bias}"),
        Rule(BLOCK + "attention.self.{query,key,value}.{weight,bias}", OURS + "self_attention.{q,k,v}.{weight,bias}"),
        Rule(BLOCK + "attention.output.dense.{weight,bias}", OURS + "self_attention.out.{weight,bias}"),
        Rule(BLOCK + "attention.output.LayerNorm.{weight,bias}", OURS + "self_attention_norm.{weight,bias}"),
        Rule(BLOCK + "intermediate.dense.{weight,bias}", OURS + "feedforward.up.{weight,bias}"),
        Rule(BLOCK + "output.dense.{weight,bias}", OURS + "feedforward.down.{weight,bias}"),
        Rule(BLOCK + "output.LayerNorm.{weight,bias}", OURS + "feedforward_norm.{weight,bias}"),
        Rule("pooler.dense.{weight,bias}", "head.pool.dense.{weight,bias}"),
    ],
    head=[
        Rule("cls.predictions.transform.dense.{weight,bias}", "head.dense.{weight,bias}"),
        Rule("cls.predictions.transform.LayerNorm.{weight,bias}", "head.norm.{weight,bias}"),
        Rule("cls.predictions.bias", "head.vocabulary.bias"),
        Rule(PROJECTION, "head.vocabulary.weight"),
        Rule("classifier.{weight,bias}", "head.classes.{weight,bias}"),
        Rule("qa_outputs.{weight,bias}", "head.ends.{weight,bias}"),
    ],
    copies={PROJECTION: WORDS, "cls.predictions.decoder.bias": "cls.predictions.bias"},
    ignored=("embeddings.position_ids",),
    spare=("pooler.*",),
    spare_head=("cls.seq_relationship.*",),  # whether one sentence follows another
)
PRETRAINED = ("pooler.dense.weight", "pooler.dense.bias", "cls.seq_relationship.weight", "cls.seq_relationship.bias")


def names(config: TransformerConfig) -> NameMap:
    """If the output table is untied, so is its bias, which then goes by another name; the first is never used."""
    if not isinstance(config.head, MaskedLanguageModel) or config.head.tied:
        return NAMES
    old, new = "cls.predictions.bias", "cls.predictions.decoder.bias"
    head = [Rule(new, rule.ours) if rule.theirs == old else rule for rule in NAMES.head]
    return replace(NAMES, head=head, copies={old: new}, ignored=(*NAMES.ignored, old))


ACTIVATION = Key("hidden_act", "activation", "gelu", Keys.activation)
EPSILON = Key("layer_norm_eps", "norm_epsilon", 1e-12, Keys.positive)
KEYS = (
    Key("vocab_size", "vocabulary", 30522),
    Key("num_hidden_layers", "n_blocks", 12),
    Key("hidden_size", "d_model", 768),
    Key("num_attention_heads", "n_heads", 12),
    Key("intermediate_size", "d_ff", 3072),
    ACTIVATION,
    EPSILON,
    Key("max_position_embeddings", "max_positions", 512),
    Key("type_vocab_size", "n_segments", 2),
    Key("hidden_dropout_prob", "dropout", 0.1, Keys.probability),
    Key("attention_probs_dropout_prob", "attention_dropout", 0.1, Keys.probability),
)


def read(keys: Keys, contents: FileTensors, head: Head | None) -> TransformerConfig:
    keys.only("position_embedding_type", "absolute", why="cutaway's BERT has absolute positions only")
    keys.only("is_decoder", False, why="cutaway's BERT is an encoder")
    keys.only("add_cross_attention", False, why="cutaway's BERT is an encoder")
    keys.ignore("classifier_dropout", "tie_word_embeddings")
    encoder = StackConfig(positions="learned", scale_embedding=False, norm_embedding=True, **keys.read(KEYS))
    return TransformerConfig(encoder=encoder, head=head, initialization="truncated_normal")


def masked_language_model(keys: Keys, contents: FileTensors) -> Head:
    return MaskedLanguageModel(tied=contents.tied(PROJECTION, WORDS), **keys.read((ACTIVATION, EPSILON)))


def classifier(keys: Keys, contents: FileTensors) -> Head:
    dropout = keys.probability("classifier_dropout", keys.probability("hidden_dropout_prob", 0.1))
    return Classifier(n_classes=n_classes(keys), hidden="tanh", dropout=dropout)


def pooler(keys: Keys, contents: FileTensors) -> Head | None:
    """Some bare encoders were saved with the pooler and some without."""
    return SentenceVector(pooling="first", hidden="tanh") if "pooler.dense.weight" in contents else None


def write(config: TransformerConfig) -> dict[str, Any]:
    return {
        **write_keys(KEYS, config.last),
        "classifier_dropout": config.head.dropout if isinstance(config.head, Classifier) else None,
        "tie_word_embeddings": getattr(config.head, "tied", True),
        "position_embedding_type": "absolute",
        **class_keys(config),
    }


FAMILY = Family(
    name="BERT",
    model_types=("bert",),
    architectures={
        "BertForMaskedLM": Architecture(MaskedLanguageModel, masked_language_model),
        "BertForPreTraining": Architecture(MaskedLanguageModel, masked_language_model, spare=PRETRAINED),
        "BertForSequenceClassification": Architecture(Classifier, classifier),
        "BertForQuestionAnswering": Architecture(AnswerSpan, lambda keys, contents: AnswerSpan()),
        "BertModel": Architecture(SentenceVector, pooler, bare=True),
    },
    read=read,
    write=write,
    names=names,
    prefixes=("bert.",),  # absent in files of the bare encoder, and in some old ones
    renamed={".LayerNorm.gamma": ".LayerNorm.weight", ".LayerNorm.beta": ".LayerNorm.bias"},  # until 2019
)
