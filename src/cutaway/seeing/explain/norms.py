"""Layer norm and RMS norm, from the numbers that are normalised."""

from decimal import Decimal
from typing import Literal

from cutaway.seeing.explain.expression import (
    Call,
    Expression,
    Mean,
    MeanSquare,
    Number,
    Product,
    Quotient,
    Sum,
    Variance,
)
from cutaway.seeing.explain.linear import Row, added, minus
from cutaway.seeing.explain.source import Source

NormKind = Literal["layer", "rms"]


def norm(
    source: Source, here: str, value: str, at: tuple[int, ...], x: Row, kind: NormKind, epsilon: float
) -> Expression | None:
    """layer: γ · (x - μ) / √(σ² + ε) + β; rms: γ · x / √(mean square + ε). `x`: the row of this token."""
    b, t, d = at
    match kind, value:
        case "layer", "mean":
            return Mean(x.all())
        case "layer", "variance":
            return Variance(x.all(), source.number(f"{here}.mean", b, t, 0))
        case "layer", "normalized":
            away = Sum((x.one(d), minus(source.number(f"{here}.mean", b, t, 0))))
            return Quotient(away, _deviation(source.number(f"{here}.variance", b, t, 0), epsilon))
        case "rms", "mean_square":
            return MeanSquare(x.all())
        case "rms", "normalized":
            return Quotient(x.one(d), _deviation(source.number(f"{here}.mean_square", b, t, 0), epsilon))
        case _, "output":
            scaled = Product((source.weight(f"{here}.weight", d), source.number(f"{here}.normalized", b, t, d)))
            return added(scaled, source.weight(f"{here}.bias", d)) if kind == "layer" else scaled
    return None


def _deviation(square: Number, epsilon: float) -> Expression:
    """√(square + ε), ε written in full, however small."""
    return Call("sqrt", Sum((square, Number(epsilon, text=f"{Decimal(str(epsilon)):f}"))))
