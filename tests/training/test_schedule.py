"""Learning rates at a few steps, worked out by hand."""

import math
from typing import get_args

import pytest

from cutaway.training.schedule import Kind, noam_rate, schedule


@pytest.mark.parametrize("step", [1, 7, 3999, 4000, 4001, 16000, 100_000])
def test_noam_is_the_papers_formula(step: int) -> None:
    d_model, warmup = 512, 4000
    paper = d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)  # eq. 3
    ours = noam_rate(d_model, warmup) * schedule("noam", warmup, 100_000)(step)
    assert ours == pytest.approx(paper, rel=1e-12)  # a handful of float64 roundings of 1e-16


BY_HAND: dict[str, dict[int, float]] = {
    "noam": {10: 1.0, 40: 0.5, 90: 1 / 3, 160: 0.25},
    "inverse_sqrt": {10: 1.0, 40: 0.5, 90: 1 / 3, 160: 0.25},
    "cosine": {10: 1.0, 60: 0.5 + math.sqrt(0.5) / 2, 110: 0.5, 210: 0.0},
    "linear": {10: 1.0, 60: 0.75, 110: 0.5, 210: 0.0},
    "slanted_triangular": {10: 1.0, 110: 33 / 64, 210: 1 / 32},
    "constant": {10: 1.0, 110: 1.0, 210: 1.0},
}


@pytest.mark.parametrize("kind", get_args(Kind))
def test_after_the_warm_up(kind: Kind) -> None:
    factor = schedule(kind, 10, 210)  # 200 steps on the way down
    assert {step: factor(step) for step in BY_HAND[kind]} == pytest.approx(BY_HAND[kind], abs=1e-12)


@pytest.mark.parametrize("kind", get_args(Kind))
def test_the_warm_up_is_a_line_to_one(kind: Kind) -> None:
    factor = schedule(kind, 8, 100)
    assert [factor(step) for step in range(1, 9)] == pytest.approx([step / 8 for step in range(1, 9)])


@pytest.mark.parametrize("kind", get_args(Kind))
def test_without_a_warm_up_the_first_step_is_the_highest(kind: Kind) -> None:
    factor = schedule(kind, 0, 5)
    found = [factor(step) for step in range(1, 6)]
    assert found[0] == 1.0
    assert found == sorted(found, reverse=True)
    assert all(0.0 <= each <= 1.0 for each in found)


def test_slanted_triangular_without_a_warm_up_rises_in_the_first_tenth() -> None:
    factor = schedule("slanted_triangular", 0, 200)
    assert [factor(step) for step in (1, 10, 20)] == pytest.approx([1 / 20, 0.5, 1.0])


@pytest.mark.parametrize("kind", get_args(Kind))
@pytest.mark.parametrize(("warmup", "steps"), [(0, 1), (1, 1), (5, 5), (9, 3)])
def test_runs_shorter_than_their_warm_up_have_factors_too(kind: Kind, warmup: int, steps: int) -> None:
    factor = schedule(kind, warmup, steps)
    assert all(0.0 <= factor(step) <= 1.0 for step in range(1, steps + 1))
