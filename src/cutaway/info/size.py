"""The size of a model: parameters by part, FLOPs and bytes, counted on the meta device."""

from dataclasses import dataclass, replace

from torch import nn

from cutaway.checks import Size as SizeOf
from cutaway.checks import check
from cutaway.models.build import on_meta
from cutaway.models.config import Config, StackConfig, TransformerConfig
from cutaway.models.heads import LanguageModelHead, MaskedLanguageModelHead
from cutaway.models.network import Network
from cutaway.models.presets import resolve
from cutaway.parts.attention import Attention
from cutaway.parts.recurrent_attention import RecurrentAttention

PARTS = ("embedding", "attention", "cross-attention", "feed-forward", "recurrent", "norm", "head")


@dataclass(frozen=True)
class Size:
    """The size of a model. `flops_forward`: multiplications and additions for one token at `context` tokens, one on
    each side of an encoder-decoder. Training takes three times that: two products backward for each one forward."""

    parameters: int
    by_part: dict[str, int]
    context: int
    flops_forward: int
    kv_cache_floats: int

    @property
    def flops_training(self) -> int:
        return 3 * self.flops_forward

    def weight_bytes(self, bytes_per_number: int = 4) -> int:
        return self.parameters * bytes_per_number

    def kv_cache_bytes(self, bytes_per_number: int = 2) -> int:
        """Bytes that each decoded token adds to the cache."""
        return self.kv_cache_floats * bytes_per_number


def part_of(name: str) -> str:
    """The part of the lecture notes that a parameter belongs to."""
    steps = name.split(".")
    if steps[0] == "head":
        return "head"
    if any("norm" in step for step in steps):
        return "norm"
    if "embedding" in steps:
        return "embedding"
    if "cross_attention" in steps or "attention" in steps:
        return "cross-attention"
    if "self_attention" in steps or "relative_bias" in steps:
        return "attention"
    if "feedforward" in steps:
        return "feed-forward"
    return "recurrent"


def size(config: Config | str, context: int = 512) -> Size:
    """Counts a model, without memory for its weights. An image has its own number of positions, whatever `context`."""
    config = resolve(config)
    check("size: context", context, SizeOf)
    if isinstance(config.encoder, StackConfig) and config.encoder.patches is not None:
        context = config.encoder.patches.n_positions
    if not isinstance(config, TransformerConfig):
        return _count(on_meta(config), {}, context)
    # All blocks of a stack are alike: count one, as often as there are blocks.
    stacks = {"encoder": config.encoder, "decoder": config.decoder}
    encoder, decoder = (stack and replace(stack, n_blocks=1) for stack in stacks.values())
    times = {f"{name}.blocks.": stack.n_blocks for name, stack in stacks.items() if stack is not None}
    return _count(on_meta(replace(config, encoder=encoder, decoder=decoder)), times, context)


def _count(network: Network, times: dict[str, int], context: int) -> Size:
    """`times`: prefix of a name -> how often its parameters count."""

    def often(name: str) -> int:
        return next((n for prefix, n in times.items() if name.startswith(prefix)), 1)

    by_part = dict.fromkeys(PARTS, 0)
    for name, weight in network.named_parameters():
        by_part[part_of(name)] += often(name) * weight.numel()
    return Size(
        parameters=sum(by_part.values()),
        by_part=by_part,
        context=context,
        flops_forward=sum(often(name) * _flops(name, module, context) for name, module in network.named_modules())
        + _head_flops(network),
        kv_cache_floats=sum(
            often(name) * 2 * module.k.out_features
            for name, module in network.named_modules()
            if isinstance(module, Attention) and name.startswith("decoder") and name.endswith("self_attention")
        ),
    )


def _flops(name: str, module: nn.Module, context: int) -> int:
    """2 for each weight of a product, and 2 · 2 · H · K for each token that a query attends to."""
    if isinstance(module, nn.Linear) and _per_token(name):
        return 2 * module.weight.numel()
    if isinstance(module, Attention):
        return 4 * module.q.out_features * context
    if isinstance(module, RecurrentAttention):
        return 2 * (module.k.in_features + module.k.out_features) * context
    return 0


def _per_token(name: str) -> bool:
    """Whether a layer runs once a token; not once a text (bridge, pooled class), nor once for each key (energy)."""
    return not any(step in name for step in ("decoder.bridge", "attention.energy", "head.pool", "head.classes"))


def _head_flops(network: Network) -> int:
    """The product with the table of words, tied or not."""
    if not isinstance(network.head, LanguageModelHead | MaskedLanguageModelHead):
        return 0
    stack = network.config.last if isinstance(network.config, TransformerConfig) else network.config.decoder
    return 2 * stack.d_model * (stack.vocabulary or 0)
