"""softmax(Q Kᵀ / √K + bias) V, in heads: every step of an attention from the one before it."""

from cutaway.seeing.explain.expression import Call, Dot, Expression, Number, Product, Quotient, Softmax, Sum
from cutaway.seeing.explain.linear import linear, minus, root
from cutaway.seeing.explain.positions import bucket, position, rotation
from cutaway.seeing.explain.residual import stack_output_name, sublayer_input
from cutaway.seeing.explain.source import Source

HIDDEN = Number(float("-inf"))
VISIBLE = Number(0.0)


def attention(source: Source, side: str, block: str, kind: str, value: str, at: tuple[int, ...]) -> Expression | None:
    """`kind` is self_attention or cross_attention of a block ("decoder.blocks.0")."""
    here = f"{block}.{kind}"
    cross = kind == "cross_attention"
    stack = source.stack(side)
    width = stack.d_head or stack.d_model // stack.n_heads
    group = stack.n_heads // (stack.n_kv_heads or stack.n_heads)  # query heads for each of keys and values
    rotated = "rotated_" if stack.positions == "rotary" and not cross else ""
    match value:
        case "queries":
            b, h, t, k = at
            x = source.vector(sublayer_input(source, side, block, kind), b, t, None)
            return linear(source, f"{here}.q", h * width + k, x)
        case "keys" | "values":
            b, g, s, k = at
            memory = stack_output_name(source, "encoder") if cross else sublayer_input(source, side, block, kind)
            return linear(source, f"{here}.{value[0]}", g * width + k, source.vector(memory, b, s, None))
        case "rotated_queries" | "rotated_keys":
            return _rotated(source, side, f"{here}.{value.removeprefix('rotated_')}", width, at)
        case "scores":
            b, h, t, s = at
            q = source.vector(f"{here}.{rotated}queries", b, h, t, None)
            return Dot(q, source.vector(f"{here}.{rotated}keys", b, h // group, s, None))
        case "scaled_scores":
            score = source.number(f"{here}.scores", *at)
            return Quotient(score, root(width)) if stack.scale_scores else score
        case "masked_scores":
            window = None if cross else stack.window_of(int(block.rpartition(".")[2]))
            return _masked(source, side, here, cross, window, at)
        case "weights":
            b, h, t, s = at
            return Softmax(source.vector(f"{here}.masked_scores", b, h, t, None), s)
        case "heads":
            b, h, t, k = at
            weights = source.vector(f"{here}.weights", b, h, t, None)
            return Dot(weights, source.vector(f"{here}.values", b, h // group, None, k))
        case "concatenated":
            b, t, e = at
            return source.number(f"{here}.heads", b, e // width, t, e % width)
        case "output":
            b, t, d = at
            return linear(source, f"{here}.out", d, source.vector(f"{here}.concatenated", b, t, None))
    return None


def _rotated(source: Source, side: str, name: str, width: int, at: tuple[int, ...]) -> Expression:
    """(x, y) rotated by its angle: x cos - y sin, and y cos + x sin; x is of the head's first half, y of its second."""
    b, h, t, k = at
    half = width // 2
    angle = rotation(source.stack(side), position(source, side, b, t), k, width)
    this = Product((source.number(name, *at), Call("cos", angle)))
    other = Product((source.number(name, b, h, t, k + half if k < half else k - half), Call("sin", angle)))
    return Sum((this, minus(other) if k < half else other))


def _masked(
    source: Source, side: str, here: str, cross: bool, window: int | None, at: tuple[int, ...]
) -> Expression:  # fmt: skip
    b, h, t, s = at
    terms = [source.number(f"{here}.scaled_scores", *at)]
    if source.stack(side).positions == "t5_bias" and not cross:
        bias = f"{side}.relative_bias.output"
        terms.append(source.number(bias, b if source.shape(bias)[0] > 1 else 0, h, t, s))  # 1: all rows alike
    n_keys = source.shape(f"{here}.scaled_scores")[-1]
    real = source.real("encoder" if cross else side, b, n_keys)
    first = 0 if window is None else t - window + 1
    sees = [real[i] and (cross or side == "encoder" or first <= i <= t) for i in range(n_keys)]
    # A query without a visible key (padding on the left) sees all keys: softmax over none has no value.
    return Sum((*terms, VISIBLE if sees[s] or not any(sees) else HIDDEN))


def relative_bias(source: Source, side: str, at: tuple[int, ...]) -> Expression:
    """T5's table[bucket of the distance, head]; a decoder's distances only go back."""
    b, h, t, s = at
    distance = position(source, side, b, s) - position(source, side, b, t)
    near = bucket(source.stack(side), distance, both_ways=side == "encoder")
    return source.weight(f"{side}.relative_bias.weight", near, h)
