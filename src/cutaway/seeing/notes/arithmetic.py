"""Sums written out as on paper, from values that a part has computed. Nothing here decides a value: the result of every
line is an argument, and a line that does not come to it is never written.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal

_NOISE = 1.2e-7  # the last bit of a float32 near 1; the parts compute in float32


@dataclass(frozen=True)
class Line:
    """One sum: the cell that it is `of` ("The → CAT"), and its text."""

    of: str
    text: str


def number(x: float, decimals: int = 4) -> str:
    """`2`, `0.3` or `0.99995` where that is exact; else rounded, `0.7311`.

    Trailing zeros would claim digits that are not there. A number halfway between two of four decimals (0.99995) is
    written in full: it rounds up or down by the last bit of a float32.
    """
    if math.isinf(x):
        return "∞" if x > 0 else "-∞"
    for digits in range(6):
        exact = abs(round(x, digits) - x) < _NOISE
        if exact and (digits < 5 or f"{x:.5f}".endswith("5")):
            return f"{round(x, digits) + 0.0:,.{digits}f}"  # + 0.0: no "-0"
    return f"{x:,.{decimals}f}"


def vector(numbers: Sequence[float]) -> str:
    """[0.1 1.2 0.3 1.4]"""
    return f"[{' '.join(map(number, numbers))}]"


@dataclass(frozen=True)
class _Digits:
    """The decimals of a line's numbers: their text, and the value of that text."""

    decimals: int

    def __call__(self, x: float) -> str:
        return number(x, self.decimals)

    def rounded(self, x: float) -> float:
        return float(self(x).replace(",", "").replace("∞", "inf"))


_DECIMALS = range(4, 13)
_SHORT = _Digits(4)


class _WrongSumError(AssertionError):  # products_alike tries more digits
    pass


def _line(
    of: str, result: float, write: Callable[[_Digits], tuple[str, float]], decimals: Sequence[int] = _DECIMALS
) -> Line:
    """`left = result`, with as many digits (4 or more) as it takes for the written numbers to give the written result.

    `write` gives the left side and what it comes to.
    """
    for n in map(_Digits, decimals):
        left, value = write(n)
        if n.rounded(value) == n.rounded(result):
            return Line(of, f"{left} = {n(result)}")
    for n in map(_Digits, decimals[1:]):  # the numbers finer than their result
        left, value = write(n)
        if _SHORT.rounded(value) == _SHORT.rounded(result):
            return Line(of, f"{left} = {_SHORT(result)}")
    raise _WrongSumError(f"{of}: {left} comes to {value}, not to {result}")


def products(
    of: str, a: Sequence[float], b: Sequence[float], result: float, decimals: Sequence[int] = _DECIMALS
) -> Line:
    """0.4223·1 + 0.1554·0 + 0.4223·1 = 0.8446"""
    pairs = list(zip(a, b, strict=True))
    return _line(
        of, result,
        lambda n: (" + ".join(f"{n(x)}·{n(y)}" for x, y in pairs), sum(n.rounded(x) * n.rounded(y) for x, y in pairs)),
        decimals,
    )  # fmt: skip


def products_alike(sums: Sequence[tuple[str, Sequence[float], Sequence[float], float]]) -> list[Line]:
    """Several `products`, all with the digits of the one that needs the most."""
    for n in _DECIMALS:
        with suppress(_WrongSumError):
            return [products(*each, decimals=[n]) for each in sums]
    return [products(*each) for each in sums]


def total(of: str, terms: Sequence[float], result: float) -> Line:
    """0.4 + 1 = 1.4"""
    return _line(of, result, lambda n: (" + ".join(map(n, terms)), sum(map(n.rounded, terms))))


def over_root(of: str, score: float, width: int, result: float) -> Line:
    """6 / √4 = 3"""
    return _line(of, result, lambda n: (f"{n(score)} / √{width}", n.rounded(score) / math.sqrt(width)))


def softmax(of: str, scores: Sequence[float], i: int, result: float) -> Line:
    """e^3 / (e^3 + e^2) = 20.0855 / 27.4746 = 0.7311; hidden scores, e^-∞ = 0, are left out of the sum."""
    visible = [x for x in scores if x != -math.inf]
    top, bottom = math.exp(scores[i]), sum(map(math.exp, scores))
    return _line(
        of, result,
        lambda n: (
            f"e^{n(scores[i])} / ({' + '.join(f'e^{n(x)}' for x in visible)}) = {n(top)} / {n(bottom)}",
            n.rounded(top) / n.rounded(bottom),
        ),
    )  # fmt: skip


def sinusoid(of: str, position: int, column: int, d_model: int, result: float) -> Line:
    """sin(1 / 10000^(0/4)) = 0.8415; a sine and the cosine after it share one exponent."""
    name, function = ("cos", math.cos) if column % 2 else ("sin", math.sin)
    two_i = column - column % 2
    left = f"{name}({position} / 10000^({two_i}/{d_model}))"
    return _line(of, result, lambda _: (left, function(position / 10000 ** (two_i / d_model))))


def mean(of: str, x: Sequence[float], result: float) -> Line:
    """(2 + 4 + 6 + 8) / 4 = 5"""
    return _line(of, result, lambda n: (f"({' + '.join(map(n, x))}) / {len(x)}", sum(map(n.rounded, x)) / len(x)))


def variance(of: str, x: Sequence[float], mean: float, result: float) -> Line:
    """((2 - 5)² + (4 - 5)² + (6 - 5)² + (8 - 5)²) / 4 = 5"""
    return _line(
        of, result,
        lambda n: (
            f"({' + '.join(f'({n(value)} - {n(mean)})²' for value in x)}) / {len(x)}",
            sum((n.rounded(value) - n.rounded(mean)) ** 2 for value in x) / len(x),
        ),
    )  # fmt: skip


def standardized(of: str, x: float, mean: float, variance: float, epsilon: float, result: float) -> Line:
    """(2 - 5) / √(5 + 0.00001) = -1.3416"""
    return _line(
        of, result,
        lambda n: (
            f"({n(x)} - {n(mean)}) / √({n(variance)} + {Decimal(str(epsilon)):f})",  # in full, however small
            (n.rounded(x) - n.rounded(mean)) / math.sqrt(n.rounded(variance) + epsilon),
        ),
    )  # fmt: skip


def scaled_and_shifted(of: str, scale: float, x: float, shift: float, result: float) -> Line:
    """1·(-1.3416) + 0 = -1.3416"""
    return _line(
        of, result,
        lambda n: (
            f"{n(scale)}·{n(x) if x >= 0 else f'({n(x)})'} + {n(shift)}",
            n.rounded(scale) * n.rounded(x) + n.rounded(shift),
        ),
    )  # fmt: skip
