"""A state on disk: whole or not there, checked when it is read, never a pickle, whatever the disk does."""

import contextlib
import errno
import json
import os
import shutil
import subprocess
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import cutaway
from cutaway.errors import CheckpointError
from cutaway.training import state
from cutaway.training.record import Board
from cutaway.training.run import resume, train
from cutaway.training.watch import Watch
from tests.support import commands
from tests.support import toy_runs as toy

FILES = ("weights.safetensors", "optimizer.safetensors", "facts.json", "manifest.json")


def tensors(step: int) -> dict[str, dict[str, torch.Tensor]]:
    """Other ones for each step."""
    generator = torch.Generator().manual_seed(step)
    return {
        "weights": {"a.weight": torch.randn(3, 4, generator=generator), "b": torch.randn(2, generator=generator)},
        "optimizer": {"b/step": torch.tensor(float(step)), "b/exp_avg": torch.zeros(2, dtype=torch.bfloat16)},
    }


def save(folder: Path, *steps: int, keep: int = 2) -> None:
    for step in steps:
        state.save(folder, step, {"step": step, "data": {"train": "é"}}, tensors(step), keep)


def load(folder: Path) -> tuple[int | None, list[str]]:
    """The step of the state that was found whole, and the warnings."""
    warnings: list[str] = []
    found = state.load(folder, warnings.append)
    if found is not None:
        for file, values in tensors(found.step).items():
            assert found.tensors[file].keys() == values.keys()
            assert all(torch.equal(found.tensors[file][name], values[name]) for name in values)
    return None if found is None else found.step, warnings


def test_round_trip(tmp_path: Path) -> None:
    save(tmp_path, 7)
    found = state.load(tmp_path, pytest.fail)
    assert found is not None
    assert (found.step, found.facts) == (7, {"step": 7, "data": {"train": "é"}})
    for file, values in tensors(7).items():
        for name, value in values.items():
            assert torch.equal(found.tensors[file][name], value)
            assert found.tensors[file][name].dtype == value.dtype
            assert found.tensors[file][name].shape == value.shape


def test_never_a_state(tmp_path: Path) -> None:
    assert load(tmp_path / "nothing") == (None, [])


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_the_newest_are_kept(tmp_path: Path, keep: int) -> None:
    save(tmp_path, 1, 2, 3, 4, keep=keep)
    assert sorted(path.name for path in tmp_path.glob("step-*")) == [f"step-{i:08}" for i in range(5 - keep, 5)]
    assert load(tmp_path) == (4, [])


def test_the_same_step_again(tmp_path: Path) -> None:
    save(tmp_path, 1, 2)
    save(tmp_path, 2)
    assert load(tmp_path) == (2, [])


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("where", [0.0, 0.3, 0.5, 0.9, 1.0])
def test_a_flipped_bit_anywhere(tmp_path: Path, name: str, where: float) -> None:
    save(tmp_path, 1, 2)
    path = tmp_path / "step-00000002" / name
    with toy.read_back(path) as data:
        data[round(where * (len(data) - 2))] ^= (
            4  # but for the line feed at the end of the manifest, which says nothing
        )
    step, warnings = load(tmp_path)
    assert step == 1
    assert len(warnings) == 1
    assert str(tmp_path / "step-00000002") in warnings[0]
    assert warnings[0].endswith("; trying the state before")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["cut", "empty", "missing", "folder"])
def test_a_damaged_file(tmp_path: Path, name: str, damage: str) -> None:
    save(tmp_path, 1, 2)
    path = tmp_path / "step-00000002" / name
    data = path.read_bytes()
    path.unlink()
    if damage == "folder":
        path.mkdir()
    elif damage != "missing":
        path.write_bytes(data[: len(data) // 2] if damage == "cut" else b"")
    step, warnings = load(tmp_path)
    assert step == 1
    assert len(warnings) == 1
    found = state.facts(tmp_path)
    assert found is not None
    assert found[1]["step"] == (1 if name in ("facts.json", "manifest.json") else 2), "only its facts are looked at"


def test_a_manifest_that_lists_nothing(tmp_path: Path) -> None:
    save(tmp_path, 1, 2)
    (tmp_path / "step-00000002" / "manifest.json").write_text("{}")
    assert load(tmp_path)[0] == 1


def test_all_are_damaged(tmp_path: Path) -> None:
    save(tmp_path, 1, 2)
    for step in (1, 2):
        (tmp_path / f"step-{step:08}" / "weights.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError) as error:
        load(tmp_path)
    assert str(error.value) == f"no state in {tmp_path} is intact (step-00000002, step-00000001); start the run anew"


def test_latest_is_behind(tmp_path: Path) -> None:
    """Killed after a state had its name, and before `latest` had it: that state is made again."""
    save(tmp_path, 1, 2)
    (tmp_path / "latest").write_text("step-00000001\n")
    assert load(tmp_path) == (1, [])


@pytest.mark.parametrize("content", ["step-00000009\n", "", "../../etc\n", "\x00\xff"])
def test_latest_names_nothing(tmp_path: Path, content: str) -> None:
    save(tmp_path, 1, 2)
    (tmp_path / "latest").write_text(content)
    step, warnings = load(tmp_path)
    assert step == 2
    assert len(warnings) == bool(content.strip())


def test_latest_is_missing(tmp_path: Path) -> None:
    save(tmp_path, 1, 2)
    (tmp_path / "latest").unlink()
    assert load(tmp_path) == (2, [])


def test_the_states_are_gone(tmp_path: Path) -> None:
    save(tmp_path, 1)
    shutil.rmtree(tmp_path / "step-00000001")
    with pytest.raises(CheckpointError, match=r"is intact \(step-00000001\); start the run anew"):
        load(tmp_path)


def test_what_a_kill_left_is_passed_over_and_cleared_away(tmp_path: Path) -> None:
    save(tmp_path, 1)
    left = tmp_path / ".writing-abc"
    shutil.copytree(tmp_path / "step-00000001", left)
    assert load(tmp_path) == (1, [])
    save(tmp_path, 2)
    assert not left.exists()


@pytest.mark.parametrize("keep", [1, 2])
def test_a_state_made_again_is_kept_though_damaged_ones_are_newer(tmp_path: Path, keep: int) -> None:
    save(tmp_path, 1, 5, 6, 7, keep=4)
    for step in (5, 6, 7):
        (tmp_path / f"step-{step:08}" / "facts.json").write_bytes(b"")
    assert load(tmp_path)[0] == 1
    save(tmp_path, 2, keep=keep)
    assert load(tmp_path) == (2, [])
    assert [path.name for path in tmp_path.glob("step-*") if int(path.name[5:]) > 2] == []


def test_snapshots(tmp_path: Path) -> None:
    snapshots = state.Snapshots(tmp_path)
    for step in (3, 6, 9):
        snapshots.write(step, tensors(step)["weights"])
    mean = snapshots.mean([9, 3])
    for name, value in mean.items():
        expected = (tensors(3)["weights"][name].double() + tensors(9)["weights"][name].double()) / 2
        assert torch.equal(value, expected.float())
    (snapshots.folder / ".writing-00000012").write_bytes(b"half")
    snapshots.keep_only({6})
    assert [path.name for path in snapshots.folder.iterdir()] == ["step-00000006.safetensors"]
    snapshots.path(6).write_bytes(b"")
    with pytest.raises(CheckpointError, match="step-00000006"):
        snapshots.mean([6])


def test_a_small_file_is_the_old_one_or_the_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "latest"
    state.write_whole(path, "old")

    def cut(*_: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "fsync", cut)
    with pytest.raises(OSError, match="No space left"):
        state.write_whole(path, "new")
    assert path.read_text() == "old"


# --------------------------------------------------------------------------------------------- a whole run's folder


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> toy.Corpus:
    return toy.corpus(tmp_path_factory.mktemp("corpus"))


def test_nothing_in_a_runs_folder_is_a_pickle(tmp_path: Path, data: toy.Corpus) -> None:
    done = commands.run(toy.arguments(data, tmp_path / "out", toy.EVERY_STEP, "averaging.ema=0.9"), tmp_path / "log")
    assert done.code == 0, done.err
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert len(files) > 15
    for path in files:
        start = path.read_bytes()[:2]
        assert not zipfile.is_zipfile(path), path
        assert start[:1] != b"\x80", path  # how a pickle begins since protocol 2
        kinds = (".safetensors", ".json", ".jsonl", ".toml", ".md", ".png", ".txt")
        assert path.suffix in kinds or path.name in ("latest", ".claim") or "tfevents" in path.name, path
    for path in (tmp_path / "out").rglob("*.safetensors"):
        size = int.from_bytes(path.read_bytes()[:8], "little")
        assert json.loads(path.read_bytes()[8 : 8 + size])["__metadata__"] == {"format": "pt"}


Room = Callable[[], object]
"""Makes the disk larger."""


@contextlib.contextmanager
def small_disk(folder: Path, kilobytes: int) -> Iterator[tuple[Room, int | None]]:
    """A folder with so much room, and how to give it more. Where nothing may be mounted: a limit of a file's size."""
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "toy", folder], capture_output=True)
    if mounted.returncode:
        yield lambda: None, 128 * kilobytes  # no state fits: its files have 50 and 100 kB
        return
    try:
        yield lambda: subprocess.run(["mount", "-o", "remount,size=99m", folder], check=True), None
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


ROOMY = [toy.EVERY_STEP, "averaging.count=4"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, data: toy.Corpus) -> Path:
    """The run that had room."""
    folder = tmp_path_factory.mktemp("whole")
    assert commands.run(toy.arguments(data, folder / "out", *ROOMY), folder / "log").code == 0
    return folder / "out"


@pytest.mark.parametrize("kilobytes", [16, 120, 240, 420, 560])
def test_a_full_disk(tmp_path: Path, data: toy.Corpus, whole: Path, kilobytes: int) -> None:
    """However soon it is full, the run ends with a sentence, its model can be used, and once there is room it goes on
    to where it would have come."""
    disk = tmp_path / "disk"
    with small_disk(disk, kilobytes) as (room, limit):
        out = disk / "out"
        done = commands.run(toy.arguments(data, out, *ROOMY), tmp_path / "log", file_limit=limit)
        sentence = commands.one_sentence(done)
        assert "No space left on device" in sentence or "File too large" in sentence
        assert "choose another --out" in sentence or "ake room" in sentence, sentence
        if (out / "model.safetensors").is_file():
            cutaway.load(out)
        assert not [*out.rglob(".writing-*"), *out.rglob("*.aside")], "what is half written takes up no room"
        if kilobytes == 16:
            assert not out.exists(), "nothing had begun"
            return
        commands.one_sentence(commands.run(["resume", str(out)], tmp_path / "log", file_limit=limit))
        room()
        again = commands.run(["resume", str(out)], tmp_path / "log")
        assert again.code == 0, again.err
        cutaway.load(out)
        toy.same_run(out, whole)


@pytest.fixture
def stopped(tmp_path: Path, data: toy.Corpus) -> Iterator[Path]:
    """A run that could go on, on a disk of its own."""
    with small_disk(tmp_path / "disk", 9999):
        out = tmp_path / "disk" / "out"
        assert commands.run(toy.arguments(data, out, toy.EVERY_STEP, "schedule.steps=6"), tmp_path / "log").code == 0
        toml = (out / "run.toml").read_text()
        (out / "run.toml").write_text(toml.replace("\nsteps = 6\n", "\nsteps = 9\n"))
        yield out


def test_a_read_only_disk(tmp_path: Path, stopped: Path) -> None:
    """Root may write wherever a mode forbids it, so the disk says no, before anything is learnt in vain; where none can
    be mounted, files are limited."""
    mounted = subprocess.run(["mount", "-o", "remount,ro", stopped.parent], capture_output=True).returncode == 0
    before = {path: path.read_bytes() for path in stopped.rglob("*") if path.is_file()}
    done = commands.run(["resume", str(stopped), "--force"], tmp_path / "log", file_limit=None if mounted else 20_000)
    sentence = commands.one_sentence(done)
    rest = "or the folder writable, and go on with `cutaway resume`"
    if mounted:
        reason = "Read-only file system; make room"
        assert sentence == f"can't write into {stopped / 'training'}: {reason}, {rest}"
    else:
        assert sentence.startswith(f"can't save the state of step 7 in {stopped / 'training'}: "), sentence
        assert sentence.endswith(f"; the last good state is step-00000006. Make room, {rest}")
    after = {path: path.read_bytes() for path in stopped.rglob("*") if path.is_file()}
    assert {path: after.get(path) for path in before} == before
    cutaway.load(stopped)


def test_weights_that_can_not_be_kept_and_weights_that_are_gone(tmp_path: Path, stopped: Path) -> None:
    snapshots = stopped / "training" / "snapshots"
    shutil.rmtree(snapshots)
    snapshots.write_text("")
    sentence = commands.one_sentence(commands.run(["resume", str(stopped), "--force"], tmp_path / "log"))
    assert sentence.startswith(f"can't keep the weights of step 9 in {snapshots}: "), sentence
    cutaway.load(stopped)
    snapshots.unlink()
    done = commands.run(["resume", str(stopped), "--force"], tmp_path / "log")
    assert done.code == 0, done.err
    assert "Warning: the weights of step " in done.err
    assert "are missing or damaged: the average is without" in done.err
    cutaway.load(stopped)


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-100], lambda _: b"", lambda data: data.replace(b"norm", b"mron")]
)
def test_weights_for_the_average_that_are_damaged(
    tmp_path: Path, data: toy.Corpus, damage: Callable[[bytes], bytes]
) -> None:
    """The states are whole, so the run goes on; the average is without them, as without those that are gone."""
    out, said = tmp_path / "out", []

    class Stopped(Watch):
        def warn(self, text: str) -> None:
            said.append(text)

        def validated(self, step: int, *_: object) -> None:
            looks.append(step)

    looks: list[int] = []
    config = toy.config(data, "averaging.of=last", "averaging.count=3")
    train(config, out, watch=Stopped(), stop=lambda: "SIGINT" if looks[-1:] == [9] else None)
    kept = out / "training" / "snapshots" / "step-00000009.safetensors"
    kept.write_bytes(damage(kept.read_bytes()))
    outcome = resume(out, watch=Stopped())
    assert (outcome.reason, outcome.progress.step) == ("done", 12)
    assert said == ["the weights of step 9 are missing or damaged: the average is without"]
    assert outcome.averaged in ((6, 12), ()), "or the best single one is better"
    cutaway.load(out)


def test_an_average_of_more_than_was_kept(tmp_path: Path, data: toy.Corpus) -> None:
    """Asked for when the run was nearly done: the mean of those that are there."""
    out = tmp_path / "out"
    train(toy.config(data, "averaging.of=last", "averaging.count=1", "schedule.steps=9"), out)
    toml = (out / "run.toml").read_text().replace("\nsteps = 9\n", "\nsteps = 12\n")
    (out / "run.toml").write_text(toml.replace("\ncount = 1\n", "\ncount = 3\n"))
    said: list[str] = []

    class Warned(Watch):
        def warn(self, text: str) -> None:
            said.append(text)

    outcome = resume(out, watch=Warned(), force=True)
    assert outcome.progress.step == 12
    assert said == ["the weights of step 6 are missing or damaged: the average is without"]
    assert outcome.averaged in ((9, 12), ()), "or the best single one is better"


def test_a_folder_that_can_not_be_made(tmp_path: Path, data: toy.Corpus) -> None:
    out = Path("/proc/out")
    sentence = commands.one_sentence(commands.run(toy.arguments(data, out), tmp_path / "log"))
    assert sentence.startswith(f"can't write {out}: "), sentence
    assert sentence.endswith("; choose another --out")


def test_tensorboard_is_no_reason_to_stop(tmp_path: Path, data: toy.Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    class Warned(Watch):
        def warn(self, text: str) -> None:
            said.append(text)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Board, "add", full)
    assert train(toy.config(data), tmp_path / "out", watch=Warned()).reason == "done"
    assert said == ["TensorBoard's file can't be written: No space left on device; going on without"]
