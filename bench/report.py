"""What comes out of a bench: the facts of the machine, and tables as text, Markdown or JSON."""

import importlib.metadata
import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch

from bench.harness import Result, cores
from cutaway.machine.processor import has_bfloat16


def machine_facts() -> dict[str, str]:
    """On what these numbers were measured."""
    cpu = platform.processor() or platform.machine()
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), cpu)
    versions = [f"torch {torch.__version__}"]
    with suppress(importlib.metadata.PackageNotFoundError):
        versions.append(f"transformers {importlib.metadata.version('transformers')}")
    return {
        "machine": f"{cpu}, {cores()} cores, {'with' if has_bfloat16() else 'no'} bfloat16 instructions",
        "load": f"{os.getloadavg()[0]:.2f} before the start: the fewer others work on it, the better these numbers",
        "versions": f"Python {platform.python_version()}, {', '.join(versions)}",
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "command": " ".join(["python", *sys.orig_argv[1:]]),
    }


@dataclass
class Table:
    """Rows of text; the first `n_words` columns are words, the others numbers, which stand to the right."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    n_words: int = 1
    notes: Sequence[str] = ()
    results: Sequence[Result] = ()  # what the rows were made from, for --json

    def text(self) -> str:
        return "\n".join([self.title, *self._lines("  ", ""), *self.notes])

    def markdown(self) -> str:
        return "\n".join([f"### {self.title}", "", *self._lines(" | ", "|"), "", *(f"* {note}" for note in self.notes)])

    def _lines(self, between: str, edge: str) -> list[str]:
        cells = [self.columns, *self.rows]
        widths = [max(len(row[i]) for row in cells) for i in range(len(self.columns))]

        def line(row: Sequence[str]) -> str:
            fitted = (
                text.ljust(width) if i < self.n_words else text.rjust(width)
                for i, (text, width) in enumerate(zip(row, widths, strict=True))
            )
            return (f"{edge} " if edge else "") + between.join(fitted).rstrip() + (f" {edge}" if edge else "")

        rule = ["-" * width if i < self.n_words else "-" * (width - 1) + ":" for i, width in enumerate(widths)]
        return [line(self.columns), line(rule if edge else ["-" * width for width in widths]), *map(line, self.rows)]


class Report:
    """The facts, then each table as soon as it is there, on stdout; every single rate in `json_file`."""

    def __init__(self, facts: Mapping[str, str], *, markdown: bool = False, json_file: str | None = None) -> None:
        self.facts, self.tables = facts, list[Table]()
        self.markdown, self.json_file = markdown, json_file
        print("\n".join(f"* {name}: {fact}" if markdown else f"{name:11} {fact}" for name, fact in facts.items()))

    def add(self, table: Table) -> None:
        self.tables.append(table)
        print("\n" + (table.markdown() if self.markdown else table.text()), flush=True)
        if self.json_file:
            data = {"facts": dict(self.facts), "tables": [asdict(table) for table in self.tables]}
            Path(self.json_file).write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n")
