"""Saving never destroys what is not its own, and leaves what others may read."""

import contextlib
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import cutaway
from cutaway import checkpoints, files
from cutaway.errors import CheckpointError
from cutaway.model import Model
from cutaway.models.build import on_meta
from tests.support.families import shrunk
from tests.support.small_models import tokenizer


def small() -> cutaway.Transformer:
    return cutaway.build(shrunk("gpt2"))


@pytest.mark.parametrize("files", [{"thesis.txt": "years of work"}, {"config.json": '{"my": "webapp"}'}], ids=str)
def test_what_is_no_saved_model_is_left_alone(files: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    for name, text in files.items():
        (tmp_path / "mine" / name).write_text(text)
    with pytest.raises(CheckpointError, match="holds something other than a saved model"):
        checkpoints.save(small(), tmp_path / "mine")
    assert {path.name: path.read_text() for path in (tmp_path / "mine").iterdir()} == files
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine"]
    file = tmp_path / "mine" / next(iter(files))
    with pytest.raises(CheckpointError, match=r"file exists|exists and holds"):
        checkpoints.save(small(), file)


def test_files_beside_a_saved_model_stay(tmp_path: Path) -> None:
    folder = checkpoints.save(small(), tmp_path / "model")
    (folder / "README.md").write_text("what I trained")
    (folder / "plots").mkdir()
    (folder / "plots" / "loss.png").write_bytes(b"picture")
    (folder / "tokenizer.json").write_text("{}")  # part of the old model: the new one has none
    checkpoints.save(small(), folder)
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "config.json", "model.safetensors", "plots"]
    assert (folder / "plots" / "loss.png").read_bytes() == b"picture"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_link_to_a_model_stays_a_link(tmp_path: Path) -> None:
    folder = checkpoints.save(small(), tmp_path / "model")
    (tmp_path / "link").symlink_to(folder)
    checkpoints.save(small(), tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "model"]


def test_the_folder_one_is_in_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(checkpoints.save(small(), tmp_path / "model"))
    with pytest.raises(CheckpointError, match="the folder you are in"):
        checkpoints.save(small(), ".")


def test_a_left_over_folder_does_not_stop_the_next_save(tmp_path: Path) -> None:
    folder = checkpoints.save(small(), tmp_path / "model")
    (tmp_path / ".model.old").mkdir()
    (tmp_path / ".model.old" / "x").touch()
    checkpoints.save(small(), folder)


def test_others_may_read_what_the_umask_lets_them(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        folder = checkpoints.save(small(), tmp_path / "model")
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.iterdir())}
    assert modes == {"model": 0o755, "config.json": 0o644, "model.safetensors": 0o644}


@pytest.mark.parametrize("private", ["folder", "weights", "what it replaces"])
@pytest.mark.parametrize("format", ["cutaway", "huggingface"])
def test_what_is_made_of_a_private_model_is_private(tmp_path: Path, private: str, format: str) -> None:  # noqa: A002
    folder, out = checkpoints.save(small(), tmp_path / "model"), tmp_path / "out"
    match private:
        case "folder":
            folder.chmod(0o700)
        case "weights":
            (folder / "model.safetensors").chmod(0o600)
        case _:
            checkpoints.save(small(), out).chmod(0o700)
    before = os.umask(0o022)
    try:
        cutaway.load(folder).save(out, format=format)  # type: ignore[arg-type]
    finally:
        os.umask(before)
    assert [path.name for path in (out, *out.iterdir()) if path.stat().st_mode & 0o077] == []


def test_a_private_tokenizer_stays_private(tmp_path: Path) -> None:
    saved = tokenizer()
    before = os.umask(0o022)
    try:
        saved.save(tmp_path)
        (tmp_path / "tokenizer.json").chmod(0o600)
        saved.save(tmp_path)
        (tmp_path / "tokenizer_config.json").unlink()
        os.umask(0o077)
        saved.save(tmp_path)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "tokenizer.json").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "tokenizer_config.json").stat().st_mode) == 0o600


def test_a_first_save_is_on_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a power cut, a name whose files are empty would be worse than none."""
    out, synced = tmp_path / "model", []
    real = files.sync

    def sync(path: Path) -> None:
        synced.append((path.name, out.exists()))
        real(path)

    monkeypatch.setattr(files, "sync", sync)
    checkpoints.save(small(), out)
    assert {("config.json", False), ("model.safetensors", False), (tmp_path.name, True)} < set(synced)


@pytest.mark.parametrize("by", ["exchange", "two renames"])
@pytest.mark.parametrize("step", range(6))
def test_ctrl_c_at_any_step_leaves_a_model_and_the_files_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str, step: int
) -> None:
    out = checkpoints.save(small(), tmp_path / "model")
    (out / "thesis.txt").write_text("years of work")
    steps = iter(range(100))

    def interrupted(real: Callable[..., Any], is_after: bool) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            now = next(steps) == step
            if now and not is_after:
                raise KeyboardInterrupt
            result = real(*given)
            if now:
                raise KeyboardInterrupt
            return result

        return call

    if by == "two renames":
        monkeypatch.setattr(files, "_exchange", lambda *_: False)
        monkeypatch.setattr(Path, "rename", interrupted(Path.rename, is_after=step % 2 == 0))
    else:
        monkeypatch.setattr(files, "_exchange", interrupted(files._exchange, is_after=step % 2 == 0))
        monkeypatch.setattr(files, "sync", interrupted(files.sync, is_after=True))
    with contextlib.suppress(KeyboardInterrupt):
        checkpoints.save(small(), out)
    monkeypatch.undo()
    checkpoints.load(out)
    (kept,) = tmp_path.rglob("thesis.txt")  # beside it in a folder of its own, if Ctrl-C came as it was carried over
    assert kept.read_text() == "years of work"
    if by == "exchange" or step < 2:
        assert kept == out / "thesis.txt"
        assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("name", ["../../precious.json", "/PLACE/precious.json", "precious.json", "model.safetensors"])
def test_files_of_other_names_are_not_taken_from_a_config(tmp_path: Path, name: str) -> None:
    """A config.json of our own keeps those of Hugging Face, by name, and saving as theirs writes them."""
    precious = tmp_path / "precious.json"
    precious.write_text("mine")
    theirs = Model(small()).save(tmp_path / "a" / "theirs", format="huggingface")
    folder = cutaway.load(theirs).save(tmp_path / "a" / "ours")
    config = json.loads((folder / "config.json").read_text())
    config["huggingface"][name.replace("/PLACE", str(tmp_path))] = {"overwritten": True}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="huggingface does not hold the files of a model of Hugging Face"):
        cutaway.load(folder).save(tmp_path / "a" / "out", format="huggingface")
    assert precious.read_text() == "mine"
    assert not (tmp_path / "a" / "out").exists()


def test_links_in_a_folder_that_is_replaced_lead_nowhere(tmp_path: Path) -> None:
    out = checkpoints.save(small(), tmp_path / "model")
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("mine")
    for name in ("config.json", "tokenizer.json", "1_Pooling", "README.md"):
        (out / name).unlink(missing_ok=True)
        (out / name).symlink_to(precious / "file" if "." in name else precious)
    (precious / "file").write_text(json.dumps(small().config.to_json()))
    before = (precious / "file").read_text()
    checkpoints.save(small(), out)
    assert (precious / "file").read_text() == before
    assert not (out / "config.json").is_symlink()


@pytest.mark.parametrize("name", ["x" * 300, "a\0b"])
def test_names_that_no_disk_takes(name: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="can't write"):
        checkpoints.save(small(), tmp_path / name)


def test_a_compiled_network_is_saved_as_itself(tmp_path: Path) -> None:
    network = small()
    checkpoints.save(torch.compile(network), tmp_path / "model")  # type: ignore[arg-type]
    again = checkpoints.load(tmp_path / "model")
    assert torch.equal(next(again.parameters()), next(network.parameters()))


@pytest.mark.parametrize("thing", [torch.nn.Linear(2, 3), {"weights": 1}, on_meta(shrunk("gpt2"))], ids=type)
def test_what_is_no_network_is_not_saved(thing: object, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="can't be saved|nothing to save"):
        checkpoints.save(thing, tmp_path / "model")  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("dtypes", [(torch.float32, torch.bfloat16), (torch.bfloat16, torch.float16)])
def test_mixed_dtypes_become_one(dtypes: tuple[torch.dtype, ...], tmp_path: Path) -> None:
    network = small()
    for weight, dtype in zip(network.parameters(), dtypes * 100, strict=False):
        weight.data = weight.data.to(dtype)
    again = checkpoints.load(checkpoints.save(network, tmp_path / "model"))
    assert {weight.dtype for weight in again.parameters()} == {torch.float32}
    again(torch.tensor([[1, 2, 3]]))
