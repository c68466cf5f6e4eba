"""Configs of models that nobody has: told in a sentence, before memory or time goes into them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import cutaway
from cutaway.checkpoint_info import read_info
from cutaway.checkpoints import huggingface
from cutaway.errors import CheckpointError, CutawayError
from cutaway.model import Model
from tests.support.families import shrunk

ABSURD = (10**9, 10**12, 2**63, 10**30, -1, 1.5, "x", None, [], [1] * 1000, {}, True, "9" * 5000, 1e308)


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    return Model(cutaway.build(shrunk("gpt2"))).save(tmp_path_factory.mktemp("models") / "gpt2", format="huggingface")


def changed(folder: Path, **keys: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))


@pytest.fixture
def folder(gpt2: Path, tmp_path: Path) -> Path:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((gpt2 / name).read_bytes())
    return tmp_path


@pytest.mark.parametrize("key", ["n_embd", "n_layer", "n_head", "n_inner", "vocab_size", "n_positions"])
def test_sizes(folder: Path, key: str) -> None:
    """A billion by a billion numbers: torch takes each tensor of an outline, and not three of them side by side."""
    for value in ABSURD:
        changed(folder, **{key: value})
        for read in (read_info, cutaway.load):
            try:
                read(folder)
            except CutawayError as error:
                assert len(str(error)) < 2000  # noqa: PT017  # some values are ignored on purpose, or usual


def test_more_blocks_than_any_model_has(folder: Path) -> None:
    """Each takes milliseconds to outline, and a header only a line."""
    save_file({f"h.{i}.ln_1.weight": torch.ones(1) for i in range(1500)}, folder / "model.safetensors")
    changed(folder, n_layer=1200)
    with pytest.raises(CheckpointError, match=r"1,200 blocks; cutaway reads models of up to 1,000"):
        cutaway.load(folder)


def test_weights_of_no_family_are_known_by_their_names(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a model_type every family and head is tried: without building 33 networks, which took 5 s and more."""
    (folder / "config.json").write_text("{}")
    save_file({f"blocks.{i}.weight": torch.ones(1) for i in range(100)}, folder / "model.safetensors")
    monkeypatch.setattr(huggingface, "on_meta_safely", lambda *_: pytest.fail("a network was built"))
    with pytest.raises(CheckpointError, match="has no model_type, and the weights fit none of"):
        cutaway.load(folder)
