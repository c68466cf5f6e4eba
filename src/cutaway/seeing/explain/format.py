"""Expressions written out as on paper: digits, · and +, the middle of long sums left out."""

import math
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal

from cutaway.seeing.explain.expression import (
    Call,
    Dot,
    Expression,
    Function,
    Mean,
    MeanSquare,
    Number,
    Product,
    Quotient,
    Softmax,
    Sum,
    Variance,
    evaluate,
)
from cutaway.seeing.notes.arithmetic import number

LONGEST = 8  # terms of a sum that is written in full
FIRST, LAST = 2, 1  # terms written of a longer one

Term = tuple[str, str]
"""A sign and the text after it."""

_NAMES: dict[Function, str] = {"sigmoid": "σ"}


def equation(e: Expression, result: float) -> str:
    """`0.12·0.3 + 0.07·(-1.1) + … 60 more … + 0.01·0.7 = 0.456`; a single cell is written as its name."""
    if isinstance(e, Number) and e.of is not None:
        return f"{e.of}[{', '.join(map(str, e.at))}] = {digits(result)}"
    return f"{written(e)} = {digits(result)}"


def written(e: Expression) -> str:
    return _joined(_terms(e))


def digits(x: float) -> str:
    """Four decimals, as everywhere; three significant digits of a small number."""
    size = abs(x)
    if not math.isfinite(x) or x == 0.0 or 1e-3 <= size < 1e9:
        return number(x)
    return f"{Decimal(f'{x:.3g}'):f}" if 1e-9 <= size < 1e-3 else f"{x:.3g}"


def _terms(e: Expression) -> list[Term]:
    """The terms of a sum, those of the sums in it, and the products of a dot."""
    match e:
        case Sum(terms=terms):
            return [term for each in terms for term in _terms(each)]
        case Dot(a=a, b=b):
            return _long(len(a.values), lambda i: _times(a.values[i], b.values[i]))
        case Number():
            return [_signed(e)]
        case Product(factors=(Number(value=-1.0, of=None), *others)):
            return [("-", "·".join(map(_factor, others)))]
        case Product(factors=(Number() as first, *others)):
            sign, text = _signed(first)
            return [(sign, "·".join([text, *map(_factor, others)]))]
        case Product(factors=factors):
            return [("+", "·".join(map(_factor, factors)))]
        case Quotient(over=Number() as over, under=under):
            sign, text = _signed(over)
            return [(sign, f"{text} / {_factor(under)}")]
        case Quotient(over=over, under=under):
            return [("+", f"{_factor(over)} / {_factor(under)}")]
        case Softmax(scores=scores, place=place):
            visible = [x for x in scores.values if x != -math.inf]  # e^-∞ = 0 adds nothing
            below = _joined(_long(len(visible), lambda i: ("+", f"e^{digits(visible[i])}")))
            return [("+", f"e^{digits(scores.values[place])} / ({below})")]
        case Mean(x=x):
            return [_over(x.values, lambda value: ("-" if value < 0 else "+", digits(abs(value))))]
        case MeanSquare(x=x):
            return [_over(x.values, lambda value: ("+", f"{_factor(Number(value))}²"))]
        case Variance(x=x, mean=mean):
            centre = _signed(Number(evaluate(mean)))
            away = f"{'+' if centre[0] == '-' else '-'} {centre[1]}"
            return [_over(x.values, lambda value: ("+", f"({digits(value)} {away})²"))]
        case Call():
            return [("+", _called(e))]


def _long(n: int, term: Callable[[int], Term]) -> list[Term]:
    """n terms, or the first and the last of them."""
    if n <= LONGEST:
        return [term(i) for i in range(n)]
    ends = [*range(FIRST), *range(n - LAST, n)]
    shown = [term(i) for i in ends]
    shown.insert(FIRST, ("+", f"… {n - len(ends):,} more …"))
    return shown


def _over(values: Sequence[float], term: Callable[[float], Term]) -> Term:
    """(2 + 4 + 6) / 3"""
    return "+", f"({_joined(_long(len(values), lambda i: term(values[i])))}) / {len(values)}"


def _joined(terms: Iterable[Term]) -> str:
    text = ""
    for sign, body in terms:
        text += f" {sign} {body}" if text else f"{'-' if sign == '-' else ''}{body}"
    return text


def _times(a: float, b: float) -> Term:
    return "-" if a < 0 else "+", f"{digits(abs(a))}·{_factor(Number(b))}"


def _signed(x: Number) -> Term:
    if x.text is not None:
        return "+", x.text
    return "-" if x.value < 0 else "+", digits(abs(x.value))


def _factor(e: Expression) -> str:
    """A factor of a product: a sum, a quotient or a negative number gets brackets."""
    terms = _terms(e)
    alone = len(terms) == 1 and terms[0][0] == "+" and isinstance(e, Number | Call)
    return terms[0][1] if alone else f"({_joined(terms)})"


def _called(e: Call) -> str:
    inside = written(e.x)
    match e.function:
        case "sqrt":
            return f"√{inside}" if isinstance(e.x, Number) else f"√({inside})"
        case "relu":
            return f"max(0, {inside})"
        case "exp":
            return f"e^({inside})"
        case function:
            return f"{_NAMES.get(function, function)}({inside})"
