"""The notes' worked examples: true values by hand, what is misprinted, and sums that add up as they are written."""

import copy
import json
import math
import re
from typing import Any

import pytest

from cutaway.errors import CutawayError, InputError
from cutaway.parts.attention import Attention
from cutaway.seeing.notes import arithmetic, notes
from cutaway.seeing.notes.notes import Printing, WorkedExample, agrees, compare
from cutaway.seeing.notes.worked_examples import Step

THIRD = 1 / 3

# Worked out by hand, to four digits.
TRUE: dict[int, Any] = {
    1: [6, 4],
    2: [0.8808, 0.1192],
    3: [0.7311, 0.2689],
    4: [[2, 0, 2], [0, 2, 2], [2, 2, 4]],
    5: [[0.4223, 0.1554, 0.4223], [0.1554, 0.4223, 0.4223], [0.2119, 0.2119, 0.5761]],
    6: [0.8446, 0.5777, 0.8446, 0.5777],
    7: [[0.5777, 0.8446, 0.5777, 0.8446], [0.7881, 0.7881, 0.7881, 0.7881]],
    8: [0, 1, 0, 1],
    9: [0.8415, 0.5403, 0.0100, 0.99995],
    10: [0.1, 1.2, 0.3, 1.4],
    11: [1.3415, 1.1403, 0.71, 1.79995],
    12: [-1.3416, -0.4472, 0.4472, 1.3416],
    13: {
        "scores": [[0.3, 0.7, 1.1, 0], [0.7, 1.74, 2.78, 0], [1.1, 2.78, 4.46, 0], [0, 0, 0, 0]],
        "scaled_scores": [[0.15, 0.35, 0.55, 0], [0.35, 0.87, 1.39, 0], [0.55, 1.39, 2.23, 0], [0, 0, 0, 0]],
    },
    14: [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 0]],
    15: [[1, 0, 0, 0], [0.3729, 0.6271, 0, 0], [0.1152, 0.2668, 0.6180, 0], [THIRD, THIRD, THIRD, 0]],
    16: [[0.4, 0.4, 0.2], [0.3, 0.6, 0.1], [0.1, 0.1, 0.8]],
    17: 512,
    18: {
        "d_model": 512, "n_heads": 8, "d_head": 64, "root": 8, "encoder_blocks": 6, "decoder_blocks": 6, "d_ff": 2048,
        "parameters": 63_082_496,
    },
    19: [0, 1, 0, 0, 0, 0],
    20: {
        "padding": [1, 1, 0],
        "pairs": [[1, 1, 0], [1, 1, 0], [0, 0, 0]],
        "combined": [[1, 0, 0], [1, 1, 0], [0, 0, 0]],
    },
}  # fmt: skip

MISPRINTED = {3, 5, 6, 9, 10, 11, 13, 15, 19}


@pytest.fixture(scope="module")
def worked() -> dict[int, WorkedExample]:
    return {example.number: example for example in notes.examples()}


def same(found: Any, expected: Any) -> bool:
    """Equal in shape, and in every number to four digits."""
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(same(found[key], expected[key]) for key in expected)
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(same, found, expected))
    return bool(abs(found - expected) < 5.1e-5)  # half of the fourth digit, and float32


@pytest.mark.parametrize("number", TRUE)
def test_the_true_value(number: int, worked: dict[int, WorkedExample]) -> None:
    found = notes.to_json(worked[number])["true"]
    assert same(found, TRUE[number]), found


def test_there_are_twenty() -> None:
    assert [example.number for example in notes.examples()] == list(range(1, 21))


def test_exactly_these_are_misprinted(worked: dict[int, WorkedExample]) -> None:
    assert {number for number, example in worked.items() if example.differs} == MISPRINTED


def test_misprints_and_only_they_have_a_reason(worked: dict[int, WorkedExample]) -> None:
    for number, example in worked.items():
        assert bool(example.reason and len(example.reason) > 40) == (number in MISPRINTED), number


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (3, [("another note", "q → k1", "0.75", "0.7311"), ("another note", "q → k2", "0.25", "0.2689")]),
        (5, [("one note", "SAT → SAT", "0.5762", "0.5761"), ("another note", "The → SAT", "0.4221", "0.4223")]),
        (10, [("the notes", "number 4", "0.4", "1.4")]),
        (19, [("the notes", "how many", "7 numbers", "6 numbers")]),
    ],
)
def test_which_numbers_are_wrong(
    number: int, expected: list[tuple[str, ...]], worked: dict[int, WorkedExample]
) -> None:
    found = [(wrong.note, wrong.where, wrong.printed, wrong.true) for wrong in worked[number].differences]
    assert found == expected


@pytest.mark.parametrize(
    ("printed", "true", "right"),
    [
        ("0.88", 0.8808, True),
        ("0.880", 0.8808, False),
        ("0.881", 0.8808, True),
        ("0.9", 0.8808, True),
        ("1", 0.8808, True),
        ("0.75", 0.7311, False),
        ("-1.34", -1.34164, True),
        ("1.34", -1.34164, False),
        ("0.0", 0.0, True),
        ("0.0", 0.06, False),
        ("0.99995", 0.9999499917, True),
    ],
)
def test_a_print_is_right_to_the_digits_it_has(printed: str, true: float, right: bool) -> None:
    assert agrees(printed, true) is right


def test_compare_finds_wrong_numbers_rows_and_shapes() -> None:
    step = Step("weights", "", [[0.25, 0.75], [0.5, 0.5]], rows=["a", "b"], columns=["c", "d"])
    assert compare(Printing("n", "weights", [["0.25", "0.75"], ["0.5", "0.5"]]), step) == []
    (wrong,) = compare(Printing("n", "weights", [["0.25", "0.75"], ["0.5", "0.4"]]), step)
    assert (wrong.where, wrong.printed, wrong.true) == ("b → d", "0.4", "0.5")
    assert compare(Printing("n", "weights", ["0.5", "0.5"], row="b"), step) == []
    assert len(compare(Printing("n", "weights", ["0.5", "0.5"], row="a"), step)) == 2
    (wrong,) = compare(Printing("n", "weights", ["0.25", "0.75", "0.5"], row="a"), step)
    assert (wrong.printed, wrong.true) == ("3 numbers", "2 numbers")


def test_a_changed_print_is_noticed() -> None:
    record = copy.deepcopy(notes.data()["examples"][0])
    record["printings"][0]["value"] = ["6", "5"]
    assert not notes.example(1).differs
    assert notes._work(record).differs


def test_the_parts_compute_the_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part that is wrong is not papered over: its sums do not add up, and no line is written."""
    attend = Attention.attend
    monkeypatch.setattr(Attention, "attend", lambda *args: attend(*args) + 0.001)
    with pytest.raises(AssertionError, match="comes to"):
        notes.example(6)


@pytest.mark.parametrize("number", [0, 21, -3])
def test_a_number_outside_says_which_exist(number: int) -> None:
    with pytest.raises(InputError, match=rf"no example {number} in the notes; choose one of 1 to 20"):
        notes.example(number)
    assert issubclass(InputError, CutawayError)


def test_the_data_hold_no_true_values() -> None:
    for record in notes.data()["examples"]:
        assert "true" not in record
        assert "differs" not in record
        assert all(
            isinstance(text, str) for printing in record["printings"] for text in leaves(printing["value"])
        )  # numbers would lose their digits


def test_json_is_plain_and_says_minus_infinity_as_text(worked: dict[int, WorkedExample]) -> None:
    for example in worked.values():
        json.dumps(notes.to_json(example), allow_nan=False)
    steps = {step["name"]: step["value"] for step in notes.to_json(worked[15])["steps"]}
    assert steps["masked_scores"][0][1:] == ["-inf", "-inf", "-inf"]


def test_json_tells_right_printings_from_wrong_ones(worked: dict[int, WorkedExample]) -> None:
    printed = notes.to_json(worked[9])["printed"]
    assert [(it["note"], it["differs"]) for it in printed] == [
        ("worked out", False), ("in a table", True), ("in the sum", True)
    ]  # fmt: skip


# Written sums, read back: an evaluator of its own, so that the writer cannot vouch for itself.


def leaves(value: Any) -> list[Any]:
    return [leaf for item in value for leaf in leaves(item)] if isinstance(value, list) else [value]


def evaluate(text: str) -> float:
    text = re.sub(r"(?<=\d),(?=\d{3})", "", text)
    text = re.sub(r"e\^(-?[\d.]+|-∞)", r"exp(\1)", text.replace("^(", "**(")).replace("∞", "inf")
    text = re.sub(r"√([\d.]+)", r"sqrt(\1)", text).replace("√(", "sqrt(")
    text = text.replace("·", "*").replace("²", "**2")
    return float(eval(text, {"__builtins__": {}}, vars(math)))


def decimals(text: str) -> int:
    return max((len(digits) for digits in re.findall(r"\.(\d+)", text)), default=0)


def adds_up(text: str) -> bool:
    """Whether every side of the equations gives the last, to the digits that are shown."""
    *sides, result = text.split(" = ")
    if "×" in text:  # masks: number by number
        a, b, c = (list(map(int, re.findall(r"\d", part))) for part in re.split(" [×=] ", text))
        return [x * y for x, y in zip(a, b, strict=True)] == c
    shown = decimals(result) if decimals(result) >= 4 else decimals(text)
    close = max(0.5 * 10**-shown, 1.2e-7) if shown >= 4 else 1e-9  # 1.2e-7: a float32's last bit, for thirds
    return bool(sides) and all(abs(evaluate(side) - evaluate(result)) <= close for side in sides)


def sums(example: WorkedExample) -> list[tuple[str, str]]:
    return [(step.name, line.text) for step in example.steps for line in step.lines if line.of and " = " in line.text]


@pytest.mark.parametrize("number", TRUE)
def test_written_sums_add_up(number: int, worked: dict[int, WorkedExample]) -> None:
    for name, text in sums(worked[number]):
        assert adds_up(text), f"{name}: {text}"


def test_the_reader_of_sums_can_say_no() -> None:
    assert adds_up("0.4223·1 + 0.1554·0 + 0.4223·1 = 0.8446")
    assert not adds_up("0.4223·1 + 0.1554·0 + 0.4223·1 = 1.2669")
    assert not adds_up("0.2119·1 + 0.2119·0 + 0.5761·1 = 0.7881")  # true, but not of the digits shown
    assert not adds_up("6 / √4 = 2")
    assert not adds_up("[1 1 0] × [1 0 0] = [1 1 0]")


def test_every_value_of_a_sum_is_the_step_s(worked: dict[int, WorkedExample]) -> None:
    """Line by line the right side is the value in the table above it."""
    checked = 0
    for example in worked.values():
        for step in example.steps:
            texts = [line.text for line in step.lines if line.of and " = " in line.text and "×" not in line.text]
            values = leaves(step.value)
            if len(texts) == len(values):
                for text, value in zip(texts, values, strict=True):
                    result = text.split(" = ")[-1]
                    assert abs(evaluate(result) - value) <= 0.51 * 10 ** -max(decimals(result), 4), (step.name, text)
                    checked += 1
    assert checked > 150


@pytest.mark.parametrize(
    ("number", "name", "text"),
    [
        (1, "scores", "2·1 + 3·0 + 4·1 + 1·0 = 6"),
        (3, "scaled_scores", "6 / √4 = 3"),
        (3, "weights", "e^3 / (e^3 + e^2) = 20.0855 / 27.4746 = 0.7311"),
        (6, "heads", "0.4223·1 + 0.1554·0 + 0.4223·1 = 0.8446"),
        (7, "heads", "0.21194·1 + 0.21194·0 + 0.57612·1 = 0.78806"),
        (9, "position", "sin(1 / 10000^(0/4)) = 0.8415"),
        (9, "position", "cos(1 / 10000^(2/4)) = 0.99995"),
        (10, "output", "0.4 + 1 = 1.4"),
        (12, "mean", "(2 + 4 + 6 + 8) / 4 = 5"),
        (12, "variance", "((2 - 5)² + (4 - 5)² + (6 - 5)² + (8 - 5)²) / 4 = 5"),
        (12, "normalized", "(2 - 5) / √(5 + 0.00001) = -1.3416"),
        (15, "weights", "e^-∞ / (e^0.35 + e^0.87) = 0 / 3.8060 = 0"),
        (16, "weights", "0.4 + 0.4 + 0.2 = 1"),
        (17, "width", "8·64 = 512"),
        (20, "combined", "[1 1 1] × [0 0 0] = [0 0 0]"),
    ],
)
def test_sums_are_written_as_on_paper(number: int, name: str, text: str, worked: dict[int, WorkedExample]) -> None:
    assert (name, text) in sums(worked[number])


def test_a_sum_that_is_not_true_is_not_written() -> None:
    with pytest.raises(AssertionError, match="comes to 11"):
        arithmetic.products("a", [1, 2], [3, 4], 12.0)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (2.0, "2"), (-0.0, "0"), (0.1 + 0.2, "0.3"), (0.7310586, "0.7311"), (0.99994999, "0.99995"),
        (0.0099998, "0.0100"), (-1.34164, "-1.3416"), (63082496, "63,082,496"), (-math.inf, "-∞"),
    ],
)  # fmt: skip
def test_numbers_show_the_digits_they_have(value: float, text: str) -> None:
    assert arithmetic.number(value) == text
