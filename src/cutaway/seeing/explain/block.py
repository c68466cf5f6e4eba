"""A block: what its sublayers add to the residual stream, the norms around them, and the feed-forward network."""

from cutaway.seeing.explain.attention import attention
from cutaway.seeing.explain.expression import Call, Expression, Product
from cutaway.seeing.explain.linear import added, linear, tapped
from cutaway.seeing.explain.norms import norm
from cutaway.seeing.explain.residual import stream_after, stream_before, sublayer_input
from cutaway.seeing.explain.source import Source


def block(source: Source, side: str, number: int, path: list[str], at: tuple[int, ...]) -> Expression | None:
    """`path` is what follows "encoder.blocks.0."."""
    here = f"{side}.blocks.{number}"
    stack = source.stack(side)
    match path:
        case ["input"]:
            fed = f"{side}.embedding.output" if number == 0 else f"{side}.blocks.{number - 1}.output"
            return source.number(fed, *at)
        case ["output"]:
            return source.number(stream_after(stack, here, "feedforward"), *at)
        case ["self_attention_add" | "cross_attention_add" | "feedforward_add" as add]:
            sublayer = add.removesuffix("_add")
            stream = source.number(stream_before(source, side, here, sublayer), *at)
            return added(stream, source.number(f"{here}.{sublayer}.output", *at))
        case ["self_attention_norm" | "cross_attention_norm" | "feedforward_norm" as name, value]:
            sublayer = name.removesuffix("_norm")
            post = stack.norm_place == "post"
            x = f"{here}.{sublayer}_add" if post else stream_before(source, side, here, sublayer)
            return norm(source, f"{here}.{name}", value, at, tapped(source, x, *at[:2]), stack.norm, stack.norm_epsilon)
        case ["self_attention" | "cross_attention" as kind, value]:
            return attention(source, side, here, kind, value, at)
        case ["feedforward", value]:
            return _feedforward(source, side, here, value, at)
    return None


def _feedforward(source: Source, side: str, block: str, value: str, at: tuple[int, ...]) -> Expression | None:
    """act(x W₁ + b₁) W₂ + b₂; gated: (act(x W_gate) · x W₁) W₂"""
    here, stack = f"{block}.feedforward", source.stack(side)
    b, t, f = at
    match value:
        case "hidden" | "gates":
            x = source.vector(sublayer_input(source, side, block, "feedforward"), b, t, None)
            made = linear(source, f"{here}.{'up' if value == 'hidden' else 'gate'}", f, x)
            return made if value == "hidden" else Call(stack.activation, made)
        case "activated":
            hidden = source.number(f"{here}.hidden", *at)
            if stack.gated:
                return Product((source.number(f"{here}.gates", *at), hidden))
            return Call(stack.activation, hidden)
        case "output":
            return linear(source, f"{here}.down", f, source.vector(f"{here}.activated", b, t, None))
    return None
