"""The sum behind one number of a trace."""

import math
import sys
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from cutaway.seeing.explain.expression import Expression, Part, evaluate, json_number, parts, to_json
from cutaway.seeing.explain.format import digits, equation
from cutaway.seeing.explain.rounding import SMALLEST, off


@dataclass(frozen=True)
class Explanation:
    """`value` is the network's number, `expression` what it is made of; `where` says the place in words.

    `epsilon` and `smallest` are the precision of the numbers that the network computed with: what the last bit of 1 is
    worth, and the number next to 0.
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
        """What rounding can make of it, in the network and here, by ε/2 at each operation; see rounding.py."""
        if not math.isfinite(self.recomputed):
            return 0.0
        unit = (self.epsilon + sys.float_info.epsilon) / 2
        return unit * off(self.expression, self.recomputed) + max(self.smallest, SMALLEST)

    @property
    def agrees(self) -> bool:
        """Whether the network's number is what the formula gives. One that an edit has put in its place is not."""
        if not math.isfinite(self.recomputed):
            return str(self.value) == str(self.recomputed)
        return abs(self.value - self.recomputed) <= self.tolerance

    @cached_property
    def text(self) -> str:
        """The sum: `0.12·0.3 + 0.07·(-1.1) + … 60 more … + 0.01·0.7 = 0.456`"""
        return equation(self.expression, self.recomputed)

    @property
    def lines(self) -> tuple[str, ...]:
        """The place, the formula, the sum, and whether the network says the same."""
        says = "the network has the same" if self.agrees else f"the network has {digits(self.value)}, not this"
        return (f"{self.name}, {self.where}" if self.where else self.name, self.formula, self.text, says)

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """The cells of values, weights and inputs that it is made of."""
        return parts(self.expression)

    def __str__(self) -> str:
        return "\n".join(self.lines)

    def __repr__(self) -> str:
        place, _, text, says = self.lines
        return f"Explanation({place}: {text}; {says})"

    def _repr_html_(self) -> str:
        """How a notebook shows it."""
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
