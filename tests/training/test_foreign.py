"""Run folders that came from elsewhere: nothing in them leads a run to write, or to delete, in other places."""

import json
import os
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from cutaway.cli.display.scores import trained
from cutaway.errors import CheckpointError, ConfigError
from cutaway.training import state
from cutaway.training.folder import RunFolder
from cutaway.training.run import resume, train
from tests.support import commands
from tests.support import toy_runs as toy


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> toy.Corpus:
    return toy.corpus(tmp_path_factory.mktemp("corpus"), 60)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory, data: toy.Corpus) -> Path:
    out = tmp_path_factory.mktemp("run") / "out"
    train(toy.config(data, "validation.every=1"), out, stop=lambda: "SIGINT")
    return out


@pytest.fixture
def run(tmp_path: Path, stopped: Path) -> Path:
    return Path(shutil.copytree(stopped, tmp_path / "out"))


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """A folder of this user's, elsewhere."""
    folder = tmp_path / "precious"
    (folder / "deeper").mkdir(parents=True)
    for name in ("file", "step-00000099.safetensors", "deeper/file"):
        (folder / name).write_text("mine")
    return folder


def contents(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


LINKS: dict[str, Callable[[Path], Path]] = {
    "training/.claim": lambda precious: precious / "file",
    "training/snapshots": lambda precious: precious,
    "training/tensorboard": lambda precious: precious,
    "training/.latest.aside": lambda precious: precious / "file",
    "training/.tuned.aside": lambda precious: precious / "file",
    "training/snapshots/.writing-00000002": lambda precious: precious / "file",
    "training/.writing-x": lambda precious: precious,
    "training": lambda precious: precious,
    ".model.safetensors.aside": lambda precious: precious / "file",
    ".run.toml.aside": lambda precious: precious / "file",
    ".metrics.jsonl.aside": lambda precious: precious / "file",
    "config.json": lambda precious: precious / "file",
    "metrics.jsonl": lambda precious: precious / "file",
    "README.md": lambda precious: precious / "file",
    "curves.png": lambda precious: precious / "file",
}


@pytest.mark.parametrize("how", ["resume", "train --force"])
@pytest.mark.parametrize("name", LINKS)
def test_links_out_of_a_run_are_refused(run: Path, precious: Path, data: toy.Corpus, name: str, how: str) -> None:
    link, before = run / name, contents(precious)
    if link.is_dir():
        shutil.rmtree(link)
    link.unlink(missing_ok=True)
    link.symlink_to(LINKS[name](precious))
    go_on = partial(resume, run) if how == "resume" else partial(train, toy.config(data), run, force=True)
    with pytest.raises(CheckpointError) as refused:
        go_on()
    assert str(refused.value) == (
        f"{link} is a link, which a run never writes there and would follow to another place; remove it, or put a copy "
        f"of what it leads to there"
    )
    assert contents(precious) == before


def test_the_run_itself_may_be_a_link(run: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(run)
    (run / "my notes").symlink_to(tmp_path)
    assert resume(tmp_path / "link").reason == "done"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no such pipes")
def test_a_pipe_in_a_run_does_not_hold_it_for_ever(run: Path, tmp_path: Path) -> None:
    (run / "training" / ".claim").unlink()
    os.mkfifo(run / "training" / ".claim")
    done = commands.run(["resume", str(run)], tmp_path / "log")
    assert "training/.claim is no file, which a run never writes there" in commands.one_sentence(done)


@pytest.mark.parametrize("name", [".claim", "metrics.jsonl", ".latest.aside", ".model.safetensors.aside"])
def test_a_link_that_comes_after_the_look_is_not_followed(
    run: Path, precious: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Somebody puts it there while the run is prepared; it is noticed when the file is opened."""
    monkeypatch.setattr(RunFolder, "check_links", lambda _: None)
    place = run / name if name in ("metrics.jsonl", ".model.safetensors.aside") else run / "training" / name
    place.unlink(missing_ok=True)
    place.symlink_to(precious / "file")
    try:
        resume(run)
    except CheckpointError as error:
        assert "Too many levels of symbolic links" in str(error)  # noqa: PT017  # most names are simply taken over
    assert contents(precious)["file"] == "mine"


def test_nothing_is_removed_through_a_link(tmp_path: Path, precious: Path) -> None:
    before = contents(precious)
    (tmp_path / "training").mkdir()
    (tmp_path / "training" / "snapshots").symlink_to(precious)
    with pytest.raises(CheckpointError, match="snapshots is a link"):
        state.Snapshots(tmp_path / "training").keep_only({1})
    assert contents(precious) == before


# What its files say


def changed(run: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """The newest state says something else of its run, and its manifest agrees."""
    folder = toy.newest(run)
    facts = json.loads((folder / "facts.json").read_text())
    change(facts)
    (folder / "facts.json").write_text(json.dumps(facts))
    sealed(folder)


def sealed(folder: Path) -> None:
    files = [path for path in sorted(folder.iterdir()) if path.name != "manifest.json"]
    listed = {path.name: {"size": path.stat().st_size, "sha256": state.digest(path)} for path in files}
    (folder / "manifest.json").write_text(json.dumps(listed))


FACTS: list[Callable[[dict[str, Any]], object]] = [
    lambda facts: facts.pop("config"),
    lambda facts: facts.update(config=[]),
    lambda facts: facts["config"].pop("optimizer"),
    lambda facts: facts.update(data=5),
    lambda facts: facts.update(epoch="x"),
    lambda facts: facts.update(place=1.5),
    lambda facts: facts.update(step=-3),
    lambda facts: facts.update(tokens=10**400),
    lambda facts: facts.update(seconds=None),
    lambda facts: facts.update(recent=["x"]),
    lambda facts: facts.update(validations=[1]),
    lambda facts: facts["validations"][0].update(scores={"loss": "x"}),
    lambda facts: facts["validations"][0]["scores"].pop("loss"),
    lambda facts: facts.update(best=77),
]


@pytest.mark.parametrize("number", range(len(FACTS)))
def test_facts_that_can_not_be(run: Path, number: int) -> None:
    changed(run, FACTS[number])
    with pytest.raises((CheckpointError, ConfigError), match="has invalid facts|has changed since"):
        resume(run)


def test_a_state_without_its_step_is_a_damaged_one(run: Path) -> None:
    changed(run, lambda facts: facts.pop("step"))
    with pytest.raises(CheckpointError, match="no state in .* is intact"):
        resume(run)


@pytest.mark.parametrize(
    ("file", "tensors", "said"),
    [
        ("weights", {"x": torch.ones(1)}, "is not one of the model that .* describes; start the run anew"),
        ("weights", None, "is not one of the model that"),
        ("optimizer", None, "is not one of the model that"),
        ("optimizer", {"x/exp_avg": torch.ones(1)}, "which is no weight of this model"),
        ("optimizer", {"shape": torch.ones(3)}, "expected torch.float32 of shape"),
    ],
)
def test_tensors_of_another_model(run: Path, file: str, tensors: dict[str, torch.Tensor] | None, said: str) -> None:
    path = toy.newest(run) / f"{file}.safetensors"
    if tensors is None:
        path.unlink()
    elif "shape" in tensors:
        save_file({name: torch.ones(3) for name in load_file(path)}, path)
    else:
        save_file(tensors, path)
    sealed(path.parent)
    with pytest.raises(CheckpointError, match=said):
        resume(run)


def test_metrics_of_somebody_else_are_forgotten(run: Path) -> None:
    path = run / "metrics.jsonl"
    lines = [
        "garbage", "[]", "5", "[" * 100_000, '{"step": 1e999}', '{"step": 1, "valid": 5}', '{"step": 1, "valid": {}}',
        '{"step": 1, "loss": 1.0}', '{"step": 1, "loss": "x", "nll": "y"}', '{"step": 1, "valid": {"loss": "x"}}',
    ]  # fmt: skip
    own = path.read_text()
    path.write_bytes(own.encode() + "\n".join(lines).encode() + b"\n\xff\xfe\n")
    assert resume(run).reason == "done"
    assert path.read_text().startswith(own)
    assert not [line for line in lines if f"\n{line}\n" in path.read_text()]


def test_a_run_that_is_nested_without_end(run: Path) -> None:
    (run / "run.toml").write_text("a = " + "[" * 100_000)
    with pytest.raises(ConfigError, match="run.toml is nested too deeply for a run"):
        resume(run)


def test_what_else_lies_in_a_run_is_left_there(run: Path) -> None:
    """A folder among the weights, and a name of the newest state that would fill all memory."""
    (run / "training" / "snapshots" / "somebody").mkdir(parents=True)
    os.truncate(run / "training" / "latest", 2**40)
    assert resume(run).reason == "done"
    assert (run / "training" / "snapshots" / "somebody").is_dir()


def test_a_state_that_is_larger_than_its_model_is_not_read(run: Path) -> None:
    """A tensor that nobody asked for would fill the memory before it is found out; on disk it may be a hole."""
    path = toy.newest(run) / "weights.safetensors"
    save_file({**load_file(path), "more": torch.zeros(60_000_000, dtype=torch.uint8)}, path)
    sealed(path.parent)
    with pytest.raises(CheckpointError, match="no state in .* is intact"):
        resume(run)


def test_a_file_that_another_run_takes_away_meanwhile(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was there when the folder was listed, and renamed before it was looked at: a traceback, now and then."""
    listed = os.listdir(run)
    monkeypatch.setattr("cutaway.training.folder.os.listdir", lambda _: [*listed, ".model.safetensors.aside"])
    RunFolder(run).check_links()


@pytest.mark.parametrize("name", ["run.toml", "metrics.jsonl", "training/tuned"])
def test_files_too_large_for_their_kind_are_not_read(run: Path, name: str) -> None:
    with (run / name).open("ab") as file:
        file.truncate(2**40)
    if name == "training/tuned":
        assert RunFolder(run).tuned_at() is None
    else:
        with pytest.raises((CheckpointError, ConfigError), match=f"{name} can't be read: it is larger than "):
            resume(run)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a" + ".a" * 200_000 + " = 1", "nested too deeply"),
        ("[" + "'='." * 200_000 + "a]", "nested too deeply"),
        ("[x" + ' . "\\"."' * 100_000 + "]", "nested too deeply"),
        ("seed = " + "9" * 5_000, "is not TOML"),
    ],
)
def test_a_run_toml_that_takes_long_to_read(run: Path, text: str, said: str) -> None:
    (run / "run.toml").write_text(text)
    began = time.monotonic()
    with pytest.raises(ConfigError, match=said):
        resume(run)
    assert time.monotonic() - began < 5, "tomllib takes minutes"


@pytest.mark.parametrize(
    "facts", [{"seconds": "x"}, {"epochs": "x"}, {"epochs": [1]}, {"epochs": -1}, {"seconds": 1e400}]
)
def test_a_comparison_does_not_believe_how_long_an_epoch_took(run: Path, facts: dict[str, Any]) -> None:
    changed(run, lambda found: found.update(epochs=1.0, seconds=2.0))
    assert trained(str(run)) == {"seconds_an_epoch": 2.0}
    changed(run, lambda found: found.update(facts))
    assert trained(str(run)) == {}


def test_a_run_that_joins_as_many_neighbours_as_there_is_memory_for(run: Path) -> None:
    text = (run / "run.toml").read_text()
    (run / "run.toml").write_text(text.replace("joined = 1", "joined = 2147483647"))
    with pytest.raises(ConfigError, match="data.joined=2147483647 must be from 1 to 100"):
        resume(run)
