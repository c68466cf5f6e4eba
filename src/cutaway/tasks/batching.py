"""The shape of every task: one input gives one result, a list gives a list, an iterator gives an iterator.

Also what makes many inputs fast: inputs are taken a few thousand at a time, sorted by length, and read in batches of
about so many tokens, padding included; the answers come back in the order asked.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from cutaway.checks import describe
from cutaway.decoding.windows import Materialized, windows
from cutaway.errors import InputError
from cutaway.machine.threads import side_by_side
from cutaway.parts.tap import anybody_listens

BATCH_TOKENS = 1024
"""Tokens in one batch: enough for the products to be efficient, few enough for activations to stay in the L2 cache."""

X = TypeVar("X")
R = TypeVar("R")


def map_inputs(
    inputs: object, run: Callable[[Iterator[X]], Iterator[R]], is_one: Callable[[object], bool], what: str = "text"
) -> R | list[R] | Iterator[R]:
    """`run`, a task on a stream, on whatever was given.

    One input (`is_one`) gives its result, an iterator gives an iterator that takes inputs as it needs them, and a list
    (or another collection) gives a list. `what` names an input in the error.
    """
    if is_one(inputs):
        (result,) = run(iter([inputs]))  # type: ignore[list-item]  # is_one has looked
        return result
    if isinstance(inputs, Iterator):
        return run(inputs)
    if isinstance(inputs, Iterable) and not isinstance(inputs, str | bytes | Mapping):
        return list(run(Materialized(inputs)))
    raise InputError(f"expected a {what}, a list or an iterator of them, found {describe(inputs)}")


def is_text(inputs: object) -> bool:
    return isinstance(inputs, str)


def batches(lengths: Sequence[int], budget: int = BATCH_TOKENS) -> Iterator[list[int]]:
    """Indices into `lengths`, short ones together: rows × longest row ≤ `budget`, or one row that is longer.

    From half of the budget on, only rows of the same length join: without padding, nothing need be hidden.
    """
    batch: list[int] = []
    for i in sorted(range(len(lengths)), key=lengths.__getitem__):
        n = (len(batch) + 1) * lengths[i]  # sorted, so this one would be the longest
        if batch and (n > budget or (2 * n > budget and lengths[i] > lengths[batch[-1]])):
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


Row = TypeVar("Row")


@dataclass(frozen=True)
class Answered(Generic[X, Row, R]):
    """One input, the rows it was read as (none, one, or the windows of a long text), and what was said of each."""

    input: X
    rows: list[Row]
    said: list[R]


def read_in_order(
    inputs: Iterator[X],
    rows_of: Callable[[list[X]], list[list[Row]]],
    n_tokens: Callable[[Row], int],
    read: Callable[[list[Row]], Sequence[R]],
    *,
    length: Callable[[X], int],
    batch_tokens: int = BATCH_TOKENS,
    device: torch.device | None = None,
) -> Iterator[Answered[X, Row, R]]:
    """Every input in order, with what `read` said of its rows; rows of about one length are read together, and on a CPU
    batches side by side."""
    parallel = (device is None or device.type == "cpu") and not anybody_listens()
    for window in windows(inputs, length):
        rows_by_input = rows_of(window)
        flat = [row for rows in rows_by_input for row in rows]
        said: list[R | None] = [None] * len(flat)
        places = list(batches([n_tokens(row) for row in flat], batch_tokens))
        grouped = [[flat[i] for i in batch] for batch in places]
        for batch, results in zip(places, side_by_side(read, grouped, parallel=parallel), strict=True):
            for i, result in zip(batch, results, strict=True):
                said[i] = result
        answers = iter(said)
        for item, rows in zip(window, rows_by_input, strict=True):
            yield Answered(item, rows, [next(answers) for _ in rows])  # type: ignore[misc]  # every row was read
