"""What commands share: a model made ready, stdin read with care, results printed as they come, progress on stderr."""

import logging
import os
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from cutaway.cli.options import Where
from cutaway.engines.engine import LOG
from cutaway.loading import load
from cutaway.model import Model
from cutaway.text.lines import lines_of as lines_of

T = TypeVar("T")
SECONDS_BETWEEN_LINES = 30
"""Of progress, where it goes to a log."""


def ready(name: str, where: Where) -> Model:
    """The model, loaded; on a terminal, stderr will say what runs it."""
    if sys.stderr is not None and sys.stderr.isatty():
        LOG.setLevel(logging.INFO)
        LOG.addHandler(logging.StreamHandler(sys.stderr))
    return load(name, device=where.device, dtype=where.dtype)


def inputs_of(texts: list[str] | None) -> Iterator[str]:
    """The arguments of a command; without any, the lines of stdin."""
    if texts:
        return iter(texts)
    if sys.stdin is not None and sys.stdin.isatty():
        print("Reading lines from the terminal; Ctrl-D ends.", file=sys.stderr)
    return lines_of(sys.stdin)


def count_of(texts: list[str] | None) -> int | None:
    """How many inputs there will be: arguments, or the lines of a file that stdin is; None if it is a pipe."""
    if texts:
        return len(texts)
    try:
        handle = sys.stdin.fileno()
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return None
        place, count, last = os.lseek(handle, 0, os.SEEK_CUR), 0, b"\n"
        while block := os.pread(handle, 1 << 20, place):
            place, count, last = place + len(block), count + block.count(b"\n"), block[-1:]
        return count + (last != b"\n")
    except (OSError, AttributeError, ValueError):  # closed, or no real file
        return None


def print_each(results: Iterable[T], line: Callable[[T], str], total: int | None = None) -> None:
    """A line for each result, as soon as it is there; `total` is how many will come, for the progress on stderr."""
    for result in show_progress(results, total):
        print(line(result), flush=True)


def show_progress(results: Iterable[T], total: int | None = None, *, scrolling: bool = True) -> Iterator[T]:
    """The same results, while stderr shows how many there were, how fast, and the time left if that is known.

    Nothing is shown where the results are `scrolling` by on a terminal; a log gets a line now and then.
    """
    seen = scrolling and sys.stdout is not None and sys.stdout.isatty()
    if seen or sys.stderr is None:
        yield from results
    elif not sys.stderr.isatty():
        yield from _logged(results, total)
    else:
        yield from _drawn(results, total)


def _logged(results: Iterable[T], total: int | None) -> Iterator[T]:
    began = told = time.monotonic()
    for n, result in enumerate(results, 1):
        yield result
        now = time.monotonic()
        if now - told > SECONDS_BETWEEN_LINES:
            told, rate = now, n / (now - began)
            of, left = ("", "") if total is None else (f" of {total:,}", f", {duration((total - n) / rate)} left")
            print(f"{n:,}{of}, {rate:,.1f}/s{left}", file=sys.stderr, flush=True)


def duration(seconds: float) -> str:
    """59:59, or 1:00:00"""
    minutes, whole = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{whole:02}" if hours else f"{minutes}:{whole:02}"


def _drawn(results: Iterable[T], total: int | None) -> Iterator[T]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TimeRemainingColumn
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(f"{task.speed:,.1f}/s" if task.speed else "")

    columns: list[ProgressColumn] = [MofNCompleteColumn(), Rate()]
    if total is not None:
        columns = [BarColumn(), *columns, TimeRemainingColumn()]
    shown = Console(stderr=True)
    with Progress(*columns, console=shown, transient=True, redirect_stdout=False, redirect_stderr=False) as progress:
        task = progress.add_task("", total=total)
        for result in results:
            yield result
            progress.advance(task)
