"""Expressions as trees, whose leaves are cells of a trace, an input or the weights, and constants.

Nothing here knows of networks, and `evaluate` is Python's own arithmetic in float64.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import mul
from typing import Any, Literal

Function = Literal["exp", "sqrt", "tanh", "sigmoid", "relu", "gelu", "gelu_tanh", "silu", "sin", "cos"]
Place = tuple[int | None, ...]
"""An index for each axis; None: along this axis."""


@dataclass(frozen=True, slots=True)
class Part:
    """Cells of one value, weight or input that an expression reads; along the axis None, `length` from `start`."""

    of: str
    at: Place
    start: int = 0
    length: int | None = None  # to the end


@dataclass(frozen=True, slots=True)
class Number:
    """A cell (`of` names its value, weight or input), or a constant, which may be written as `text`."""

    value: float
    of: str | None = None
    at: tuple[int, ...] = ()
    text: str | None = None
    error: float | None = None  # of a constant: how far the network's may be from it; see rounding.py


@dataclass(frozen=True, slots=True)
class Vector:
    """Cells in a row; or, where the network has no tap for them, numbers recomputed from `made_of`."""

    values: tuple[float, ...]
    of: str | None = None
    at: Place = ()
    start: int = 0  # the first one's index on the axis None
    made_of: tuple[Part, ...] = ()
    errors: tuple[float, ...] = ()  # how far the network's may be from each recomputed number; see rounding.py


@dataclass(frozen=True, slots=True)
class Sum:
    terms: tuple["Expression", ...]


@dataclass(frozen=True, slots=True)
class Product:
    factors: tuple["Expression", ...]


@dataclass(frozen=True, slots=True)
class Quotient:
    over: "Expression"
    under: "Expression"


@dataclass(frozen=True, slots=True)
class Dot:
    """Σ aᵢ bᵢ"""

    a: Vector
    b: Vector


@dataclass(frozen=True, slots=True)
class Softmax:
    """e^scores[place] / Σ e^scores"""

    scores: Vector
    place: int


@dataclass(frozen=True, slots=True)
class Mean:
    x: Vector


@dataclass(frozen=True, slots=True)
class MeanSquare:
    x: Vector


@dataclass(frozen=True, slots=True)
class Variance:
    """Σ (x - mean)² / n"""

    x: Vector
    mean: "Expression"


@dataclass(frozen=True, slots=True)
class Call:
    function: Function
    x: "Expression"


Expression = Number | Sum | Product | Quotient | Dot | Softmax | Mean | MeanSquare | Variance | Call


def _sigmoid(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x)) if x > 0.0 else math.exp(x) / (1.0 + math.exp(x))


FUNCTIONS: dict[Function, Callable[[float], float]] = {
    "exp": math.exp,
    "sqrt": math.sqrt,
    "tanh": math.tanh,
    "sigmoid": _sigmoid,
    "relu": lambda x: max(0.0, x),
    "gelu": lambda x: x * math.erfc(-x / math.sqrt(2.0)) / 2.0,
    "gelu_tanh": lambda x: x * (1.0 + math.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x))) / 2.0,
    "silu": lambda x: x * _sigmoid(x),
    "sin": math.sin,
    "cos": math.cos,
}


def evaluate(e: Expression) -> float:
    """The value of an expression; an undefined one (0/0, ∞ - ∞) is nan, as it is in the network."""
    match e:
        case Number(value=value):
            return value
        case Sum(terms=terms):
            return sum(map(evaluate, terms))
        case Product(factors=factors):
            return math.prod(map(evaluate, factors))
        case Quotient(over=over, under=under):
            return divided(evaluate(over), evaluate(under))
        case Dot(a=a, b=b):
            return dot(a.values, b.values)
        case Softmax(scores=scores, place=place):
            return softmax(scores.values, place)
        case Mean(x=x):
            return sum(x.values) / len(x.values)
        case MeanSquare(x=x):
            return dot(x.values, x.values) / len(x.values)
        case Variance(x=x, mean=mean):
            centre = evaluate(mean)
            return sum((value - centre) ** 2 for value in x.values) / len(x.values)
        case Call(function=function, x=argument):
            return call(function, evaluate(argument))


def dot(a: Iterable[float], b: Iterable[float]) -> float:
    return sum(map(mul, a, b))


def softmax(scores: Sequence[float], place: int) -> float:
    """The largest score is subtracted first: e^x overflows beyond 709."""
    largest = max(scores)
    if math.isinf(largest):
        return math.nan
    exp = math.exp
    return exp(scores[place] - largest) / sum([exp(score - largest) for score in scores])


def divided(over: float, under: float) -> float:
    if under != 0.0:
        return over / under
    return math.nan if over == 0.0 or math.isnan(over) else math.copysign(math.inf, over)


def call(function: Function, x: float) -> float:
    try:
        return FUNCTIONS[function](x)
    except OverflowError:
        return math.inf
    except ValueError:  # √-1, sin ∞
        return math.nan


def parts(e: Expression | Vector) -> tuple[Part, ...]:
    """Every cell that the expression reads, once, in the order of the formula."""
    return tuple(dict.fromkeys(_parts(e)))


def _parts(e: Expression | Vector) -> Iterator[Part]:
    match e:
        case Number(of=of, at=at):
            if of is not None:
                yield Part(of, at)
        case Vector(of=of):
            yield from e.made_of if of is None else [Part(of, e.at, e.start, len(e.values))]
        case _:
            for inside in _inside(e):
                yield from _parts(inside)


def _inside(e: Expression) -> tuple[Expression | Vector, ...]:
    match e:
        case Number():
            return ()
        case Sum(terms=several) | Product(factors=several):
            return several
        case Quotient(over=a, under=b):
            return (a, b)
        case Dot(a=x, b=y):
            return (x, y)
        case Softmax(scores=x) | Mean(x=x) | MeanSquare(x=x):
            return (x,)
        case Variance(x=x, mean=mean):
            return (x, mean)
        case Call(x=argument):
            return (argument,)


def to_json(e: Expression | Vector) -> dict[str, Any]:
    match e:
        case Number(value=value, of=of, at=at, text=text):
            named = {} if text is None else {"text": text}
            where = None if of is None else list(at)
            return {"op": "number", "value": json_number(value), "of": of, "at": where, **named}
        case Vector(values=values, of=of, at=at, start=start):
            shifted = {"start": start} if start else {}
            along = None if of is None else list(at)
            return {"op": "vector", "values": json_numbers(values), "of": of, "at": along, **shifted}
        case Sum(terms=terms):
            return {"op": "sum", "terms": [to_json(term) for term in terms]}
        case Product(factors=factors):
            return {"op": "product", "factors": [to_json(factor) for factor in factors]}
        case Quotient(over=over, under=under):
            return {"op": "quotient", "over": to_json(over), "under": to_json(under)}
        case Dot(a=a, b=b):
            return {"op": "dot", "a": to_json(a), "b": to_json(b)}
        case Softmax(scores=scores, place=place):
            return {"op": "softmax", "scores": to_json(scores), "place": place}
        case Mean(x=x):
            return {"op": "mean", "x": to_json(x)}
        case MeanSquare(x=x):
            return {"op": "mean_square", "x": to_json(x)}
        case Variance(x=x, mean=mean):
            return {"op": "variance", "x": to_json(x), "mean": to_json(mean)}
        case Call(function=function, x=argument):
            return {"op": "call", "function": function, "x": to_json(argument)}


def json_number(x: float) -> float | str:
    """JSON has no infinity: "inf", "-inf" and "nan" are strings."""
    return x if math.isfinite(x) else str(x)


def json_numbers(values: Sequence[float]) -> list[float | str]:
    return list(values) if math.isfinite(sum(values)) else list(map(json_number, values))  # one infinite: so is the sum
