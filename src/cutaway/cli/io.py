"""What commands share: a model loaded, arguments or stdin read, progress on stderr. Torch comes with a model."""

import logging
import os
import stat
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from cutaway.cli.options import DeviceOptions
from cutaway.cli.terminal import Visible, show
from cutaway.errors import CheckpointError
from cutaway.progress import Pace
from cutaway.text.lines import lines_of

if TYPE_CHECKING:
    from cutaway.model import Model

T = TypeVar("T")
SECONDS_BETWEEN_LINES = 30
"""Of progress, where it goes to a log."""


def load_model(name: str, options: DeviceOptions) -> "Model":
    """The model, loaded; on a terminal, stderr will say what runs it."""
    from cutaway.engines.engine import LOG
    from cutaway.loading import load

    if sys.stderr is not None and sys.stderr.isatty():
        LOG.setLevel(logging.INFO)
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(Visible())
        LOG.addHandler(handler)
    return load(name, device=options.chosen_device, dtype=options.dtype)


def inputs_of(texts: list[str] | None) -> Iterator[str]:
    """The arguments of a command; without any, the lines of stdin."""
    if texts:
        return iter(texts)
    if sys.stdin is not None and sys.stdin.isatty():
        show("Reading lines from the terminal; Ctrl-D ends.", file=sys.stderr)
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


def check_writable(path: Path) -> None:
    """That a file of this name can be made is known before hours are spent on what goes into it."""
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise CheckpointError(f"can't write {path}: {'it is a folder' if path.is_dir() else 'its folder is not there'}")


def show_progress(
    results: Iterable[T], total: int | None = None, *, scrolling: bool = True, sizes: Sequence[int] | None = None
) -> Iterator[T]:
    """The same results, while stderr shows how many there were, how fast, and the time left if that is known.

    Nothing is shown for a single result, and where results are `scrolling` by on a terminal; a log gets a line now and
    then. `sizes`: how
    much work each of them is.
    """
    seen = scrolling and sys.stdout is not None and sys.stdout.isatty()
    if seen or sys.stderr is None or total == 1:
        return iter(results)
    return (_drawn if sys.stderr.isatty() else _logged)(results, Pace(total, sizes))


def _logged(results: Iterable[T], pace: Pace) -> Iterator[T]:
    told = time.monotonic()
    for result in results:
        yield result
        pace.add()
        if time.monotonic() - told > SECONDS_BETWEEN_LINES:
            told = time.monotonic()
            show(pace, file=sys.stderr, flush=True)


def _drawn(results: Iterable[T], pace: Pace) -> Iterator[T]:
    from rich.progress import BarColumn, Progress, ProgressColumn, Task
    from rich.text import Text

    from cutaway.cli.pager import Screen

    class Count(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(str(pace))

    columns: list[ProgressColumn] = [Count()] if pace.total is None else [BarColumn(), Count()]
    shown = Screen(stderr=True)
    with Progress(*columns, console=shown, transient=True, redirect_stdout=False, redirect_stderr=False) as progress:
        task = progress.add_task("", total=pace.all)
        for result in results:
            yield result
            progress.advance(task, pace.add())
