"""clean: every rule at its edge, and the report that says what was dropped and where it is."""

import pytest

from cutaway.data.clean import WORDS, DropReport, Rules, clean
from cutaway.data.pairs import Pair
from cutaway.data.rows import BadRow
from cutaway.errors import ConfigError


def run(pairs: list[tuple[str, str]], rules: Rules | None = None) -> tuple[list[int], DropReport]:
    """Which pairs are kept, counted from 1."""
    dropped = DropReport()
    numbered = [Pair(a, b, f"train.en:{i}") for i, (a, b) in enumerate(pairs, start=1)]
    kept = list(clean(numbered, rules or Rules(), dropped))
    return [int(pair.where.rpartition(":")[2]) for pair in kept], dropped


def test_empty_sides() -> None:
    kept, dropped = run([("a", "b"), ("", "b"), ("a", " \u00a0\r\n"), ("\t", "")])
    assert kept == [1]
    assert dropped == DropReport(n_read=4, n_kept=1, counts={"empty": 3}, first={"empty": "train.en:2"})


def test_length() -> None:
    assert run([("a" * 2000, "b" * 2000), ("a" * 2001, "b" * 2000), ("a" * 2000, "b" * 2001)])[0] == [1]
    kept, dropped = run([("abc", "ab"), ("abcd", "ab"), (" abc ", "ab")], Rules(max_characters=3))
    assert kept == [1, 3], "white space at the ends does not count"
    assert dropped.counts == {"too long": 1}


def test_ratio() -> None:
    pairs = [("a" * 30, "b"), ("a" * 31, "b"), ("bbbb", "a" * 36), ("bbbb", "a" * 37)]
    kept, dropped = run(pairs)
    assert kept == [1, 3], "9 times as long, or no more than 30 characters"
    assert dropped.first == {"ratio": "train.en:2"}
    assert run(pairs, Rules(max_ratio=0))[0] == [1, 2, 3, 4]
    assert run([("a" * 40, "b" * 20), ("a" * 41, "b" * 20)], Rules(max_ratio=2.0))[0] == [1]


def test_duplicates() -> None:
    pairs = [("a", "b"), ("a", "c"), (" a", "b "), ("ab", "b"), ("a", "bb"), ("a", "b")]
    assert run(pairs)[0] == [1, 2, 3, 4, 5, 6]
    kept, dropped = run(pairs, Rules(duplicates=True))
    assert kept == [1, 2, 4, 5]
    assert dropped.counts == {"duplicate": 2}
    assert dropped.first == {"duplicate": "train.en:3"}


def test_same_text() -> None:
    pairs = [("Paris", "Paris "), ("Rome", "rome")]
    assert run(pairs)[0] == [1, 2]
    assert run(pairs, Rules(same=True))[0] == [2]


def test_texts_stay_as_they_are_inside() -> None:
    text = "«\u00a0Cafe\u0301\u202f!\u00a0»\u2028et  deux"
    (pair,) = clean([Pair(f"\ufeff {text}", f" {text}\r\n", "x:1")], Rules(), DropReport())
    assert pair.target == text
    assert pair.source == f"\ufeff {text}", "a mark that is no white space stays too"


def test_the_report() -> None:
    rows = [Pair("a", "b", f"train.en:{i}") for i in range(28_991)]
    bad = [
        BadRow("invalid UTF-8", "train.fr:17", "…"),
        BadRow("invalid UTF-8", "train.fr:18", "…"),
        BadRow("columns", "x:3", "…"),
    ]
    dropped = DropReport()
    assert str(dropped) == "kept 0 of 0 pairs"
    found = clean([*rows, *bad, *[Pair("", "", f"train.en:{i}") for i in (40, 41, 42)]], Rules(), dropped)
    next(found)
    assert str(dropped) == "kept 1 of 1 pairs", "it counts as the pairs are read"
    assert len(list(found)) == 28_990
    assert str(dropped) == (
        "kept 28,991 of 28,997 pairs; dropped 3 empty (first: train.en:40), 2 not UTF-8 (first: train.fr:17), "
        "1 with missing or extra columns (first: x:3)"
    )
    dropped.add("ratio", "y:1")
    assert str(dropped).endswith("1 with too different lengths (first: y:1)")


def test_every_fault_has_its_words() -> None:
    from typing import get_args

    from cutaway.data.rows import Fault

    assert set(get_args(Fault)) < set(WORDS)


def test_rules_that_make_no_sense() -> None:
    for fields, sentence in [
        ({"max_characters": 0}, "Rules.max_characters=0 must be at least 1"),
        ({"max_ratio": 0.5}, "Rules.max_ratio=0.5 must be at least 1, or 0 for any"),
        ({"max_ratio": float("nan")}, "Rules.max_ratio=nan must be a finite number"),
        ({"duplicates": "yes"}, r"Rules.duplicates is 'yes' \(str\); expected bool"),
    ]:
        with pytest.raises(ConfigError, match=sentence):
            Rules(**fields)  # type: ignore[arg-type]
