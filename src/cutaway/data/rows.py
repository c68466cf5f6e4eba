"""Rows of texts, rows that could not be read, and the choice of a table's columns."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from cutaway.errors import InputError, unknown

Fault = Literal["empty", "invalid UTF-8", "NUL byte", "columns", "not text", "not JSON", "quotes"]
SAMPLED = 1000
"""Rows after which a file is checked: if nearly all of them are bad, its format is not what its name says."""
TRANSLATION = "translation"


@dataclass(frozen=True, slots=True)
class TextRow:
    """The texts of the requested columns; `where` is like `train.tsv:17`."""

    texts: tuple[str, ...]
    where: str


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that could not be read: the rule that it breaks, its place, and the reason in words."""

    rule: Fault
    where: str
    why: str


def row_of(cells: Sequence[object], where: str) -> TextRow | BadRow:
    """A row of texts; a BadRow if a cell is not text."""
    for cell in cells:
        if not isinstance(cell, str):
            return BadRow("not text", where, f"a cell holds {type(cell).__name__}, expected a text")
        if "\0" in cell:
            return BadRow("NUL byte", where, "a cell has a NUL byte: it is not text")
    return TextRow(tuple(map(str, cells)), where)


def record_row(record: Mapping[str, Any], columns: Sequence[str], where: str) -> TextRow | BadRow:
    """The named cells of a record; `translation.en` is the cell `en` in the cell `translation`."""
    cells = []
    for name in columns:
        try:
            cells.append(_cell(record, name))
        except KeyError:
            return BadRow("columns", where, unknown("column", name, names_of(record)))
    return row_of(cells, where)


def _cell(record: Mapping[str, Any], name: str) -> Any:
    if name in record:
        return record[name]
    outer, dot, inner = name.partition(".")
    if not dot or not isinstance(record.get(outer), Mapping):
        raise KeyError(name)
    return _cell(record[outer], inner)


def names_of(record: Mapping[str, Any]) -> list[str]:
    """Every column of a record, those inside others with a dot."""
    names = []
    for name, cell in record.items():
        inner = [f"{name}.{each}" for each in names_of(cell)] if isinstance(cell, Mapping) else []
        names += inner or [name]
    return names


def find_columns(record: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """The two columns of text, if there are only two: the languages of `translation`, or of the record."""
    inner = record.get(TRANSLATION)
    texts = [f"{TRANSLATION}.{each}" for each in _texts(inner)] if isinstance(inner, Mapping) else _texts(record)
    if len(texts) != 2:
        found = ", ".join(names_of(record)[:40]) or "none"
        raise InputError(
            f"{name} has {n_columns(len(texts))} of text, expected 2 (columns found: {found}); name the source's "
            f"column and the target's with --columns"
        )
    return tuple(texts)


def n_columns(n: int) -> str:
    return "1 column" if n == 1 else f"{n} columns"


def _texts(record: Mapping[str, Any]) -> list[str]:
    return [name for name, cell in record.items() if isinstance(cell, str)]


def validated(rows: Iterator[TextRow | BadRow], name: str) -> Iterator[TextRow | BadRow]:
    """The same rows; InputError if there is none, or if more than 90 % of the first 1,000 (or of all) are bad."""
    n = n_bad = 0
    first: BadRow | None = None
    for row in rows:
        if n < SAMPLED:
            n += 1
            if isinstance(row, BadRow):
                first, n_bad = first or row, n_bad + 1
            if n == SAMPLED:
                _check_quality(n, n_bad, first, name)
        yield row
    if n == 0:
        raise InputError(f"{name} is empty: it has no rows")
    _check_quality(n, n_bad, first, name)


def _check_quality(n: int, n_bad: int, first: BadRow | None, name: str) -> None:
    if first is not None and n_bad > 0.9 * n:
        raise InputError(
            f"{name} can't be read: {n_bad:,} of its first {n:,} rows are bad, the first at {first.where}: {first.why}"
        )
