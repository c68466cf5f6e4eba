"""The lecture notes' worked examples: the printed values, the true values, and whether they agree.

Inputs and printed values are data (notes.json); true values are computed by the parts (worked_examples.py); misprints
are found by comparing, never listed.
"""

import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources
from typing import Any

from cutaway.errors import InputError
from cutaway.seeing.notes.arithmetic import number
from cutaway.seeing.notes.worked_examples import COMPUTE, Step, Value

Text = str | Sequence["Text"]
"""A number, a vector or a table as the notes print it."""


@dataclass(frozen=True)
class Printing:
    """A value that the notes print `of` a step: one `row` of it, or all."""

    note: str
    of: str
    value: Text
    row: str | None = None


@dataclass(frozen=True)
class Misprint:
    """A printed number that is not the true one, rounded as the print is; or a print of another shape."""

    note: str
    of: str
    where: str
    printed: str
    true: str


@dataclass(frozen=True)
class WorkedExample:
    """One example, recomputed. `result`: the values that answer it, by step; `reason`: the cause of its misprints."""

    number: int
    title: str
    topic: str
    printings: Sequence[Printing]
    steps: Sequence[Step]
    result: Mapping[str, Value]
    differences: Sequence[Misprint]
    reason: str | None = None
    remark: str | None = None

    @property
    def differs(self) -> bool:
        return bool(self.differences)

    def step(self, name: str) -> Step:
        return next(step for step in self.steps if step.name == name)


@cache
def data() -> dict[str, Any]:
    """notes.json, as it is."""
    text = resources.files("cutaway.seeing.notes").joinpath("notes.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


def examples() -> list[WorkedExample]:
    """All worked examples, in the order of the notes."""
    return [_work(record) for record in data()["examples"]]


def example(number: int) -> WorkedExample:
    """One worked example."""
    records = {record["number"]: record for record in data()["examples"]}
    if number not in records:
        raise InputError(f"there is no example {number} in the notes; choose one of {min(records)} to {max(records)}")
    return _work(records[number])


LARGEST, DECIMALS, WIDEST = 10.0, 4, 1024
"""Bounds of a user's numbers in an example: larger or finer ones make sums that can't be written out in a line."""


def reworked(number: int, inputs: Mapping[str, Any]) -> WorkedExample:
    """An example with other numbers in its `inputs`, without the notes' printed values."""
    example(number)
    record = next(record for record in data()["examples"] if record["number"] == number)
    given = _like(record["inputs"], inputs, "inputs")
    if given == record["inputs"]:
        return _work(record)
    try:
        return _work({**record, "inputs": given, "printings": [], "reason": None, "remark": None})
    except (AssertionError, OverflowError):
        raise InputError(f"these numbers of example {number} don't give sums that can be written out") from None


def _like(old: Any, new: Any, where: str) -> Any:
    """`new`, if it differs from `old` in its numbers only."""
    if isinstance(old, dict):
        if not isinstance(new, Mapping) or set(new) != set(old):
            raise InputError(f"{where} has the keys {', '.join(old)}; give the same")
        return {key: _like(value, new[key], f"{where}.{key}") for key, value in old.items()}
    if isinstance(old, list):
        if not isinstance(new, list) or len(new) != len(old):
            raise InputError(f"{where} has {len(old)} numbers; give as many")
        return [_like(a, b, f"{where}.{i}") for i, (a, b) in enumerate(zip(old, new, strict=True))]
    if isinstance(old, bool | str) or old is None:
        if type(new) is not type(old) or (isinstance(old, str) and new != old):
            raise InputError(f"{where} is {old!r}; leave it")
        return new
    if isinstance(new, bool) or not isinstance(new, int | float) or not abs(new) <= sys.float_info.max:
        raise InputError(f"{where} is {str(new)[:40]!r}; give a number")
    if ".tokens." in where and (new != int(new) or not 0 <= new <= LARGEST):
        raise InputError(f"{where} is {new}; a token is a whole number from 0 to {LARGEST:g}")
    if where.count(".") > 1:  # of a vector
        if abs(new) > LARGEST:
            raise InputError(f"{where} is {new}; give at most {LARGEST:g}")
        return round(new, DECIMALS)
    if isinstance(old, float):
        if not 0 < new <= 1:
            raise InputError(f"{where} is {new}; give a number above 0, up to 1")
        return new
    if new != int(new) or not 0 <= new <= WIDEST:
        raise InputError(f"{where} is {new}; give a whole number from 0 to {WIDEST}")
    return int(new)


def _work(record: Mapping[str, Any]) -> WorkedExample:
    computed = {step.name: step for step in COMPUTE[record["compute"]](record["inputs"])}
    printings = [Printing(**printing) for printing in record["printings"]]
    return WorkedExample(
        number=record["number"],
        title=record["title"],
        topic=record["topic"],
        printings=printings,
        steps=[computed[name] for name in record["steps"]],
        result={name: only_row(computed[name].value) for name in record["result"]},
        differences=[wrong for printing in printings for wrong in compare(printing, computed[printing.of])],
        reason=record.get("reason"),
        remark=record.get("remark"),
    )


def only_row(value: Value) -> Value:
    """A table of one row is that row."""
    return value[0] if isinstance(value, list) and len(value) == 1 and isinstance(value[0], list) else value


def true_value(printing: Printing, step: Step) -> Value:
    """The part of a step that a printing shows."""
    if printing.row is None:
        return only_row(step.value)
    assert isinstance(step.value, list)
    return step.value[step.rows.index(printing.row)]


def agrees(printed: str, true: float) -> bool:
    """Whether the true value, rounded to the printed number of decimals, is what is printed."""
    _, _, decimals = printed.partition(".")
    return round(true, len(decimals)) == float(printed)


def compare(printing: Printing, step: Step) -> list[Misprint]:
    """Every number of a printing that is wrong; if the shape is, that alone."""
    true = true_value(printing, step)
    if shape(printing.value) != shape(true):
        sizes = ("×".join(map(str, shape(value))) + " numbers" for value in (printing.value, true))
        return [Misprint(printing.note, printing.of, "how many", *sizes)]
    rows = step.rows if printing.row is None else [printing.row]
    return [
        Misprint(printing.note, printing.of, _where(place, rows, step.columns), printed, number(value))
        for (place, printed), (_, value) in zip(_leaves(printing.value), _leaves(true), strict=True)
        if not agrees(printed, value)
    ]


def shape(value: Any) -> tuple[int, ...]:
    """() for a number, (4,) for a vector, (3, 4) for a table."""
    return (len(value), *shape(value[0])) if isinstance(value, list) else ()


def _leaves(value: Any, place: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], Any]]:
    """Every number with its place."""
    if not isinstance(value, list):
        yield place, value
        return
    for i, item in enumerate(value):
        yield from _leaves(item, (*place, i))


def _where(place: tuple[int, ...], rows: Sequence[str], columns: Sequence[str]) -> str:
    """`SAT → The` in a table of queries and keys, `The, number 2` in one of vectors."""
    if not place:
        return ""
    *row, column = place
    name = rows[row[0] if row else 0] if rows else ""
    if columns:
        return f"{name} → {columns[column]}" if name else columns[column]
    return f"{name}, number {column + 1}" if name else f"number {column + 1}"


def to_json(worked: WorkedExample) -> dict[str, Any]:
    """A worked example as plain data.

    `true` is the value itself, or an object of values by name where an example has several results. Numbers are not
    rounded; -∞, which JSON lacks, is the string "-inf".
    """
    result = worked.result
    wrong = {(difference.note, difference.of) for difference in worked.differences}
    return {
        "number": worked.number,
        "title": worked.title,
        "topic": worked.topic,
        "printed": [asdict(it) | {"differs": (it.note, it.of) in wrong} for it in worked.printings],
        "true": _plain(dict(result) if len(result) > 1 else next(iter(result.values()))),
        "differs": worked.differs,
        "differences": [asdict(difference) for difference in worked.differences],
        "reason": worked.reason,
        "remark": worked.remark,
        "steps": [_plain(asdict(step)) for step in worked.steps],
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, float) and math.isinf(value) else value
