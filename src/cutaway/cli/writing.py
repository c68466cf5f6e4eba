"""What the commands that write share: their options, their lines, their records."""

import json
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from cutaway.cli.io import count_of, inputs_of, print_each
from cutaway.cli.options import Where
from cutaway.cli.terminal import show
from cutaway.tasks.options import Options
from cutaway.tasks.writer import Text


@dataclass(frozen=True)
class WritingOptions:
    """The options of a command line; None: not given."""

    beams: int | None = None
    n_best: int = 1
    max_tokens: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: list[str] | None = None
    engine: Any = None
    precision: Any = None
    device: str = "auto"
    dtype: Any = None

    @property
    def where(self) -> Where:
        return Where.of(self.device, self.dtype, self.engine, self.precision)

    @property
    def options(self) -> Options:
        """As keyword arguments of a task: only what was given."""
        given: dict[str, Any] = dict(vars(self))
        given["max_new_tokens"] = given.pop("max_tokens")
        del given["device"], given["dtype"]
        found: Any = {name: value for name, value in given.items() if value not in (None, [])}
        return found


Task = Callable[[Iterator[str]], Iterable[Any]]


def write_lines(task: Task, texts: list[str] | None, n_best: int, as_json: bool) -> None:
    """A line for every text (or for each of its n best), or a JSON object for every text, in the order given.

    `task` gives a text for each, or a list of them; for JSON, with details.
    """
    total = count_of(texts)
    if as_json:
        print_each(paired(inputs_of(texts), task), lambda result: record(*result), total)
    else:
        print_each(task(inputs_of(texts)), lambda result: _lines(_listed(result), n_best), total)


def _listed(result: Any) -> list[Any]:
    return result if isinstance(result, list) else [result]


def paired(inputs: Iterator[str], task: Task) -> Iterator[tuple[str, list[Text]]]:
    """Each input with its texts; remembers only those that are on their way."""
    waiting: deque[str] = deque()

    def noted() -> Iterator[str]:
        for text in inputs:
            waiting.append(text)
            yield text

    for result in task(noted()):
        yield waiting.popleft(), _listed(result)


def record(given: str, texts: list[Text]) -> str:
    """`{"input": …, "text": …, "score": …, "ended": …}`; `others` are the next best."""
    first, *others = [{"text": one.text, "score": round(one.score, 6), "ended": one.ended} for one in texts]
    return json.dumps({"input": given, **first, **({"others": others} if others else {})}, ensure_ascii=False)


def _lines(texts: list[str], n_best: int) -> str:
    """As many lines for every input, so that line numbers keep telling which is whose."""
    lines = [" ".join(text.rstrip("\r\n").splitlines()) for text in texts]
    return "\n".join(lines + [""] * (n_best - len(lines)))


def print_pieces(pieces: Iterator[str], name: str, before: str = "") -> None:
    """A text as it is written, after what stands `before` it, and without the empty lines at its end: a model may go on
    with nothing else."""
    held, is_empty = "", True
    try:
        show(before, end="", flush=True)
        for piece in pieces:
            text = held + piece
            n = len(text.rstrip())
            held, is_empty = text[n:], is_empty and n == 0
            show(text[:n], end="", flush=True)
    finally:
        show(held.partition("\n")[0], flush=True)  # however it ends, the next line begins at its start
    if (n := held.count("\n")) > 2:
        what = "wrote nothing but" if is_empty else "ended in"
        show(f"{name} {what} {n} line breaks, which are not printed; --json has them", file=sys.stderr, flush=True)
