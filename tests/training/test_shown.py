"""What a person sees of a run: a line that moves, a line for each look, and the curves of --plot."""

import os
import select
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from cutaway.cli.display.training import Live, LogLines
from cutaway.progress import Pace
from cutaway.training.watch import StepReport


def step(number: int, nll: float, recent: float = 6.25, unit: str = "token") -> StepReport:
    return StepReport(
        number, of=400, loss=nll, nll=nll, recent=recent, norm=1.0, factor=1.0, tokens=512, seconds=0.1,
        epochs=number / 100, unit=unit,
    )  # fmt: skip


@contextmanager
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """stderr is one; its screen."""
    screen, handle = os.openpty()
    with open(handle, "w", encoding="utf-8") as stderr, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", stderr)
        for name, value in (("TERM", "xterm"), ("COLUMNS", "100"), ("LINES", "50")):
            patch.setenv(name, value)
        yield screen
    os.close(screen)


def shown(screen: int) -> str:
    text = b""
    while select.select([screen], [], [], 0.3)[0]:
        text += os.read(screen, 100_000)
    return text.decode()


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="a terminal to draw on is made by the system's openpty")
def test_a_resumed_run_draws_its_curves_from_the_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    logged = [{"step": n, "nll": 8.0 - n / 100} for n in range(10, 201, 10)]
    logged += [{"step": n, "valid": {"loss": 7.0 - n / 100, "bleu": n / 10}} for n in (100, 200)]
    with terminal(monkeypatch) as screen:
        with Live(draw=True) as watch:
            watch.resumed(200, logged)
            watch.step(step(201, 6.0))
            watch.step(step(202, 5.5))
            watch.validated(202, {"loss": 4.5, "bleu": 30.0}, is_best=True, seconds=1.0)
            watch.step(step(203, 5.0))
        seen = shown(screen)
    assert "going on after step 200" in seen
    assert "step 202: loss 4.500, bleu 30.00 (best)" in seen
    loss, bleu = seen[seen.rindex("loss of a token") :].split("bleu on the validation examples")
    assert "7.9 ┤" in loss, "the first loss that was logged"
    assert "4.5 ┤" in loss, "the last that was looked at"
    assert loss.split("\n")[9].split() == ["10", "203"]
    assert "30 ┤" in bleu
    assert "10 ┤" in bleu
    assert "step 203 of 400, epoch 2.0, loss 6.250" in bleu, "the mean that the run knows, not one that begins anew"


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="a terminal to draw on is made by the system's openpty")
def test_what_is_over_does_not_stay_on_the_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal(monkeypatch) as screen:
        with Live(draw=False) as watch:
            watch.step(step(1, 6.0))
            watch.busy("validating the average")
        seen = shown(screen)
    assert "step 1 of 400, epoch 0.0, loss 6.250, " in seen
    assert "validating" not in seen[seen.rindex("step 1 of") :]


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="a terminal to draw on is made by the system's openpty")
def test_a_classifier_learns_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal(monkeypatch) as screen:
        with Live(draw=True) as watch:
            for number in (1, 2):
                time.sleep(0.01)
                watch.step(step(number, 6.0, unit="text"))
        seen = shown(screen)
    assert "loss of a text: training" in seen
    assert " texts/s, " in seen
    assert "token" not in seen


def test_a_log_hears_of_what_takes_long(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    watch, pace = LogLines(), Pace(200)
    pace.add()
    watch.busy("choosing the length penalty", pace)
    monkeypatch.setattr("cutaway.cli.display.training.SECONDS_BETWEEN_LINES", -1)  # now, that is
    watch.busy("choosing the length penalty", pace)
    watch.busy("validating the average")
    watch.busy("")
    told = ["choosing the length penalty: 1 of 200", "validating the average …"]
    assert capsys.readouterr().err.splitlines() == told


def test_a_log_gets_lines(capsys: pytest.CaptureFixture[str]) -> None:
    watch = LogLines()
    watch.resumed(200, [{"step": 10, "nll": 7.0}])
    watch.step(step(201, 6.0))  # not the first of all, and no half minute has passed
    watch.validated(202, {"loss": 4.5, "bleu": 30.0}, is_best=False, seconds=1.0)
    watch.warn("hot")
    told = ["going on after step 200", "step 202: loss 4.500, bleu 30.00", "Warning: hot"]
    assert capsys.readouterr().err.splitlines() == told
