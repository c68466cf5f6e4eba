"""Tiny models of Hugging Face on disk, made once."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers as hf
from safetensors.torch import load_file, save_file
from torch import Tensor

from bench.parity import make
from tests.support import hf_models

hf.logging.set_verbosity_error()
hf.logging.disable_progress_bar()


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a case of bench/parity.py, as transformers saves it."""
    folders: dict[str, Path] = {}

    def folder(name: str) -> Path:
        if name not in folders:
            case = hf_models.case(name)
            folders[name] = tmp_path_factory.mktemp("saved")
            make(case).save_pretrained(folders[name])
        return folders[name]

    return folder


@pytest.fixture
def changed(saved: Callable[[str], Path], tmp_path: Path) -> Callable[..., Path]:
    """A copy of such a folder with other keys in config.json (None: without the key) and other tensors."""

    def change(
        name: str,
        keys: dict[str, Any] | None = None,
        tensors: Callable[[dict[str, Tensor]], dict[str, Tensor]] | None = None,
    ) -> Path:
        folder = tmp_path / f"changed{len(list(tmp_path.iterdir()))}"
        shutil.copytree(saved(name), folder)
        config = json.loads((folder / "config.json").read_text()) | (keys or {})
        config = {key: value for key, value in config.items() if value is not None}
        (folder / "config.json").write_text(json.dumps(config))
        if tensors is not None:
            found = tensors(load_file(folder / "model.safetensors"))
            save_file({key: tensor.clone() for key, tensor in found.items()}, folder / "model.safetensors")
        return folder

    return change
