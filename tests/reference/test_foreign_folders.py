"""What a stranger's folder may hold under the names of files: pipes, devices, ways out of it, and odd tensors."""

import json
import os
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import cutaway
from cutaway.checkpoint_info import licence, read_info
from cutaway.checkpoints.llama2c import tokenizer_beside
from cutaway.checkpoints.sentence import read_pooling
from cutaway.cli.info import info
from cutaway.errors import CheckpointError
from cutaway.files import open_file, read_json
from cutaway.model import Model
from tests.support.families import shrunk

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has neither pipes nor devices among files")


def odd(path: Path, kind: str) -> Path:
    """Nobody writes to the pipe, and the device never ends."""
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    return path


def pooled(folder: Path, place: str) -> Path:
    kinds = [{"type": "x.Transformer", "path": ""}, {"type": "x.Pooling", "path": place}]
    (folder / "modules.json").write_text(json.dumps(kinds))
    return folder


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_only_files_are_read(kind: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="config.json can't be read: it is not a regular file"):
        read_json(odd(tmp_path / "config.json", kind))
    (tmp_path / "1_Pooling").mkdir()
    odd(tmp_path / "1_Pooling" / "config.json", kind)
    with pytest.raises(CheckpointError, match="it is not a regular file"):
        read_pooling(pooled(tmp_path, "1_Pooling"))
    odd(tmp_path / "README.md", kind)
    odd(tmp_path / "LICENSE", kind)
    assert licence(tmp_path) is None
    odd(tmp_path / "tokenizer.bin", kind)
    assert tokenizer_beside(tmp_path / "model.bin", 32) is None
    with pytest.raises(OSError, match="not a regular file"):
        open_file(tmp_path)


def test_a_link_to_a_file_is_read(tmp_path: Path) -> None:
    """The cache of the hub is made of links."""
    (tmp_path / "blob").write_text('{"a": 1}')
    (tmp_path / "config.json").symlink_to("blob")
    assert read_json(tmp_path / "config.json") == {"a": 1}


@pytest.mark.parametrize("place", ["..", "../other", "/etc", "1_Pooling/.."])
def test_modules_lie_in_the_folder(place: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "config.json").write_text('{"pooling_mode_cls_token": true}')
    with pytest.raises(CheckpointError, match="modules lie in the model's own folder"):
        read_pooling(pooled(folder, place))


def test_names_that_no_model_can_have() -> None:
    with pytest.raises(CheckpointError, match="is no name of a model: File name too long"):
        cutaway.load("a" * 5000)


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS has no such names")
def test_a_folder_whose_name_is_not_utf_8(tmp_path: Path) -> None:
    """The safetensors library opens none."""
    folder = Model(cutaway.build(shrunk("gpt2"))).save(tmp_path / "\udcff")
    for read in (read_info, cutaway.load):
        with pytest.raises(CheckpointError, match="is not valid UTF-8"):
            read(folder)


@pytest.mark.parametrize("step", ["²", "9" * 700])
def test_tensors_are_sorted_whatever_they_are_called(
    step: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Superscripts are digits to Python, and numbers have none of them."""
    folder = Model(cutaway.build(shrunk("gpt2"))).save(tmp_path / "gpt2", format="huggingface")
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | {f"h.{step}.attn.bias": torch.ones(1)}, folder / "model.safetensors")
    info(str(folder), tensors=True)
    assert step[:20] in capsys.readouterr().out
