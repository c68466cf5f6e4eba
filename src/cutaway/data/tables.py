"""Rows of texts from TSV, CSV, JSON lines, Parquet and plain text, streamed."""

import csv
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from cutaway.checks import parse_int
from cutaway.data.files import inner_name, lines
from cutaway.data.rows import BadRow, TextRow, find_columns, n_columns, record_row, row_of, validated
from cutaway.errors import InputError, unknown
from cutaway.files import parse_json
from cutaway.text.lines import LONGEST, Utf16Error, text_of

TABLES = {
    ".tsv": "TSV", ".tab": "TSV", ".csv": "CSV", ".jsonl": "JSONL", ".ndjson": "JSONL", ".json": "JSONL",
    ".parquet": "Parquet",
}  # fmt: skip
Line = tuple[int, str | BadRow]


def kind_of(path: str | Path) -> str:
    """`TSV`, `CSV`, `JSONL` or `Parquet` by the name's ending; all else is `text`."""
    return TABLES.get(Path(inner_name(path)).suffix.lower(), "text")


def rows(path: str | Path, columns: Sequence[str] | None = None) -> Iterator[TextRow | BadRow]:
    """The rows of a file, read on demand; a BadRow for one that can't be read.

    `columns` are names, or numbers from 0 in a TSV or CSV, whose first row is a header only if names are given. None
    means the only two columns, of text (JSONL, Parquet); a text has one column, its lines.
    InputError if the file is empty or damaged, lacks a column, or nearly all of its rows are bad.
    """
    columns = tuple(columns) if columns else None
    return validated(_READERS[kind_of(path)](str(path), columns), str(path))


def _text(path: str, columns: tuple[str, ...] | None) -> Iterator[TextRow | BadRow]:
    if columns not in (None, ("0",)):
        raise InputError(f"{path} is read as plain text, a line a row, so it has no columns to choose from")
    for number, line in _lines(path):
        yield line if isinstance(line, BadRow) else TextRow((line,), f"{path}:{number}")


def _lines(path: str) -> Iterator[Line]:
    """Each line's number and text; a line beyond LONGEST is an InputError, and so is a file of UTF-16."""
    for number, line in enumerate(lines(path), start=1):
        try:
            yield number, text_of(line, number, path)
        except InputError as error:
            if len(line) > LONGEST or isinstance(error, Utf16Error):
                raise
            yield number, _bad(line, f"{path}:{number}", error)


def _bad(line: bytes, where: str, error: InputError) -> BadRow:
    return BadRow("NUL byte" if b"\0" in line else "invalid UTF-8", where, str(error))


def _tsv(path: str, columns: tuple[str, ...] | None) -> Iterator[TextRow | BadRow]:
    """Rows split at every tab: quotes are ordinary characters, as in corpora that come as TSV."""
    found = (
        (number, line if isinstance(line, BadRow) else line.split("\t") if line else [])
        for number, line in _lines(path)
    )
    return _cells(path, "tabs", columns, found)


def _csv(path: str, columns: tuple[str, ...] | None) -> Iterator[TextRow | BadRow]:
    return _cells(path, "commas", columns, _csv_rows(path))


def _csv_rows(path: str) -> Iterator[tuple[int, list[str] | BadRow]]:
    """Each row and the number of its first line; quoted cells may span lines."""
    feed = _Feed(path)
    reader = csv.reader(feed, strict=True)
    while True:
        start = feed.begin()
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            if feed.ended or "limit" in str(error):
                raise InputError(
                    f'the row that begins in line {start} of {path} does not end: is a quote (") not closed?'
                ) from None
            yield start, BadRow("quotes", f"{path}:{start}", str(error))
            continue
        yield start, feed.bad or cells


class _Feed:
    """Lines for csv.reader, which can't skip a bad one: the row that contains it is marked as bad."""

    def __init__(self, path: str) -> None:
        self._path, self._lines, self._number = path, lines(path), 0
        self.bad: BadRow | None = None
        self.ended = False
        self._start, self._size = 1, 0

    def begin(self) -> int:
        """A new row, and the number of its first line."""
        self.bad, self._size, self._start = None, 0, self._number + 1
        return self._start

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = next(self._lines, b"")
        self.ended = not line
        if self.ended:
            raise StopIteration
        self._number += 1
        self._size += len(line)
        if self._size > LONGEST:  # many lines: a quote that opens and never closes
            raise InputError(f"the row that begins in line {self._start} of {self._path} has over {LONGEST:,} bytes")
        try:
            text_of(line, self._number, self._path)
        except InputError as error:
            self.bad = self.bad or _bad(line, f"{self._path}:{self._start}", error)
        return line.decode("utf-8-sig" if self._number == 1 else "utf-8", errors="replace")


def _cells(
    path: str, marks: str, columns: tuple[str, ...] | None, found: Iterator[tuple[int, list[str] | BadRow]]
) -> Iterator[TextRow | BadRow]:
    """The chosen cells of rows that have as many as the first."""
    chosen = [0, 1]
    width = 0
    for number, cells in found:
        where = f"{path}:{number}"
        if isinstance(cells, BadRow):
            yield cells
            continue
        if not width:
            width = len(cells)
            named = columns is not None and any(parse_int(name) is None for name in columns)
            chosen = _numbers(path, number, cells, marks, columns, named)
            if named:
                continue
        if not cells:
            yield BadRow("empty", where, "the line is empty")
        elif len(cells) != width:
            yield BadRow(
                "columns", where, f"{n_columns(len(cells))} between {marks}, expected {width} as in the first line"
            )
        else:
            yield row_of([cells[i] for i in chosen], where)


def _numbers(
    path: str, number: int, cells: list[str], marks: str, columns: tuple[str, ...] | None, named: bool
) -> list[int]:
    """The indices of the chosen cells, from the first row."""
    if len(cells) < 2 and (columns is None or len(columns) > 1):
        raise InputError(
            f"line {number} of {path} has no {marks[:-1]}, so it is one column; expected two or more between {marks}"
        )
    if columns is None:
        _check_two_columns(path, number, cells)
        return [0, 1]
    if not named:
        for name in columns:
            if int(name) >= len(cells):
                raise InputError(
                    f"line {number} of {path} has {n_columns(len(cells))}, so there is no column {name} "
                    f"(they count from 0: 0 to {len(cells) - 1})"
                )
        return [int(name) for name in columns]
    header = [cell.strip() for cell in cells]
    for name in columns:
        if name not in header:
            raise InputError(f"line {number} of {path}, its header: {unknown('column', name, header)}")
    return [header.index(name) for name in columns]


_HEADINGS = {
    "source", "target", "src", "tgt", "trg", "text", "sentence", "label", "class", "category", "input", "output",
    "translation", "english", "french", "german", "spanish", "italian", "portuguese", "dutch", "russian", "chinese",
    "japanese", "en", "fr", "de", "es", "it", "pt", "nl", "ru", "zh", "ja",
}  # fmt: skip


def _check_two_columns(path: str, number: int, cells: list[str]) -> None:
    """Where no columns are chosen. InputError: the first row has more than two, or looks like a header."""
    shown = ", ".join(cell.strip()[:20] for cell in cells[:6])
    if len(cells) > 2:
        raise InputError(
            f"line {number} of {path} has {n_columns(len(cells))} ({shown}), expected 2; say which are the source's "
            f"and the target's: --columns with their names, if that line is a header, or with their numbers from 0"
        )
    if all(cell.strip().lower() in _HEADINGS for cell in cells):
        raise InputError(
            f"line {number} of {path} looks like a header ({shown}); name the columns: --columns "
            f"{','.join(cell.strip() for cell in cells)}; or learn it like any other line: --columns 0,1"
        )


def _jsonl(path: str, columns: tuple[str, ...] | None) -> Iterator[TextRow | BadRow]:
    for number, line in _lines(path):
        where = f"{path}:{number}"
        if isinstance(line, BadRow):
            yield line
            continue
        if not line.strip():
            yield BadRow("empty", where, "the line is empty")
            continue
        if number == 1 and line.lstrip().startswith("["):
            raise InputError(f"{path} is a JSON array, expected JSON lines: an object a line (jq -c '.[]' makes them)")
        try:
            record = parse_json(line.encode())
        except ValueError as error:
            yield BadRow("not JSON", where, f"the line is not JSON ({error}); expected an object a line")
            continue
        if not isinstance(record, dict):
            yield BadRow("not JSON", where, f"the line holds {type(record).__name__}, expected an object with keys")
            continue
        columns = columns or find_columns(record, f"line {number} of {path}")
        yield record_row(record, columns, where)


def _parquet(path: str, columns: tuple[str, ...] | None) -> Iterator[TextRow | BadRow]:
    from cutaway.data.parquet import parquet_rows

    return parquet_rows(path, columns)


_READERS: dict[str, Callable[[str, tuple[str, ...] | None], Iterator[TextRow | BadRow]]] = {
    "TSV": _tsv, "CSV": _csv, "JSONL": _jsonl, "Parquet": _parquet, "text": _text,
}  # fmt: skip
