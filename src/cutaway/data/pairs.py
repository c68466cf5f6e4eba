"""Pairs of texts, such as a sentence and its translation: from aligned files, tables, folders and the hub."""

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from cutaway.checks import check_fields
from cutaway.data.files import file_digest, inner_name, n_lines, size_of
from cutaway.data.hub import PREFIX, hub_digest, hub_rows
from cutaway.data.rows import SAMPLED, BadRow, TextRow
from cutaway.data.tables import kind_of, rows
from cutaway.errors import InputError

TABLE_KINDS = "TSV, CSV, JSONL or Parquet"


@dataclass(frozen=True, slots=True)
class Pair:
    """A text and its counterpart; `where` is like `train.tsv:17`."""

    source: str
    target: str
    where: str


@dataclass(frozen=True, kw_only=True)
class PairSpec:
    """The origin of pairs: aligned files (`source` and `target`), or tables (`pairs`), never both.

    Line n of source[i] is paired with line n of target[i]. `pairs` are files (TSV, CSV, JSONL, Parquet), folders that
    are searched for such files, and data sets (`hf:owner/name`, `hf:owner/name:config:split`). All are read one after
    the other. `columns` are the source's and the target's in every table; () finds them.
    """

    source: tuple[str, ...] = ()
    target: tuple[str, ...] = ()
    pairs: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_fields(self)
        aligned = bool(self.source or self.target)
        if aligned and self.pairs:
            raise InputError("--source and --target can't be combined with --pairs; give one or the other")
        if not aligned and not self.pairs:
            raise InputError(
                f"there are no pairs: give --source and --target (sentences and translations, or texts and their "
                f"classes, line by line), or --pairs (a {TABLE_KINDS} file)"
            )
        if len(self.source) != len(self.target):
            raise InputError(
                f"--source has {_files(self.source)} and --target {_files(self.target)}; give as many of each"
            )
        if aligned and self.columns:
            raise InputError("--columns are those of tables; the files of --source and --target have none")
        if len(self.columns) not in (0, 2):
            raise InputError(f"--columns has {len(self.columns)}, expected 2: the source's and the target's")


def _files(paths: tuple[str, ...]) -> str:
    return "1 file" if len(paths) == 1 else f"{len(paths) or 'no'} files"


def read_pairs(spec: PairSpec, rank: int = 0, ranks: int = 1) -> Iterator[Pair | BadRow]:
    """Every pair, or the reason why it can't be read, in the order of the files; pair i goes to rank i % ranks.

    Errors of whole files are InputErrors of this call, before the first pair: files that are missing, empty or damaged,
    unequal lengths, the same text on both sides. Damage far inside a table shows when it is reached.
    """
    if not 0 <= rank < ranks:
        raise InputError(f"rank={rank} is not one of {ranks}; expected 0 to {ranks - 1}")
    aligned, tables = _aligned_files(spec), _tables(spec)
    for source, target in aligned:
        _check_lengths(source, target)
    for path in tables:
        next(_table_rows(path, spec.columns))  # a wrong header, or no pyarrow, is an error now, not after hours
    found = chain(
        chain.from_iterable(_aligned_pairs(*files) for files in aligned),
        chain.from_iterable(_table_pairs(path, spec.columns) for path in tables),
    )
    first = list(islice(found, SAMPLED))
    _check_unlike(first)
    return islice(chain(first, found), rank, None, ranks)


def digest(spec: PairSpec) -> str:
    """SHA-256 of everything that the pairs depend on: the files' bytes and kinds, columns, the commit on the hub."""
    total = hashlib.sha256(repr(spec.columns).encode())
    for paths in _aligned_files(spec):
        for path in paths:
            total.update(_kind_digest(path, "text"))
    for path in _tables(spec):
        total.update(hub_digest(path) if path.startswith(PREFIX) else _kind_digest(path, kind_of(path)))
    return total.hexdigest()


def _kind_digest(path: str, kind: str) -> bytes:
    return hashlib.sha256(f"{kind} {Path(path).suffix.lower()} ".encode() + file_digest(path)).digest()


def _aligned_files(spec: PairSpec) -> list[tuple[str, str]]:
    """The pairs of files, checked: both are text, and not the same file."""
    both = list(zip(spec.source, spec.target, strict=True))
    for path in (*spec.source, *spec.target):
        size_of(path)
        if (kind := kind_of(path)) != "text":
            raise InputError(f"{path} is a {kind} table by its name; give it as --pairs, or rename it if it is text")
    for source, target in both:
        if os.path.samefile(source, target):
            raise InputError(f"--source and --target are the same file, {source}; give that of the other language")
    return both


def _check_lengths(source: str, target: str) -> None:
    lengths = {}
    for path in (source, target):
        lengths[path] = n_lines(path)
        if not lengths[path]:
            raise InputError(f"{path} is empty: it has no lines")
    if lengths[source] != lengths[target]:
        raise InputError(
            f"{source} has {lengths[source]:,} lines and {target} has {lengths[target]:,}; expected as many of each, "
            f"as line n of one is paired with line n of the other"
        )


def _tables(spec: PairSpec) -> list[str]:
    """The files and data sets of `pairs`, folders replaced by their tables."""
    found: list[str] = []
    for path in spec.pairs:
        if path.startswith(PREFIX):
            found.append(path)
        elif os.path.isdir(path):
            found += _in_folder(path)
        else:
            size_of(path)
            if kind_of(path) == "text":
                raise InputError(
                    f"{path} is no {TABLE_KINDS} file by its name; rename it, or give two files of lines as --source "
                    f"and --target"
                )
            found.append(path)
    return found


def _in_folder(folder: str) -> list[str]:
    """The tables in a folder and its subfolders, by name. A .json is left out, as it is often metadata."""
    names = sorted(
        path
        for path in Path(folder).rglob("*")
        if path.is_file()
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
        and kind_of(path) != "text"
        and not inner_name(path).lower().endswith(".json")
    )
    if not names:
        raise InputError(
            f"{folder} is a folder without a {TABLE_KINDS} file; two files of lines are given as --source and --target"
        )
    return [str(path) for path in names]


def _aligned_pairs(source: str, target: str) -> Iterator[Pair | BadRow]:
    for a, b in zip(rows(source), rows(target), strict=True):
        if isinstance(a, BadRow):
            yield a
        elif isinstance(b, BadRow):
            yield b
        else:
            yield Pair(a.texts[0], b.texts[0], a.where)


def _table_rows(path: str, columns: tuple[str, ...]) -> Iterator[TextRow | BadRow]:
    return hub_rows(path, columns or None) if path.startswith(PREFIX) else rows(path, columns)


def _table_pairs(path: str, columns: tuple[str, ...]) -> Iterator[Pair | BadRow]:
    for row in _table_rows(path, columns):
        yield row if isinstance(row, BadRow) else Pair(row.texts[0], row.texts[1], row.where)


def _check_unlike(found: list[Pair | BadRow]) -> None:
    """Refuses pairs of equal texts: a file or column given twice would train a model that copies."""
    pairs = [pair for pair in found if isinstance(pair, Pair) and pair.source.strip()]
    n_same = sum(pair.source.strip() == pair.target.strip() for pair in pairs)
    if n_same > 0.9 * len(pairs):
        raise InputError(
            f"source and target are the same text in {n_same:,} of the first {len(pairs):,} pairs; give the other "
            f"language as target (--target, or the second of --columns)"
        )
