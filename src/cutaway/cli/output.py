"""Results as lines of stdout: texts that a model wrote, and what it says of texts that it read.

One argument is answered with a line for each result; several, or the lines of stdin, with a line for each input.
"""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

from cutaway.cli.io import count_of, show_progress
from cutaway.cli.terminal import show

if TYPE_CHECKING:
    from cutaway.tasks.classify import Label
    from cutaway.tasks.writer import Text

R = TypeVar("R")


def print_each(results: Iterable[R], line: Callable[[R], str | dict[str, Any]], total: int | None = None) -> None:
    """A line for each result, as soon as it is there; `total` is how many will come, for the progress on stderr."""
    for result in show_progress(results, total):
        formed = line(result)
        if not isinstance(formed, str):
            formed = json.dumps(formed, ensure_ascii=False, allow_nan=False)
        show(formed, flush=True)


def print_texts(results: Iterable[Any], inputs: Iterator[str], total: int | None, n_best: int, as_json: bool) -> None:
    """A line for every text (or for each of its n best), or a JSON object for every text, in the order given.

    `results` has a text for each of `inputs`, or a list of them; for JSON, with details.
    """
    for result, given in zip(show_progress(results, total), inputs, strict=False):
        texts = result if isinstance(result, list) else [result]
        show(_record(given, texts) if as_json else _lines(texts, n_best), flush=True)


def _record(given: str, texts: list["Text"]) -> str:
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


def n_results(inputs: list[str] | None, top: int | None) -> int:
    """How many results each input gets: five where it is alone, one where there are several."""
    return top if top is not None else 5 if is_alone(inputs) else 1


def is_alone(inputs: list[str] | None) -> bool:
    """Whether there is one argument."""
    return inputs is not None and len(inputs) == 1


def separator(inputs: list[str] | None) -> str:
    """Between the results of one input: they are lines where it is alone, else columns."""
    return "\n" if is_alone(inputs) else "\t"


def print_labels(results: Iterable[Sequence["Label"]], inputs: list[str] | None, as_json: bool) -> None:
    """The classes of each input, with their probabilities."""

    def line(labels: Sequence["Label"]) -> str:
        return separator(inputs).join(
            f"{label.probability:.4f}\t{' '.join(label.label.splitlines())}" for label in labels
        )

    def record(labels: Sequence["Label"]) -> dict[str, Any]:
        return {"labels": list(map(asdict, labels))}

    print_each(results, record if as_json else line, count_of(inputs))
