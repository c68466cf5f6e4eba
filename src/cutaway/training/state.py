"""The state of a run on disk: complete or absent, verified when it is read, never a pickle.

    training/
      latest                 the name of the newest state; moved last
      step-00001200/         weights.safetensors, …, facts.json, and manifest.json with the size and SHA-256 of each
      step-00000900/         the one before, if the newest is damaged

A state is written under another name, synced to disk, and renamed: a power cut at any moment leaves the one before.
"""

import hashlib
import json
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cutaway.checkpoints.weights import Weights, tensor_to_write, write_weights
from cutaway.errors import CheckpointError
from cutaway.files import create_new, file_mode, read_json, sync

FOLDER = "training"
_LATEST, _FACTS, _MANIFEST = "latest", "facts.json", "manifest.json"
_WRITING = ".writing-"
Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class State:
    """A saved state. `facts` is plain JSON; `tensors` maps a file's name to its tensors."""

    step: int
    facts: dict[str, Any]
    tensors: dict[str, dict[str, Tensor]]


def save(folder: Path, step: int, facts: Mapping[str, Any], tensors: Mapping[str, Tensors], keep: int = 2) -> None:
    """Writes a state into `folder`, and removes all but the newest `keep`."""
    name = f"step-{step:08}"
    aside: Path | None = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(f"{_WRITING}*"):  # of a run that was killed while it wrote
            shutil.rmtree(left, ignore_errors=True)
        aside = Path(tempfile.mkdtemp(prefix=_WRITING, dir=folder))
        for file, values in tensors.items():
            write_weights(aside / f"{file}.safetensors", {key: tensor_to_write(value) for key, value in values.items()})
        (aside / _FACTS).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
        listed = {path.name: {"size": path.stat().st_size, "sha256": digest(path)} for path in sorted(aside.iterdir())}
        (aside / _MANIFEST).write_text(json.dumps(listed, indent=1) + "\n", encoding="utf-8")
        for path in (*aside.iterdir(), aside):
            sync(path)
        if (folder / name).exists():  # a run that was resumed from an earlier state has come here again
            (folder / name).rename(folder / f"{_WRITING}{name}")
        aside.rename(folder / name)
        sync(folder)
        shutil.rmtree(folder / f"{_WRITING}{name}", ignore_errors=True)
        write_whole(folder / _LATEST, name + "\n")
        kept = [each for each in _states_newest_first(folder) if each <= name][:keep]
        # newer ones too: damaged, or the run was resumed from before them
        for old in set(_states_newest_first(folder)) - set(kept):
            shutil.rmtree(folder / old, ignore_errors=True)
    except OSError as error:
        if aside is not None:
            shutil.rmtree(aside, ignore_errors=True)
        newest = next(iter(_states_newest_first(folder)), None)
        rest = f"the last good state is {newest}" if newest else "there is no earlier state"
        raise CheckpointError(
            f"can't save the state of step {step} in {folder}: {error.strerror or error}; {rest}. "
            f"Make room, or the folder writable, and go on with `cutaway resume`"
        ) from None


def load(folder: Path, warn: Callable[[str], None], most: float = math.inf) -> State | None:
    """The newest complete state; `warn` is called for each damaged one. None if there has never been one.

    `most`: bytes of a state; a larger one is not read.
    """
    names, latest = _in_turn(folder)
    damaged = []
    if latest and latest not in names:
        damaged.append(latest)
        warn(f"{folder} lacks {latest}, its newest state; trying the state before")
    for name in names:
        try:
            return _read(folder / name, most)
        except CheckpointError as error:
            damaged.append(name)
            warn(f"{error}; trying the state before")
    if damaged:
        raise CheckpointError(f"no state in {folder} is intact ({', '.join(damaged)}); start the run anew")
    return None


def _read(folder: Path, most: float) -> State:
    manifest = read_json(folder / _MANIFEST)
    if (size := sum(path.stat().st_size for path in folder.iterdir())) > most:
        raise CheckpointError(f"{folder} has {size:,} bytes, more than the state of such a model")
    for name, wanted in {_FACTS: None, **manifest}.items():
        _check(folder, name, wanted)
    tensors: dict[str, dict[str, Tensor]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        weights = Weights([path])
        tensors[path.name.removesuffix(".safetensors")] = {name: weights.tensor(name).clone() for name in weights}
    facts = read_json(folder / _FACTS)
    if type(step := facts.get("step")) is not int:
        raise CheckpointError(f"{folder / _FACTS} does not say after which step it was written")
    return State(step, facts, tensors)


def facts(folder: Path) -> tuple[str, dict[str, Any]] | None:
    """The name of the newest state with readable facts, and these."""
    for name in _in_turn(folder)[0]:
        try:
            _check(folder / name, _FACTS, read_json(folder / name / _MANIFEST).get(_FACTS))
            return name, read_json(folder / name / _FACTS)
        except CheckpointError:
            continue  # `load` will warn of it
    return None


def newest(folder: Path) -> str | None:
    """The name of the newest state, damaged or not."""
    return next(iter(_states_newest_first(folder)), None)


def _check(folder: Path, name: str, wanted: Any) -> None:
    """Verifies a file. `wanted`: its entry in the manifest."""
    path = folder / name
    if "/" in name or not path.is_file():
        raise CheckpointError(f"{folder} lacks {name}")
    size = path.stat().st_size
    if not isinstance(wanted, dict) or wanted.get("size") != size or wanted != {"size": size, "sha256": digest(path)}:
        raise CheckpointError(f"{path} is damaged: it is not what its manifest says")


def _in_turn(folder: Path) -> tuple[list[str], str]:
    """The states in the order in which they are tried: the one that `latest` names, then the newest first."""
    names, latest = _states_newest_first(folder), ""
    if (folder / _LATEST).is_file():
        with (folder / _LATEST).open("rb") as file:
            latest = file.read(100).decode("utf-8", errors="replace").strip()
        names.sort(key=lambda name: name != latest)
    return names, latest


def _states_newest_first(folder: Path) -> list[str]:
    """The names of the saved states, damaged or not: step-00001200, step-00000900."""
    return sorted((path.name for path in folder.glob("step-*") if path.is_dir()), reverse=True)


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_whole(path: Path, text: str) -> None:
    """Replaces a small file atomically."""
    aside = path.with_name(f".{path.name}.aside")
    with create_new(aside) as file:
        file.write(text.encode("utf-8"))
        file.flush()
        os.fsync(file.fileno())
    aside.chmod(file_mode(path))
    aside.replace(path)
    sync(path.parent)


class Snapshots:
    """The weights of some steps, for averages: each in a file of its own, written once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "snapshots"

    def path(self, step: int) -> Path:
        return self.folder / f"step-{step:08}.safetensors"

    def write(self, step: int, weights: Tensors) -> None:
        aside = self.folder / f"{_WRITING}{step:08}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            aside.unlink(missing_ok=True)
            write_weights(aside, {name: tensor_to_write(weight) for name, weight in weights.items()})
            sync(aside)
            aside.replace(self.path(step))
            sync(self.folder)
        except OSError as error:
            with suppress(OSError):
                aside.unlink()
            raise CheckpointError(
                f"can't keep the weights of step {step} in {self.folder}: {error.strerror or error}; make room, and go "
                f"on with `cutaway resume`"
            ) from None

    def has(self, step: int, like: Tensors) -> bool:
        """Whether the weights of this step are there, undamaged, and of this model."""
        try:
            found = Weights([self.path(step)])
        except CheckpointError:
            return False
        return {name: entry.shape for name, entry in found.items()} == {name: tuple(like[name].shape) for name in like}

    def mean(self, steps: list[int]) -> dict[str, Tensor]:
        """The average of the weights at these steps, added in float64 in the order of the steps."""
        total: dict[str, Tensor] = {}
        dtypes: dict[str, torch.dtype] = {}
        for step in sorted(steps):
            for name, weight in self._weights(step):
                dtypes[name] = weight.dtype
                total[name] = weight.double() if name not in total else total[name].add_(weight)
        # one after another, so that the sums in float64 and their means never exist all at once
        return {name: (total.pop(name) / len(steps)).to(dtypes[name]) for name in list(total)}

    def _weights(self, step: int) -> Iterator[tuple[str, Tensor]]:
        weights = Weights([self.path(step)])
        return ((name, weights.tensor(name)) for name in weights)

    def keep_only(self, steps: set[int]) -> None:
        wanted = {self.path(step).name for step in steps}
        if self.folder.is_symlink():
            raise CheckpointError(f"{self.folder} is a link, and what it leads to is not of this run; remove it")
        for path in self.folder.glob("*"):
            if path.name not in wanted and not path.is_dir():
                path.unlink(missing_ok=True)
