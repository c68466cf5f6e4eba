"""ViT; DeiT's models without a distillation token are saved as ViT too."""

from typing import Any

from cutaway.checkpoints.family import Architecture, Family, FileTensors, class_keys, n_classes
from cutaway.checkpoints.keys import Key, Keys, write_keys
from cutaway.checkpoints.rules import ROW, NameMap, Rule, flatten
from cutaway.errors import CheckpointError
from cutaway.models.config import Classifier, Head, PatchConfig, SentenceVector, StackConfig, TransformerConfig

BLOCK, OURS = "encoder.layer.{i}.", "encoder.blocks.{i}."


def names(config: TransformerConfig) -> NameMap:
    patches = _patches(config)
    window = (patches.channels, patches.patch_size, patches.patch_size)
    return NameMap(
        body=[
            Rule("embeddings.cls_token", "encoder.embedding.start"),
            Rule("embeddings.position_embeddings", "encoder.embedding.positions.weight", ROW),
            Rule("embeddings.patch_embeddings.projection.weight", "encoder.embedding.patches.weight", flatten(*window)),
            Rule("embeddings.patch_embeddings.projection.bias", "encoder.embedding.patches.bias"),
            Rule(BLOCK + "layernorm_before.{weight,bias}", OURS + "self_attention_norm.{weight,bias}"),
            Rule(
                BLOCK + "attention.attention.{query,key,value}.{weight,bias}",
                OURS + "self_attention.{q,k,v}.{weight,bias}",
            ),
            Rule(BLOCK + "attention.output.dense.{weight,bias}", OURS + "self_attention.out.{weight,bias}"),
            Rule(BLOCK + "layernorm_after.{weight,bias}", OURS + "feedforward_norm.{weight,bias}"),
            Rule(BLOCK + "intermediate.dense.{weight,bias}", OURS + "feedforward.up.{weight,bias}"),
            Rule(BLOCK + "output.dense.{weight,bias}", OURS + "feedforward.down.{weight,bias}"),
            Rule("layernorm.{weight,bias}", "encoder.final_norm.{weight,bias}"),
            Rule("pooler.dense.{weight,bias}", "head.pool.dense.{weight,bias}"),
        ],
        head=[Rule("classifier.{weight,bias}", "head.classes.{weight,bias}")],
        spare=("pooler.*", "embeddings.mask_token"),
    )


def _patches(config: TransformerConfig) -> PatchConfig:
    if config.last.patches is None:
        raise CheckpointError("ViT reads images, and this model reads text")
    return config.last.patches


def _square(keys: Keys, name: str, default: int) -> int:
    """A size given as one number, or as height and width, which must then be equal."""
    value = keys.get(name)
    if isinstance(value, list) and len(value) == 2 and value[0] == value[1]:
        return Keys({name: value[0]}, keys.where).count(name)
    return keys.count(name, default)


WIDTH = Key("hidden_size", "d_model", 768)
PATCHES = (
    Key("image_size", "image_size", 224, _square),
    Key("patch_size", "patch_size", 16, _square),
    Key("num_channels", "channels", 3),
)
KEYS = (
    Key("num_hidden_layers", "n_blocks", 12),
    WIDTH,
    Key("num_attention_heads", "n_heads", 12),
    Key("intermediate_size", "d_ff", 3072),
    Key("hidden_act", "activation", "gelu", Keys.activation),
    Key("layer_norm_eps", "norm_epsilon", 1e-12, Keys.positive),
    Key("qkv_bias", "qkv_bias", True, Keys.flag),
    Key("hidden_dropout_prob", "dropout", 0.0, Keys.probability),
    Key("attention_probs_dropout_prob", "attention_dropout", 0.0, Keys.probability),
)


def read(keys: Keys, contents: FileTensors, head: Head | None) -> TransformerConfig:
    keys.ignore("encoder_stride", "pooler_output_size", "pooler_act")
    patches = PatchConfig(**keys.read(PATCHES))
    encoder = StackConfig(
        patches=patches, norm_place="pre", positions="learned", scale_embedding=False, **keys.read(KEYS)
    )
    return TransformerConfig(encoder=encoder, head=head, initialization="truncated_normal")


def pooler(keys: Keys, contents: FileTensors) -> Head | None:
    """Some bare encoders were saved with the pooler and some without."""
    if "pooler.dense.weight" not in contents:
        return None
    keys.only("pooler_output_size", *keys.read([WIDTH]).values(), why="cutaway's pooler is as wide as the model")
    return SentenceVector(pooling="first", hidden=keys.activation("pooler_act", "tanh"))


def write(config: TransformerConfig) -> dict[str, Any]:
    return write_keys(PATCHES, _patches(config)) | write_keys(KEYS, config.last) | class_keys(config)


FAMILY = Family(
    name="ViT",
    model_types=("vit",),
    architectures={
        "ViTForImageClassification": Architecture(
            Classifier, lambda keys, contents: Classifier(n_classes=n_classes(keys))
        ),
        "ViTModel": Architecture(SentenceVector, pooler, bare=True),
    },
    read=read,
    write=write,
    names=names,
    prefixes=("vit.",),
)
