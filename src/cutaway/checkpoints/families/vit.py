"""ViT; DeiT's models without a distillation token are saved as ViT too."""

from typing import Any

from cutaway.checkpoints.family import Architecture, Contents, Family, class_keys, n_classes
from cutaway.checkpoints.keys import ACTIVATION_NAMES, Keys
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


def read(keys: Keys, contents: Contents, head: Head | None) -> TransformerConfig:
    keys.ignore("encoder_stride", "pooler_output_size", "pooler_act")
    encoder = StackConfig(
        patches=PatchConfig(
            image_size=_square(keys, "image_size", 224),
            patch_size=_square(keys, "patch_size", 16),
            channels=keys.count("num_channels", 3),
        ),
        n_blocks=keys.count("num_hidden_layers", 12),
        d_model=keys.count("hidden_size", 768),
        n_heads=keys.count("num_attention_heads", 12),
        d_ff=keys.count("intermediate_size", 3072),
        activation=keys.activation("hidden_act", "gelu"),
        norm_place="pre",
        norm_epsilon=keys.number("layer_norm_eps", 1e-12, low=1e-30),
        positions="learned",
        scale_embedding=False,
        qkv_bias=keys.flag("qkv_bias", True),
        dropout=keys.probability("hidden_dropout_prob", 0.0),
        attention_dropout=keys.probability("attention_probs_dropout_prob", 0.0),
    )
    return TransformerConfig(encoder=encoder, head=head, initialization="truncated_normal")


def pooler(keys: Keys, contents: Contents) -> Head | None:
    """Some bare encoders were saved with the pooler and some without."""
    if "pooler.dense.weight" not in contents:
        return None
    width = keys.count("hidden_size", 768)
    keys.only("pooler_output_size", width, why="cutaway's pooler is as wide as the model")
    return SentenceVector(pooling="first", hidden=keys.activation("pooler_act", "tanh"))


def write(config: TransformerConfig) -> dict[str, Any]:
    stack, patches = config.last, _patches(config)
    return {
        "image_size": patches.image_size,
        "patch_size": patches.patch_size,
        "num_channels": patches.channels,
        "num_hidden_layers": stack.n_blocks,
        "hidden_size": stack.d_model,
        "num_attention_heads": stack.n_heads,
        "intermediate_size": stack.d_ff,
        "hidden_act": ACTIVATION_NAMES[stack.activation],
        "layer_norm_eps": stack.norm_epsilon,
        "qkv_bias": stack.qkv_bias,
        "hidden_dropout_prob": stack.dropout,
        "attention_probs_dropout_prob": stack.attention_dropout,
        **class_keys(config),
    }


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
