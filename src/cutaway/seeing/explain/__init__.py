"""The sum behind one number, recomputed from its inputs by rules that share nothing with the network but its weights
and its config. The network is tensors in float32; this is formulas on single numbers, in Python's float64.
"""

from typing import TYPE_CHECKING

from cutaway.errors import InputError
from cutaway.models.config import RecurrentConfig
from cutaway.seeing.explain import recurrent, recurrent_attention
from cutaway.seeing.explain.attention import relative_bias
from cutaway.seeing.explain.block import block
from cutaway.seeing.explain.embedding import embedding, summed
from cutaway.seeing.explain.explanation import Explanation
from cutaway.seeing.explain.expression import Expression
from cutaway.seeing.explain.heads import head
from cutaway.seeing.explain.index import checked, place_of, word_of
from cutaway.seeing.explain.linear import tapped
from cutaway.seeing.explain.norms import norm
from cutaway.seeing.explain.residual import last_block
from cutaway.seeing.explain.source import Source

if TYPE_CHECKING:
    from cutaway.seeing.trace.trace import Trace

__all__ = ["Explanation", "explain", "explain_at"]


def explain(trace: "Trace", name: str, /, **place: int) -> Explanation:
    """See Trace.explain."""
    value = trace[name]
    return _explained(trace, name, place_of(name, trace.axes(name), value.shape, place))


def explain_at(trace: "Trace", name: str, at: tuple[int, ...]) -> Explanation:
    """`explain` for a cell given by its index on each axis."""
    axes, shape = trace.axes(name), trace[name].shape
    if len(at) != len(axes):
        raise InputError(f"'{name}' has {len(axes)} axes ({axes}); {list(at)} gives {len(at)}")
    each = zip(axes, at, shape, strict=True)
    return _explained(trace, name, tuple(checked(name, word_of(axis, axes), index, n) for axis, index, n in each))


def _explained(trace: "Trace", name: str, at: tuple[int, ...]) -> Explanation:
    source = Source(trace, name)
    value = source.number(name, *at).value
    expression = _rule(source, name, at)
    if expression is None:
        raise InputError(f"there is no rule for '{name}': it is not a value of a {source.config.kind} of cutaway")
    rounding = {"epsilon": source.epsilon, "smallest": source.smallest}
    return Explanation(name, at, _where(trace, name, at), trace.formula(name), value, expression, **rounding)


def _rule(source: Source, name: str, at: tuple[int, ...]) -> Expression | None:
    """From a value's name to the rule for its numbers."""
    if isinstance(source.config, RecurrentConfig):
        match name.split("."):
            case ["encoder" | "decoder", "forwards" | "backwards" | "layers", _, value]:
                return recurrent.layer(source, name.removesuffix(f".{value}"), value, at)
            case ["encoder", "output"]:
                return recurrent.encoder_output(source, at)
            case ["decoder", "output"]:
                return recurrent.decoder_output(source, at)
            case ["decoder", "bridge", number, "output"]:
                return recurrent.bridge(source, int(number), at)
            case ["decoder", "attention", value]:
                return recurrent_attention.attention(source, value, at)
    match name.split("."):
        case ["encoder" | "decoder" as side, "embedding", value]:
            return embedding(source, side, value, at)
        case ["encoder" | "decoder" as side, "embedding", "norm", value]:
            stack, x = source.stack(side), summed(source, side, *at[:2])
            return norm(source, f"{side}.embedding.norm", value, at, x, stack.norm, stack.norm_epsilon)
        case ["encoder" | "decoder" as side, "blocks", number, *path]:
            return block(source, side, int(number), path, at)
        case ["encoder" | "decoder" as side, "final_norm", value]:
            stack, x = source.stack(side), tapped(source, last_block(source, side), *at[:2])
            return norm(source, f"{side}.final_norm", value, at, x, stack.norm, stack.norm_epsilon)
        case ["encoder" | "decoder" as side, "relative_bias", "output"]:
            return relative_bias(source, side, at)
        case ["head", *path]:
            return head(source, path, at)
    return None


def _where(trace: "Trace", name: str, at: tuple[int, ...]) -> str:
    """head 2, query 3 (▁cat), key 5 (▁sat); the row of a batch of one is left out."""
    axes, shape = trace.axes(name), trace[name].shape
    parts = []
    for axis, index, n, labels in zip(axes, at, shape, trace.labels(name), strict=True):
        if n > 1 or axis not in "B1":
            label = "" if labels is None else labels[index].strip()
            parts.append(f"{word_of(axis, axes)} {index}" + (f" ({label})" if label else ""))
    return ", ".join(parts)
