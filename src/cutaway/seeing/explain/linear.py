"""Building blocks of the rules: sums, linear layers, and rows of numbers, tapped or recomputed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import add

from cutaway.seeing.explain import rounding
from cutaway.seeing.explain.expression import (
    Call,
    Dot,
    Expression,
    Function,
    Number,
    Part,
    Product,
    Sum,
    Vector,
    call,
    parts,
)
from cutaway.seeing.explain.source import Source


@dataclass(frozen=True)
class Row:
    """The D numbers of one token: `one(d)` is the expression of one, `all()` has their values."""

    one: Callable[[int], Expression]
    all: Callable[[], Vector]


def tapped(source: Source, name: str, *at: int) -> Row:
    """A row that the trace holds."""
    return Row(lambda d: source.number(name, *at, d), lambda: source.vector(name, *at, None))


def zeros(n: int) -> Row:
    return Row(lambda _: Number(0.0), lambda: Vector((0.0,) * n))


def added(*terms: Expression) -> Expression:
    return terms[0] if len(terms) == 1 else Sum(terms)


def minus(x: Expression) -> Expression:
    return Product((Number(-1.0), x))


def constant(whole: int) -> Number:
    return Number(float(whole), error=0.0)


def root(n: int) -> Expression:
    return Call("sqrt", constant(n))


def linear(source: Source, layer: str, row: int, *x: Vector) -> Expression:
    """x · W[row] + b[row]; several x stand side by side."""
    terms: list[Expression] = []
    start = 0
    for piece in x:
        n = len(piece.values)
        terms.append(Dot(piece, source.weights(f"{layer}.weight", row, None, start=start, length=n)))
        start += n
    if source.has_weight(f"{layer}.bias"):
        terms.append(source.weight(f"{layer}.bias", row))
    return added(*terms)


def added_rows(*rows: Vector) -> Vector:
    """The sum of rows, where the network has no tap for it."""
    columns = list(zip(*(row.values for row in rows), strict=True))
    errors = [len(rows) * sum(map(abs, column)) for column in columns]
    for row in rows:
        errors = list(map(add, errors, row.errors)) if row.errors else errors
    return Vector(tuple(map(sum, columns)), made_of=_made_of(rows), errors=tuple(errors))


def called(function: Function, x: Vector) -> Vector:
    """function(x) for each of the recomputed x."""
    values = tuple(call(function, value) for value in x.values)
    errors = tuple(rounding.through(function, value, error) for value, error in zip(x.values, x.errors, strict=True))
    return Vector(values, made_of=x.made_of, errors=errors)


def _made_of(rows: Sequence[Vector]) -> tuple[Part, ...]:
    return tuple(part for row in rows for part in parts(row))
