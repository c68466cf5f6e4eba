"""Bahdanau's additive attention and Luong's dot, over the states of a recurrent encoder."""

from cutaway.seeing.explain.attention import HIDDEN, VISIBLE
from cutaway.seeing.explain.expression import Dot, Expression, Softmax, Sum
from cutaway.seeing.explain.linear import added_rows, called, linear
from cutaway.seeing.explain.recurrent import layer_output, previous_state
from cutaway.seeing.explain.source import Source

HERE = "decoder.attention"


def attention(source: Source, value: str, at: tuple[int, ...]) -> Expression | None:
    """α = softmax(score(s, h)), c = Σ α h"""
    match value:
        case "keys":
            b, s, d = at
            return linear(source, f"{HERE}.k", d, source.vector("encoder.output", b, s, None))
        case "queries":
            b, t, d = at
            return linear(source, f"{HERE}.q", d, previous_state(source, _top(source), "hidden", b, t).all())
        case "scores":
            return _score(source, at)
        case "masked_scores":
            b, _, s = at
            real = source.real("encoder", b, source.shape(f"{HERE}.scores")[2])
            return Sum((source.number(f"{HERE}.scores", *at), VISIBLE if real[s] else HIDDEN))
        case "weights":
            b, t, s = at
            return Softmax(source.vector(f"{HERE}.masked_scores", b, t, None), s)
        case "output":
            b, t, e = at
            return Dot(source.vector(f"{HERE}.weights", b, t, None), source.vector("encoder.output", b, None, e))
    return None


def _score(source: Source, at: tuple[int, ...]) -> Expression:
    """additive: vᵀ tanh(W s + U h), s the state before the step; dot: s · U h, s the state after it."""
    b, t, s = at
    key = source.vector(f"{HERE}.keys", b, s, None)
    if source.recurrent.attention == "dot":
        return Dot(layer_output(source, _top(source), b, t), key)
    query = source.vector(f"{HERE}.queries", b, t, None)
    return Dot(called("tanh", added_rows(query, key)), source.weights(f"{HERE}.energy.weight", 0, None))


def _top(source: Source) -> str:
    return f"decoder.layers.{source.recurrent.decoder.n_layers - 1}"
