"""Saving never destroys what is not its own, and leaves what others may read."""

import os
import stat
from pathlib import Path

import pytest
import torch

import cutaway
from cutaway import checkpoints
from cutaway.errors import CheckpointError
from cutaway.models.build import outline
from tests.families import shrunk


def small() -> cutaway.Transformer:
    return cutaway.build(shrunk("gpt2"))


def test_a_folder_with_a_config_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text('{"my": "webapp"}')
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(CheckpointError, match="holds something other than a saved model"):
        checkpoints.save(small(), tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine"]


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


@pytest.mark.parametrize("name", ["x" * 300, "a\0b"])
def test_names_that_no_disk_takes(name: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="can't write"):
        checkpoints.save(small(), tmp_path / name)


def test_a_compiled_network_is_saved_as_itself(tmp_path: Path) -> None:
    network = small()
    checkpoints.save(torch.compile(network), tmp_path / "model")  # type: ignore[arg-type]
    again = checkpoints.load(tmp_path / "model")
    assert torch.equal(next(again.parameters()), next(network.parameters()))


@pytest.mark.parametrize("thing", [torch.nn.Linear(2, 3), {"weights": 1}, outline(shrunk("gpt2"))], ids=type)
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
