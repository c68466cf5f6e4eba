"""The sum behind one number of a trace."""

import math
import sys
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from cutaway.seeing.explain.expression import Expression, Part, evaluate, json_number, parts, to_json
from cutaway.seeing.explain.format import digits, equation
from cutaway.seeing.explain.rounding import SMALLEST, error_of


@dataclass(frozen=True)
class Explanation:
    """A number of the network (`value`), the sum behind it (`expression`), and its cell in words (`where`).

    `epsilon` and `smallest`: the machine epsilon of the dtype that the network computed in, and its smallest number
    above 0.
    """

    name: str
    at: tuple[int, ...]
    where: str
    formula: str
    value: float
    expression: Expression
    epsilon: float
    smallest: float = 0.0

    @cached_property
    def recomputed(self) -> float:
        """The expression's number, by Python's own arithmetic in float64."""
        return evaluate(self.expression)

    @cached_property
    def tolerance(self) -> float:
        """The largest difference that rounding explains, ε/2 at each operation in both; see rounding.py."""
        if not math.isfinite(self.recomputed):
            return 0.0
        unit = (self.epsilon + sys.float_info.epsilon) / 2
        return unit * error_of(self.expression, self.recomputed) + max(self.smallest, SMALLEST)

    @property
    def agrees(self) -> bool:
        """Whether the network's number is the formula's, up to rounding. A number that an edit has replaced is not."""
        if not math.isfinite(self.recomputed):
            return str(self.value) == str(self.recomputed)
        return abs(self.value - self.recomputed) <= self.tolerance

    @cached_property
    def text(self) -> str:
        """The sum: `0.12·0.3 + 0.07·(-1.1) + … 60 more … + 0.01·0.7 = 0.456`"""
        return equation(self.expression, self.recomputed)

    @property
    def lines(self) -> tuple[str, ...]:
        """The cell, the formula, the sum, and whether the network agrees."""
        verdict = "the network has the same" if self.agrees else f"the network has {digits(self.value)}, not this"
        return (f"{self.name}, {self.where}" if self.where else self.name, self.formula, self.text, verdict)

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """The cells of values, weights and inputs that the expression reads."""
        return parts(self.expression)

    def __str__(self) -> str:
        return "\n".join(self.lines)

    def __repr__(self) -> str:
        place, _, text, verdict = self.lines
        return f"Explanation({place}: {text}; {verdict})"

    def _repr_html_(self) -> str:
        """The explanation in a notebook."""
        from cutaway.seeing.render.notebook import explanation_html

        return explanation_html(self)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "at": list(self.at),
            "where": self.where,
            "formula": self.formula,
            "value": json_number(self.value),
            "recomputed": json_number(self.recomputed),
            "tolerance": json_number(self.tolerance),
            "agrees": self.agrees,
            "text": self.text,
            "lines": list(self.lines),
            "parts": [_part_to_json(part) for part in self.parts],
            "expression": to_json(self.expression),
        }


def _part_to_json(part: Part) -> dict[str, Any]:
    piece = {} if part.length is None else {"start": part.start, "length": part.length}
    return {"of": part.of, "at": list(part.at), **piece}
