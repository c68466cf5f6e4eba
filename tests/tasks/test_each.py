"""The shape of every task: one, list, iterator; windows, batches and order."""

from collections.abc import Iterator
from itertools import count, islice

import pytest

from cutaway.decoding import windows as module
from cutaway.decoding.windows import Materialized, windows
from cutaway.errors import InputError
from cutaway.tasks.batching import batches, is_text, map_inputs, read_in_order


def lengths(texts: Iterator[str]) -> Iterator[int]:
    return (len(text) for text in texts)


def test_one_gives_one_a_list_a_list_an_iterator_an_iterator() -> None:
    assert map_inputs("abc", lengths, is_text) == 3
    assert map_inputs(["a", "bc"], lengths, is_text) == [1, 2]
    assert map_inputs(("a", "bc"), lengths, is_text) == [1, 2]
    assert map_inputs([], lengths, is_text) == []
    result = map_inputs(iter(["a", "bc"]), lengths, is_text)
    assert isinstance(result, Iterator)
    assert list(result) == [1, 2]


@pytest.mark.parametrize("wrong", [None, 3, {"a": 1}, b"bytes"])
def test_what_is_no_text_is_told(wrong: object) -> None:
    with pytest.raises(InputError, match="expected a text, a list or an iterator of them, found"):
        map_inputs(wrong, lengths, is_text)


def test_a_list_is_taken_in_full_windows_a_stream_in_growing_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WINDOW", 6)
    assert [len(window) for window in windows(Materialized(["a"] * 20), len)] == [6, 6, 6, 2]
    assert [len(window) for window in windows(iter(["a"] * 20), len)] == [1, 2, 4, 6, 6, 1]


def test_a_window_of_long_texts_is_short() -> None:
    assert [len(window) for window in windows(Materialized(["abcde"] * 5), len, 10)] == [2, 2, 1]


def test_a_slow_stream_is_answered_line_by_line(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = count(0, 1)  # every look at it is a second later than the last
    monkeypatch.setattr(module.time, "monotonic", lambda: next(clock))
    assert [len(window) for window in windows(iter("abcdef"), len)] == [1] * 6


def test_batches_keep_the_budget_with_padding_and_miss_nobody() -> None:
    sizes = [7, 3, 50, 1, 3, 8, 2, 7, 11]
    found = list(batches(sizes, budget=16))
    assert sorted(i for batch in found for i in batch) == list(range(len(sizes)))
    for batch in found:
        assert len(batch) * max(sizes[i] for i in batch) <= 16 or len(batch) == 1
    assert [2] in found, "a row longer than the budget is read alone"
    assert len(found) <= 6, "short rows share a batch"


def test_answers_come_in_the_order_asked_with_all_their_rows() -> None:
    texts = ["aa bbbb c", "", "dddddd", "e f"]
    seen: list[list[str]] = []

    def read(rows: list[str]) -> list[str]:
        seen.append(rows)
        return [row.upper() for row in rows]

    found = list(
        read_in_order(
            Materialized(texts), lambda window: [text.split() for text in window], len, read, length=len, batch_tokens=4
        )
    )  # fmt: skip
    assert [(each.input, each.rows, each.said) for each in found] == [
        (text, text.split(), text.upper().split()) for text in texts
    ]
    assert ["c", "e", "f"] in seen, "rows of one length are read together, whoever they belong to"


def test_an_endless_stream_is_read_as_needed() -> None:
    taken: list[int] = []

    def endless() -> Iterator[str]:
        for i in count():
            taken.append(i)
            yield str(i)

    found = read_in_order(endless(), lambda w: [[text] for text in w], len, lambda rows: rows, length=len)
    assert taken == []
    assert [each.said for each in islice(found, 10)] == [[str(i)] for i in range(10)]
    assert len(taken) == 15, "windows of 1, 2, 4, 8"
