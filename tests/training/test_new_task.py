"""A new task is one new file (reverse_task.py) and one line in the table of tasks: all else asks the task."""

import subprocess
import sys
from pathlib import Path

import pytest

import cutaway
from cutaway.errors import ConfigError
from cutaway.training.config import Data, TrainConfig
from cutaway.training.run import resume, train
from cutaway.training.tasks import TASKS, TEXT, TaskEntry
from cutaway.training.toml import with_settings
from tests.support import toy_runs as toy


@pytest.fixture(autouse=True)
def the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TASKS, "reverse", TaskEntry("tests.training.reverse_task:Reversal", TEXT))


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "text").write_text("".join(f"{line}\n" for line in toy.sentences(1000, longest=3)))
    return tmp_path / "text"


def config(text: Path, *settings: str) -> TrainConfig:
    plain = TrainConfig(task="reverse", data=Data(text=(str(text),)))
    return with_settings(plain, ["machine.device=cpu", "machine.precision=float32", *settings])


def test_it_learns_by_its_defaults(tmp_path: Path, text: Path) -> None:
    out = tmp_path / "out"
    outcome = train(config(text), out)
    assert outcome.scores["words"] > 80  # over five seeds: 94.8, 96.7, 94.3, 89.1, 93.8; a copy: 32.7
    assert set(cutaway.load(out).translate("pa ku").split()) <= set(toy.WORDS)
    card = (out / "README.md").read_text()
    assert "A writer from right to left of " in card
    assert 'pipeline_tag: "text2text-generation"' in card
    assert f"- words {outcome.scores['words']:.2f}\n- baseline (the text, as it is): words " in card
    assert 'cutaway translate "…" --model out' in card


def test_it_goes_on_to_the_same_bits(tmp_path: Path, text: Path) -> None:
    given = config(text, "schedule.steps=12", "validation.every=4", toy.EVERY_STEP)
    train(given, tmp_path / "whole")
    asked: list[int] = []

    def stop() -> str | None:
        asked.append(1)
        return "SIGINT" if len(asked) > 6 else None

    assert train(given, tmp_path / "stopped", stop=stop).reason == "SIGINT"
    assert resume(tmp_path / "stopped").reason == "done"
    toy.same_run(tmp_path / "stopped", tmp_path / "whole")


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("validation.metric=bleu", "validation.metric='bleu' is no metric of reverse; choose loss, words"),
        ("data.source=a.txt", "data.source is not for the task reverse; leave it out"),
        ("regularization.r_drop=0.5", "regularization.r_drop is for the task translate, not for reverse"),
        ("task=revers", "no task 'revers'; did you mean 'reverse'? (known: classify, complete, reverse, translate)"),
    ],
)
def test_its_settings_are_checked(text: Path, setting: str, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        config(text, setting)
    assert said in str(error.value)


def test_a_preset_that_it_cannot_train(tmp_path: Path, text: Path) -> None:
    with pytest.raises(ConfigError, match="has decoder; the task reverse needs encoder and decoder"):
        train(config(text, "model.preset=gpt2-tiny"), tmp_path / "out")


def test_the_command_line_knows_it(tmp_path: Path, text: Path) -> None:
    words = ["train", "reverse", "--text", str(text), "--steps", "2", "--out", str(tmp_path / "out")]
    program = f"""
from cutaway.training.tasks import TASKS, TaskEntry
TASKS["reverse"] = {TASKS["reverse"]!r}
from cutaway.cli.main import main
main()
"""
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f'try it: cutaway translate "…" --model {tmp_path / "out"}'
