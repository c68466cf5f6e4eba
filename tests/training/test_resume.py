"""A run that was killed, stopped or interrupted comes to the same weights, bit for bit, as one that never was.

Killed 3 times here; `python -m bench.chaos` does it 30 times and aims at the moments when it saves.
"""

import json
import random
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from safetensors.torch import load_file

import cutaway
from cutaway.models.build import build
from cutaway.training import corpus
from cutaway.training.config import ModelChoice
from cutaway.training.folder import RunFolder
from cutaway.training.run import resume, train
from cutaway.training.state import digest
from cutaway.training.watch import StepReport, Watch
from tests.support import commands
from tests.support import toy_runs as toy

KEPT = [toy.EVERY_STEP, "optimizer.kind=muon", "averaging.ema=0.9", "averaging.of=best", "model.dropout=0.2"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> toy.Corpus:
    return toy.corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, data: toy.Corpus) -> Path:
    """The run that nobody disturbs."""
    folder = tmp_path_factory.mktemp("whole")
    done = commands.run(toy.arguments(data, folder / "out", *KEPT), folder / "log")
    assert done.code == 0, done.err
    return folder / "out"


def test_the_whole_run_is_what_it_should_be(whole: Path) -> None:
    """Or the comparisons below would say little."""
    lines = toy.metrics(whole)
    assert [line["step"] for line in lines if "valid" in line] == [3, 6, 9, 12]
    assert [line["step"] for line in lines if "loss" in line] == [10]
    assert {path.name for path in toy.newest(whole).iterdir()} == {
        "weights.safetensors", "average.safetensors", "optimizer.safetensors", "facts.json", "manifest.json"
    }  # fmt: skip
    state = toy.left_behind(whole)
    assert state["step-00000012/weights.safetensors"] != state["step-00000012/average.safetensors"]


def test_the_same_run_twice_is_the_same(tmp_path: Path, data: toy.Corpus, whole: Path) -> None:
    train(toy.config(data, *KEPT), tmp_path / "out")
    toy.same_run(tmp_path / "out", whole)
    assert len(list((tmp_path / "out" / "training" / "tensorboard").iterdir())) == 1


@pytest.mark.parametrize(
    "settings",
    [
        ["machine.precision=bfloat16", "regularization.r_drop=1"],
        ["machine.precision=bfloat16", "model.preset=gru-seq2seq"],
        ["model.dropout=0.0015"],  # too little for a byte
    ],
)
def test_stopped_and_resumed_in_other_ways(tmp_path: Path, data: toy.Corpus, settings: list[str]) -> None:
    """Two threads share nothing that the order of their work would change."""
    recurrent = "model.preset=gru-seq2seq" in settings
    given = toy.config(data, *settings, "batches.tokens=512", "batches.micro_batches=4", "validation.every=12")
    if recurrent:  # without the sizes of a Transformer
        given = replace(given, model=ModelChoice(preset="gru-seq2seq", d_model=16, d_hidden=32, dropout=0.1))
    train(given, tmp_path / "whole")
    steps: list[int] = []

    def at_seven() -> str | None:
        steps.append(1)
        return "SIGINT" if len(steps) >= 7 else None

    assert train(given, tmp_path / "out", stop=at_seven).progress.step == 7
    resume(tmp_path / "out")
    toy.same_run(tmp_path / "out", tmp_path / "whole")


def test_killed_three_times(tmp_path: Path, data: toy.Corpus, whole: Path) -> None:
    draw, out = random.Random(1), tmp_path / "out"
    command = commands.Command(toy.arguments(data, out, *KEPT), tmp_path / "log")
    for step in sorted(draw.sample(range(1, 10), 3)):
        assert command.wait_until(lambda step=step: newest_step(out) >= step), command.read(".err")
        time.sleep(draw.uniform(0, 0.03))  # a step and its state take about that
        command.kill()
        assert newest_step(out) < 12, "it was killed before it was done"
        if (out / "model.safetensors").is_file():
            cutaway.load(out)
        command = commands.Command(["resume", str(out)], tmp_path / "log")
    done = command.wait()
    assert done.code == 0, done.err
    toy.same_run(out, whole)


def newest_step(out: Path) -> int:
    return max((int(path.name[5:]) for path in (out / "training").glob("step-*")), default=0)


@pytest.mark.parametrize("step", [1, 6])
def test_killed_right_after_a_state(tmp_path: Path, data: toy.Corpus, whole: Path, step: int) -> None:
    out = tmp_path / "out"
    command = commands.Command(toy.arguments(data, out, *KEPT), tmp_path / "log")
    assert command.wait_until((out / "training" / f"step-{step:08}").exists)
    command.kill()
    done = commands.run(["resume", str(out)], tmp_path / "log")
    assert done.code == 0, done.err
    assert "going on after step" in done.err
    toy.same_run(out, whole)


def test_killed_before_the_first_validation(tmp_path: Path, data: toy.Corpus) -> None:
    """Each state has a model beside it."""
    out, rare = tmp_path / "out", [*KEPT, "validation.every=12"]
    assert commands.run(toy.arguments(data, out, *rare), tmp_path / "log", dies_after=2).code == -signal.SIGKILL
    assert cutaway.load(out).translate("pa ku", max_new_tokens=2) is not None
    assert commands.run(["resume", str(out)], tmp_path / "log").code == 0
    assert commands.run(toy.arguments(data, tmp_path / "whole", *rare), tmp_path / "log").code == 0
    toy.same_run(out, tmp_path / "whole")


def test_the_loss_that_is_shown_goes_on(tmp_path: Path, data: toy.Corpus) -> None:
    """Its mean does not begin anew."""

    class Shown(Watch):
        def __init__(self) -> None:
            self.steps: list[tuple[float, float]] = []

        def step(self, step: StepReport) -> None:
            self.steps.append((step.nll, step.recent))

    whole, stopped = Shown(), Shown()
    train(toy.config(data), tmp_path / "whole", watch=whole)
    train(toy.config(data), tmp_path / "out", watch=stopped, stop=lambda: "SIGINT" if len(stopped.steps) == 5 else None)
    resume(tmp_path / "out", watch=stopped)
    assert stopped.steps == whole.steps
    losses = [nll for nll, _ in whole.steps]
    assert whole.steps[-1][1] == pytest.approx(sum(losses) / len(losses))


def test_a_state_of_an_older_version_is_gone_on_from(tmp_path: Path, data: toy.Corpus) -> None:
    """It does not know the losses of its last steps."""
    train(toy.config(data), tmp_path / "out", stop=lambda: "SIGINT")
    state = toy.newest(tmp_path / "out")
    facts = json.loads((state / "facts.json").read_text())
    del facts["recent"]
    (state / "facts.json").write_text(json.dumps(facts))
    manifest = json.loads((state / "manifest.json").read_text())
    manifest["facts.json"] = {"size": (state / "facts.json").stat().st_size, "sha256": digest(state / "facts.json")}
    (state / "manifest.json").write_text(json.dumps(manifest))
    assert resume(tmp_path / "out").progress.step == 12


def test_killed_before_the_first_state(tmp_path: Path, data: toy.Corpus) -> None:
    """Looks were written down already; they are made again, not twice."""
    quiet = ["saving.minutes=60", "validation.every=2", "schedule.steps=8"]
    train(toy.config(data, *quiet), tmp_path / "whole")

    class KilledError(Exception):
        pass

    class Killer(Watch):
        def validated(self, step: int, scores: dict[str, float], is_best: bool, seconds: float) -> None:
            if step == 4:
                raise KilledError

    with pytest.raises(KilledError):
        train(toy.config(data, *quiet), tmp_path / "out", watch=Killer())
    assert [line["step"] for line in toy.metrics(tmp_path / "out")] == [2, 4]
    resume(tmp_path / "out")
    toy.same_run(tmp_path / "out", tmp_path / "whole")


def test_trained_further_and_killed_before_the_first_state(tmp_path: Path, data: toy.Corpus, whole: Path) -> None:
    """It begins with the weights it was to begin with, not with random ones."""
    further = [each for each in toy.SMALL if not each.startswith(("model.", "tokenizer."))]
    command = ["train", "translate", *data.options(), "--from", str(whole), "--set", "saving.minutes=60"]
    for setting in further:
        command += ["--set", setting]
    assert commands.run([*command, "--out", str(tmp_path / "whole")], tmp_path / "log").code == 0
    running = commands.Command([*command, "--out", str(tmp_path / "out")], tmp_path / "log")
    assert running.wait_until((tmp_path / "out" / "run.toml").exists)
    running.kill()
    assert not list((tmp_path / "out" / "training").glob("step-*"))
    assert commands.run(["resume", str(tmp_path / "out")], tmp_path / "log").code == 0
    toy.same_run(tmp_path / "out", tmp_path / "whole")


def test_a_torn_line_of_metrics_is_forgotten(tmp_path: Path, data: toy.Corpus, whole: Path) -> None:
    out = tmp_path / "out"
    command = commands.Command(toy.arguments(data, out, *KEPT), tmp_path / "log")
    assert command.wait_until((out / "training" / "step-00000004").exists)
    command.kill()
    with (out / "metrics.jsonl").open("ab") as file:
        file.write(b"\0\0\0\0\n" + b'{"step": 3, "val')
    assert commands.run(["resume", str(out)], tmp_path / "log").code == 0
    toy.same_run(out, whole)


@pytest.mark.parametrize("damaged", ["weights.safetensors", "facts.json"])
def test_a_damaged_state_costs_a_step(tmp_path: Path, data: toy.Corpus, whole: Path, damaged: str) -> None:
    out = tmp_path / "out"
    command = commands.Command(toy.arguments(data, out, *KEPT), tmp_path / "log")
    assert command.wait_until((out / "training" / "step-00000004").exists)
    command.kill()
    newest = toy.newest(out)
    with toy.read_back(newest / damaged) as content:
        content[len(content) // 2] ^= 1
    done = commands.run(["resume", str(out)], tmp_path / "log")
    assert done.code == 0, done.err
    warning = f"Warning: {newest / damaged} is damaged: it is not what its manifest says; trying the state before"
    assert warning in done.err
    toy.same_run(out, whole)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_stopped_by_a_signal(tmp_path: Path, data: toy.Corpus, whole: Path, number: signal.Signals, code: int) -> None:
    out = tmp_path / "out"
    settings = [each for each in KEPT if each != toy.EVERY_STEP]  # so that the state is the signal's
    command = commands.Command(toy.arguments(data, out, *settings), tmp_path / "log")
    assert command.wait_until((out / "metrics.jsonl").exists)
    command.signal(number)
    done = command.wait()
    assert done.code == code, done.err
    assert "Traceback" not in done.err
    (state,) = (out / "training").glob("step-*")
    step = int(state.name[5:])
    assert "stopping (once more: at once) …" in done.err
    assert done.err.endswith(f"stopped at step {step}; go on with: cutaway resume {out}\n")
    assert 3 <= step < 12
    assert json.loads((state / "facts.json").read_text())["step"] == step
    assert f"{step} steps (SIG" in (out / "README.md").read_text()
    assert commands.run(["resume", str(out)], tmp_path / "log").code == 0
    found, expected = toy.left_behind(out), toy.left_behind(whole)
    for each in (found, expected):
        each["facts"]["config"].pop("saving")
    assert {name: found[name] == expected[name] for name in expected} == dict.fromkeys(expected, True)


def test_two_processes_do_not_train_in_one_folder(tmp_path: Path, data: toy.Corpus) -> None:
    out = tmp_path / "out"
    asked = toy.arguments(data, out, toy.EVERY_STEP, "schedule.steps=100000", "validation.every=100000")
    first = commands.Command(asked, tmp_path / "first")
    try:
        assert first.wait_until(lambda: newest_step(out) >= 1), first.read(".err")
        for again in (["resume", str(out)], [*asked, "--force"]):
            said = commands.one_sentence(commands.run(again, tmp_path / "second"))
            assert said == f"another process is training in {out} now; wait for it, stop it, or choose another --out"
        before = newest_step(out)
        assert first.wait_until(lambda: newest_step(out) > before), "the first one goes on, undisturbed"
    finally:
        first.kill()
    with RunFolder(out).claimed():
        pass  # what was killed claims nothing


def test_other_kernels_are_told(tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their last bits may differ, so the promise of the same bits does not hold."""

    class Warned(Watch):
        said: ClassVar[list[str]] = []

        def warn(self, text: str) -> None:
            self.said.append(text)

    shutil.copytree(whole, tmp_path / "out")
    resume(tmp_path / "out", watch=Warned())
    assert Warned.said == []
    monkeypatch.setattr("cutaway.training.loop.Loop._kernels", lambda _: "others")
    resume(tmp_path / "out", watch=Warned())
    assert [said.split(" (")[0] for said in Warned.said] == [
        "the kernels that computed so far are not the ones of this machine"
    ]


def test_a_second_signal_ends_it_at_once(tmp_path: Path, data: toy.Corpus) -> None:
    out = tmp_path / "out"
    command = commands.Command(toy.arguments(data, out, "schedule.steps=100000"), tmp_path / "log")
    assert command.wait_until((out / "metrics.jsonl").exists)
    command.signal(signal.SIGINT)
    command.signal(signal.SIGINT)
    done = command.wait()
    assert done.code == 130, done.err
    assert "Traceback" not in done.err


def test_going_on_reads_no_pairs(
    tmp_path: Path, data: toy.Corpus, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are encoded, those that are translated to validate are kept with them."""
    out = tmp_path / "out"
    train(toy.config(data, *KEPT), out, stop=lambda: "SIGTERM")
    monkeypatch.setattr(corpus, "read_pairs", lambda *_: pytest.fail("the whole corpus was read again"))
    assert resume(out).reason == "done"
    toy.same_run(out, whole)


def test_a_run_that_is_done_changes_nothing(tmp_path: Path, data: toy.Corpus) -> None:
    out = tmp_path / "out"
    assert commands.run(toy.arguments(data, out, *KEPT), tmp_path / "log").code == 0
    before, made = toy.left_behind(out), toy.newest(out).stat()
    lines = (out / "metrics.jsonl").read_text()
    done = commands.run(["resume", str(out)], tmp_path / "log")
    assert done.code == 0, done.err
    assert "this run was done already" in done.err
    assert "after 12 steps" in done.out
    assert toy.left_behind(out) == before
    assert toy.newest(out).stat() == made, "a state that is there is not written again"
    assert (out / "metrics.jsonl").read_text() == lines


class Looks(Watch):
    """Remembers looks, and stops where it is told to."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def validated(self, step: int, scores: dict[str, float], is_best: bool, seconds: float) -> None:
        self.steps.append(step)


def test_patience_survives_a_resume(tmp_path: Path, data: toy.Corpus) -> None:
    """A rate of almost 0 learns nothing, so the first look stays the best one and the fourth is the last."""
    still = toy.config(
        data, "optimizer.rate=1e-12", "validation.every=1", "validation.patience=3", "validation.metric=bleu",
        "schedule.steps=40",
    )  # fmt: skip
    whole, first, second, third = Looks(), Looks(), Looks(), Looks()
    outcome = train(still, tmp_path / "whole", watch=whole)
    assert (outcome.reason, whole.steps) == ("patience", [1, 2, 3, 4])
    stopped = train(still, tmp_path / "out", watch=first, stop=lambda: "SIGINT" if len(first.steps) == 3 else None)
    assert (stopped.reason, first.steps) == ("SIGINT", [1, 2, 3])
    outcome = resume(tmp_path / "out", watch=second)
    assert (outcome.reason, second.steps) == ("patience", [4])
    toy.same_run(tmp_path / "out", tmp_path / "whole")
    outcome = resume(tmp_path / "out", watch=third)
    assert (outcome.reason, third.steps, outcome.progress.step) == ("done already", [], 4), "its patience is still out"


@pytest.mark.parametrize(("of", "expected"), [("last", [9, 12]), ("none", [])])
def test_the_average_is_of_the_weights_that_were_asked_for(
    tmp_path: Path, data: toy.Corpus, of: str, expected: list[int]
) -> None:
    """`last` is the last two, even where the best is another."""
    settings = [f"averaging.of={of}", "validation.metric=chrf", "averaging.count=2", "optimizer.rate=1e-12"]
    outcome = train(toy.config(data, *settings), tmp_path / "out")
    assert outcome.progress.best == 3, "nothing gets better"
    assert list(outcome.averaged) == expected


def test_the_moving_average_by_hand(tmp_path: Path, data: toy.Corpus) -> None:
    """average ← average + (1 - m) (weights - average), m = min(ema, (1 + step) / (10 + step))."""
    weights: list[dict[str, torch.Tensor]] = []
    for steps in (1, 2, 3):
        out = tmp_path / str(steps)
        train(toy.config(data, "averaging.ema=0.25", "schedule.kind=constant", f"schedule.steps={steps}"), out)
        weights.append(load_file(toy.newest(out) / "weights.safetensors"))
        average = load_file(toy.newest(out) / "average.safetensors")
    model = cutaway.load(tmp_path / "1")
    expected = {name: weight.detach().clone() for name, weight in build(model.network.config, 1).named_parameters()}
    for step, values in enumerate(weights, 1):
        memory = min(0.25, (1 + step) / (10 + step))
        for name in expected:
            expected[name] += (1 - memory) * (values[name] - expected[name])
    for name, value in average.items():
        torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=1e-7)  # three roundings of float32
