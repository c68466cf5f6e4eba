"""bench.train: everybody learns the same tokens, and its table compares with the right ones."""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bench import learners, lessons, train
from bench.harness import Result, Turn, Work
from bench.lessons import END, PAD, START, Lesson

QUICK = argparse.Namespace(quick=True, source=None, target=None, smoothing=0.0, batches=2, tokens=256)


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    n = torch.get_num_threads()
    yield
    torch.set_num_threads(n)


def tiny(model: str, place: Path) -> Lesson:
    lesson = replace(train.lesson(model, QUICK), place=place)
    stacks = {name: getattr(lesson.config, name) for name in ("encoder", "decoder")}
    small = {"n_blocks": 1, "d_model": 16, "n_heads": 2, "d_ff": 32, "vocabulary": 1000}
    config = replace(lesson.config, **{name: replace(stack, **small) for name, stack in stacks.items() if stack})
    return replace(lesson, config=config)


@pytest.mark.parametrize(
    ("model", "setup"),
    [
        ("tiny", learners.cutaway),
        ("tiny", lambda lesson: learners.plain(lesson, "torch", False)),
        ("tiny", lambda lesson: learners.plain(lesson, "hugging face", False)),
        ("gpt2", learners.cutaway),
        ("gpt2", lambda lesson: learners.nanogpt(lesson, False)),
    ],
    ids=["cutaway", "torch", "marian", "cutaway-gpt2", "nanogpt"],
)
def test_contestants_learn_the_same_tokens(model: str, setup: Callable[[Lesson], Work], tmp_path: Path) -> None:
    lesson = tiny(model, tmp_path)
    work = setup(lesson)
    assert [step() for step in work.steps] == [batch.n_tokens for batch in lesson.batches]
    assert 5.9 < work.facts["first_loss"] < 8.9  # ln 1000 = 6.9
    work.rest()


def test_shares_hold_every_row_once() -> None:
    steps = [["a"] * 5, ["b"] * 4, ["c"] * 3]
    shares = lessons.shares_of(steps, 2)
    assert shares == [[[0, 1], [10, 11]], [[5, 6], [2, 3, 4]], [[9], [7, 8]]]


def test_batches_of_files(tmp_path: Path) -> None:
    for name, word in (("source", "word"), ("target", "Wort")):
        lines = [" ".join([word] * (1 + i % 7)) for i in range(60)]
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    steps = lessons.from_files(tmp_path / "source", tmp_path / "target", 300, 64, 3)
    assert len(steps) == 3
    batch = lessons.padded(steps[-1])
    assert (batch.tokens[:, 0] == START).all()
    assert batch.source is not None
    assert all(row[row != PAD][-1] == END for row in batch.source)
    assert batch.labels.numel() <= 64


def test_table_compares_with_the_best_peers() -> None:
    rates = {"cutaway": 300.0, "a, as shipped": 100.0, "b, as shipped": 150.0, "b, our settings": 200.0}
    results = [Result(f"float32 {name}", [Turn(rate, 0.0, 1.0)]) for name, rate in rates.items()]
    results.append(Result("float32 matrix products", [Turn(1e9, 0.0, 1.0)]))
    results.append(Result("float32 c, as shipped", error="no c"))
    asked = train.lesson("tiny", QUICK)
    found = train.table("title", asked, results)
    assert [row[2:5] for row in found.rows] == [
        ["300", "2.00", "1.50"],
        ["100", "0.67", "0.50"],
        ["150", "1.00", "0.75"],
        ["200", "1.33", "1.00"],
        ["failed", "–", "–"],
    ]
    assert found.notes[-1] == "failed: float32 c, as shipped: no c"
