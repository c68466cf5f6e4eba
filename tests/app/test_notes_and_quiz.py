"""`cutaway notes` and `cutaway quiz`, as a user runs them."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from cutaway.cli.display import quiz as quiz_command
from cutaway.cli.pager import paragraph
from cutaway.seeing.notes import quiz
from tests.support import commands

MISPRINTED = [3, 5, 6, 9, 10, 11, 13, 15, 19]
RIGHT = ["a b C", "c", "A", "d", "a", "B", "b"]


def cutaway(*arguments: str, stdin: str = "", columns: int = 80) -> commands.Done:
    return commands.run(arguments, stdin=stdin, environment={"COLUMNS": str(columns)})


def shown(*arguments: str, stdin: str = "", columns: int = 80) -> str:
    """What a run that goes well prints; nothing else may be said."""
    done = cutaway(*arguments, stdin=stdin, columns=columns)
    assert (done.code, done.err) == (0, "")
    return done.out


def words(text: str) -> str:
    """Without line ends, which depend on the width."""
    return " ".join(text.split())


@pytest.fixture(scope="module")
def overview() -> str:
    return shown("notes")


@pytest.fixture(scope="module")
def wide() -> str:
    return shown("notes", columns=140)


@pytest.fixture(scope="module")
def as_json() -> dict[str, Any]:
    return dict(json.loads(shown("notes", "--json")))


# notes


def test_all_examples_with_their_marks(overview: str) -> None:
    marks = {}
    for line in overview.splitlines():
        number, _, rest = line.strip().partition(" ")
        if number.isdigit() and rest[:1] in "✓✗+":
            marks[int(number)] = rest[0]
    assert list(marks) == list(range(1, 21))
    assert [number for number, mark in marks.items() if mark == "✗"] == MISPRINTED
    assert [number for number, mark in marks.items() if mark == "+"] == [7]


def test_prints_and_truth_stand_side_by_side(overview: str) -> None:
    lines = [words(line) for line in overview.splitlines()]
    assert "one note ✗ [1.2669 0.9999 1.2669 0.9999] [0.8446 0.5777 0.8446 0.5777]" in lines
    assert "✗ [1.34 0.94 0.01 1.79] [1.3415 1.1403 0.7100 1.79995]" in lines
    assert "one note ✓ [0.73 0.27] [0.7311 0.2689]" in lines
    assert "a mean can't exceed the largest of its values" in words(overview)
    assert "9 of 20 examples are misprinted: 3, 5, 6, 9, 10, 11, 13, 15, 19." in overview


@pytest.mark.parametrize("columns", [80, 140])
def test_nothing_is_wider_than_the_screen_or_cut_off(columns: int, overview: str, wide: str) -> None:
    output = overview if columns == 80 else wide
    assert max(map(len, output.splitlines())) <= columns
    assert "…" not in output
    assert "\x1b" not in output  # colours are for terminals
    for line in output.splitlines():  # a vector broken in two would leave a bracket open
        assert line.count("[") == line.count("]"), line


def test_wide_screens_have_reasons_beside_the_numbers(overview: str, wide: str) -> None:
    def line(output: str) -> str:
        return next(line for line in output.splitlines() if "[1.2669 0.9999 1.2669 0.9999]" in line)

    assert "The weights add up to 1" in line(wide)
    assert "The weights add up to 1" not in line(overview)


def test_one_example_step_by_step() -> None:
    output = shown("notes", "6")
    names = ("Queries", "Keys", "Values", "Scores", "Scaled scores", "Masked scores", "Weights", "Heads")
    places = [output.index(f" {i} {name}  ") for i, name in enumerate(names, start=1)]
    assert places == sorted(places)
    text = words(output)
    for expected in (
        "The → SAT 1·1 + 0·1 + 1·1 + 0·1 = 2",
        "The → The 2 / √4 = 1",
        "e^1 / (e^1 + e^0 + e^1) = 2.7183 / 6.4366 = 0.4223",
        "The, 2 0.4223·0 + 0.1554·1 + 0.4223·1 = 0.5777",
        "another note ✗ [1.2669 0.7999 1.2669 0.7999]",
        "What went wrong The weights add up to 1",
    ):
        assert expected in text


def test_a_right_example_has_nothing_that_went_wrong() -> None:
    output = shown("notes", "14")
    assert "What went wrong" not in output
    assert "✗" not in output
    assert "✓" in output
    assert "both conventions are sound" in words(output)


def test_every_example_can_be_shown_alone(capsys: pytest.CaptureFixture[str]) -> None:
    from cutaway.cli.notes import notes  # in this process: twenty starts of torch would take a minute

    for number in range(1, 21):
        notes(str(number))
        assert capsys.readouterr().out.startswith(f"Example {number}: ")


def test_json_of_all(as_json: dict[str, Any]) -> None:
    assert list(as_json) == ["examples"]
    examples = {example["number"]: example for example in as_json["examples"]}
    assert list(examples) == list(range(1, 21))
    assert [number for number, example in examples.items() if example["differs"]] == MISPRINTED
    for number, example in examples.items():
        assert {"number", "title", "printed", "true", "differs", "reason", "steps"} <= example.keys()
        assert isinstance(example["differs"], bool)
        assert (example["reason"] is not None) == (number in MISPRINTED)
        assert example["steps"]
    assert examples[6]["true"] == pytest.approx([0.8446, 0.5777, 0.8446, 0.5777], abs=5e-5)
    assert examples[6]["printed"][0]["value"] == ["1.2669", "0.9999", "1.2669", "0.9999"]
    assert examples[7]["printed"] == []
    assert examples[17]["true"] == 512


def test_json_of_one_is_that_one(as_json: dict[str, Any]) -> None:
    assert json.loads(shown("notes", "15", "--json")) == as_json["examples"][14]


@pytest.mark.parametrize("command", [("notes", "21"), ("quiz", "8")])
def test_a_number_that_does_not_exist(command: tuple[str, ...]) -> None:
    done = cutaway(*command)
    assert done.code == 2
    assert done.out == ""
    assert len(done.err.splitlines()) == 1
    assert f"no {'example' if command[0] == 'notes' else 'question'} {command[1]}" in done.err
    assert f"1 to {20 if command[0] == 'notes' else 7}" in done.err


@pytest.mark.parametrize("text", ["x", "-1", "0", "1.5"])
def test_a_number_that_is_none(text: str) -> None:
    for command, what, last in (("notes", "example", 20), ("quiz", "question", 7)):
        done = cutaway(command, text)
        assert done.code == 2
        assert done.err == f"Error: there is no {what} {text} in the notes; expected a number from 1 to {last}\n"


@pytest.mark.parametrize("columns", [36, 45, 50, 60, 79])
def test_narrow_screens_show_everything(columns: int) -> None:
    """Values stand below each other: all marks, all numbers, and no row of a table broken."""
    output = shown("notes", columns=columns)
    assert "…" not in output
    titles = re.findall(r"^ ?(\d+) ([✓✗+]) ", output, re.MULTILINE)
    assert len(titles) == 20
    assert [int(number) for number, mark in titles if mark == "✗"] == MISPRINTED
    assert "   one note ✓\n" in output
    assert "   another note ✗\n" in output
    values = [line.split(maxsplit=1)[1] for line in output.splitlines() if line.strip().startswith("true ")]
    assert len(values) > 25
    assert {"[0.7311 0.2689]", "The [0.4223 0.1554 0.4223]", "[1.3415 1.1403 0.7100 1.79995]"} <= set(values)
    one = shown("notes", "15", columns=columns)
    assert "     3    0.1152  0.2668  0.6180    0\n" in "\n".join(line.rstrip() for line in one.splitlines()) + "\n"


def test_marks_in_ascii() -> None:
    environment = os.environ | {"COLUMNS": "80", "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [sys.executable, "-m", "cutaway", "notes"], capture_output=True, text=True, env=environment, timeout=120
    )  # fmt: skip
    marks = [line.split()[1] for line in done.stdout.splitlines() if line[:2].strip().isdigit()]
    assert [i for i, mark in enumerate(marks, start=1) if mark == "NO"] == MISPRINTED
    assert marks.count("ok") == 20 - len(MISPRINTED) - 1
    assert "ok right to the digits printed, NO wrong, + not printed" in done.stdout


@pytest.mark.parametrize("number", ["2", "3", "5"])
def test_a_softmax_is_shown_after_what_it_is_of(number: str) -> None:
    output = shown("notes", number)
    assert output.index("Masked scores") < output.index("softmax(masked_scores)")


def test_the_notes_write_the_root_as_the_notes_do() -> None:
    output = shown("notes", "6")
    assert "scores / √d_k" in output
    assert "√K" not in output


def test_sums_of_one_row_have_as_many_digits() -> None:
    lines = [line.split(maxsplit=2)[2] for line in shown("notes", "15").splitlines() if line.startswith("   pad, ")]
    assert len(lines) == 4
    assert len({line.split("·")[0] for line in lines}) == 1


# quiz


def test_all_answers_right() -> None:
    output = shown("quiz", stdin="\n".join(RIGHT) + "\n")
    assert output.count("Right.") == 7
    assert "Not right" not in output
    assert output.endswith("Score: 7 of 7 right.\n")
    assert output.count("See for yourself:") == 7


def test_wrong_answers_are_told_and_not_counted() -> None:
    output = shown("quiz", stdin="A\nc\nB\nD\nA\nB\nA\n")  # 1: not all; 3 and 7: wrong
    assert output.count("Right.") == 4
    assert "Not right: the answer is A, B and C." in output
    assert "Not right: the answer is B." in output
    assert output.endswith("Score: 4 of 7 right.\n")


def test_nonsense_is_asked_again_and_the_end_of_input_is_polite() -> None:
    output = shown("quiz", stdin="perhaps\n\n abc \nE\nA C\n42\nF\nB\n")
    assert output.count("Please give one or more of A, B, C or D, for example A D; q stops.") == 2  # then abc: right
    assert output.count("Please give one letter: A, B, C or D; q stops.") == 4  # then B, which is wrong
    assert output.count("Not right: the answer is C.") == 1
    assert "You stopped here" in output
    assert output.endswith("Score: 1 of 2 right; 5 not answered.\n")


@pytest.mark.parametrize("stop", ["q\n", " Q \n", "quit\n", ""])
def test_how_to_stop_is_said_and_works(stop: str) -> None:
    output = shown("quiz", stdin=f"abc\n{stop}")
    assert output.startswith("Type the letter of your answer; q or Ctrl-D stops.\n")
    assert output.endswith("You stopped here; come back any time.\nScore: 1 of 1 right; 6 not answered.\n")


def test_no_input_at_all() -> None:
    output = shown("quiz", "4")
    assert "How wide is its output after concatenation?" in words(output)
    assert output.endswith("You stopped here; come back any time.\n")
    assert "Score" not in output


def test_a_closed_input_is_the_end_of_input() -> None:
    done = subprocess.run(
        f"{sys.executable} -m cutaway quiz 4 <&-", shell=True, capture_output=True, encoding="utf-8", timeout=120
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("You stopped here; come back any time.\n")


def test_control_c_ends_the_quiz_politely(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    typed: Iterator[str] = iter(["ABC"])

    def answer(_: str) -> str:
        for line in typed:
            return line
        raise KeyboardInterrupt

    monkeypatch.setattr("builtins.input", answer)
    quiz_command.ask_all(quiz.questions())
    assert capsys.readouterr().out.endswith("Score: 1 of 1 right; 6 not answered.\n")


def test_answers_asks_nothing_and_shows_real_numbers() -> None:
    output = shown("quiz", "--answers")
    assert "Your answer" not in output
    assert max(map(len, output.splitlines())) <= 80
    answers = [line for line in output.splitlines() if line.startswith("Answer: ")]
    assert answers == ["Answer: A, B and C.", *(f"Answer: {letter}." for letter in "CADABB")]
    text = words(output)
    for expected in (
        "memory of shape [1, 5, 8]",
        "transformer-base has 6 encoder and 6 decoder blocks",
        "its words not at all.",
        "CAT gives The 0.1554, CAT 0.4223, SAT 0.4223",
        "[1, 8, 3, 64] (batch, head, token, width)",
        "[1, 3, 512] (batch, token, width), and 8 × 64 = 512",
        "weights are [1 0 0]: its output changes not at all",
        "queries are [1, 2, 3, 4]",
        "keys [1, 2, 5, 4], values [1, 2, 5, 4]",
        "bert-base: encoder of 12 blocks, no decoder",
    ):
        assert expected in text


def test_quiz_as_json() -> None:
    questions = json.loads(shown("quiz", "--json"))["questions"]
    assert [question["number"] for question in questions] == list(range(1, 8))
    assert [question["answers"] for question in questions] == [list("ABC"), *([letter] for letter in "CADABB")]
    assert [len(question["options"]) for question in questions] == [4, 4, 4, 4, 4, 4, 3]
    for question in questions:
        assert question["text"]
        assert question["explanation"]
        assert question["demonstration"] == quiz.demonstrate(question["number"])  # the same in every process


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("A B C", {"A", "B", "C"}), ("abc", {"A", "B", "C"}), ("a, b; c.", {"A", "B", "C"}), ("d", {"D"}),
        ("", None), ("   ", None), ("E", None), ("a b e", None), ("yes", None), ("1", None),
    ],
)  # fmt: skip
def test_how_an_answer_may_be_written(line: str, expected: set[str] | None) -> None:
    assert quiz_command.parse(line, quiz.question(1)) == expected


def test_one_letter_where_one_is_right() -> None:
    assert quiz_command.parse("A B", quiz.question(2)) is None
    assert quiz_command.parse("d", quiz.question(7)) is None  # this question has no D


def test_positions_make_the_difference_in_the_demonstration() -> None:
    lines = [line for line in quiz.demonstrate(2) if "Turning" in line]
    assert "not at all" in lines[0]
    assert "by up to 0." in lines[1]


def test_the_demonstration_of_positions_changes_positions_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """With sinusoids that are 0 the two halves are the same: the words have one vector each."""
    monkeypatch.setattr("cutaway.parts.embedding.sinusoids", lambda n_positions, d, *_: torch.zeros(n_positions, d))
    lines = quiz.demonstrate(2)
    assert lines[1:4] == lines[5:8]


def test_the_mask_makes_the_difference_in_the_demonstration() -> None:
    _, without, masked = quiz.demonstrate(5)
    assert "changes by up to 0." in without
    assert "changes not at all" in masked


def test_paragraphs_keep_vectors_in_one_piece() -> None:
    text = paragraph("the weights belong to [0 1 1] and 3 × 4 = 12", 26, indent=2, hanging=1)
    assert text.splitlines() == ["  the weights belong to", "   [0 1 1] and 3 × 4 = 12"]
