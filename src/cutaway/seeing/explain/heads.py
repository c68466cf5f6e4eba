"""The heads: logits of words or classes, the ends of an answer, a sentence vector."""

from cutaway.models.config import AnswerSpan, Classifier, LanguageModel, MaskedLanguageModel, SentenceVector
from cutaway.seeing.explain.expression import (
    Call,
    Dot,
    Expression,
    Mean,
    Number,
    Part,
    Quotient,
    Softmax,
    Vector,
    evaluate,
)
from cutaway.seeing.explain.linear import Row, added, constant, linear, root, tapped
from cutaway.seeing.explain.norms import norm
from cutaway.seeing.explain.residual import stack_output_name
from cutaway.seeing.explain.rounding import error_of
from cutaway.seeing.explain.source import Source

SHORTEST = 1e-12
"""A vector shorter than this is divided by it, not by its length: 0 has no direction."""


def head(source: Source, path: list[str], at: tuple[int, ...]) -> Expression | None:
    """`path`: the rest of the name after "head."."""
    kind = source.config.head
    match path:
        case ["vocabulary", "logits"]:
            return _logit(source, at)
        case ["vocabulary", "probabilities"]:
            b, t, v = at
            return Softmax(source.vector("head.vocabulary.logits", b, t, None), v)
        case ["activated"] if isinstance(kind, MaskedLanguageModel):
            b, t, d = at
            hidden = source.vector(stack_output_name(source, source.last_side), b, t, None)
            return Call(kind.activation, linear(source, "head.dense", d, hidden))
        case ["norm", value] if isinstance(kind, MaskedLanguageModel):
            row = tapped(source, "head.activated", *at[:2])
            return norm(source, "head.norm", value, at, row, "layer", kind.norm_epsilon)
        case ["pool", "pooled"] if isinstance(kind, Classifier | SentenceVector):
            return _pooled(source, kind, at)
        case ["logits"] if isinstance(kind, Classifier):
            b, c = at
            return linear(source, "head.classes", c, source.vector("head.pool.pooled", b, None))
        case ["logits"] if isinstance(kind, AnswerSpan):
            b, t, end = at
            return linear(
                source, "head.ends", end, source.vector(stack_output_name(source, source.last_side), b, t, None)
            )
        case ["vector"] if isinstance(kind, SentenceVector):
            pooled = source.number("head.pool.pooled", *at)
            if not kind.normalized:
                return pooled
            vector = source.vector("head.pool.pooled", at[0], None)
            length = Call("sqrt", Dot(vector, vector))
            return Quotient(pooled, length if evaluate(length) > SHORTEST else Number(SHORTEST))
    return None


def _logit(source: Source, at: tuple[int, ...]) -> Expression:
    """hidden [/ √D] · table[word] [+ b]; tied: the table is the embedding's."""
    b, t, v = at
    kind, side = source.config.head, source.last_side
    assert isinstance(kind, LanguageModel | MaskedLanguageModel)
    read = "head.norm.output" if isinstance(kind, MaskedLanguageModel) else stack_output_name(source, side)
    hidden = source.vector(read, b, t, None)
    table = f"{side}.embedding.tokens.weight" if kind.tied else "head.vocabulary.weight"
    product: Expression = Dot(hidden, source.weights(table, v, None))
    if isinstance(kind, LanguageModel) and kind.scaled:
        product = Quotient(product, root(len(hidden.values)))
    biased = isinstance(kind, MaskedLanguageModel) or kind.bias
    return added(product, source.weight("head.vocabulary.bias", v)) if biased else product


def _pooled(source: Source, kind: Classifier | SentenceVector, at: tuple[int, ...]) -> Expression:
    """The first, the last or the mean of the real tokens; then a dense layer, if there is one."""
    b, d = at
    side = source.last_side
    hidden = stack_output_name(source, side)
    real = source.real(side, b, source.shape(hidden)[1])
    if kind.pooling == "mean":
        row = Row(lambda d: _mean(source, hidden, real, b, d), lambda: _means(source, hidden, real, b))
    else:
        row = tapped(source, hidden, b, real.index(True) if kind.pooling == "first" else _last(real))
    return row.one(d) if kind.hidden is None else Call(kind.hidden, linear(source, "head.pool.dense", d, row.all()))


def _last(real: list[bool]) -> int:
    return max(t for t, is_real in enumerate(real) if is_real)


def _mean(source: Source, hidden: str, real: list[bool], b: int, d: int) -> Expression:
    column = source.vector(hidden, b, None, d)
    if all(real):
        return Mean(column)
    mask = Vector(tuple(map(float, real)), source.mask_name(source.last_side), (b, None))
    return Quotient(Dot(column, mask), constant(sum(real)))


def _means(source: Source, hidden: str, real: list[bool], b: int) -> Vector:
    each = [_mean(source, hidden, real, b, d) for d in range(source.shape(hidden)[2])]
    made_of = (Part(hidden, (b, None, None)),)
    return Vector(tuple(map(evaluate, each)), made_of=made_of, errors=tuple(map(error_of, each)))
