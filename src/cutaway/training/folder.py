"""The folder of a run: a model that can be used at any moment, and the files to resume the run.

my-model/
  config.json, tokenizer.json, model.safetensors   the best weights so far (the newest, before the first validation)
  run.toml               the config, with every choice made
  metrics.jsonl          a line for each validation and for some steps
  README.md, curves.png  the model's card
  training/              states to resume from (state.py), weights for the average, TensorBoard's files
"""

import json
import math
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from torch import Tensor

from cutaway.checkpoints import native
from cutaway.checkpoints.weights import WEIGHTS, tensor_to_write, write_weights
from cutaway.errors import CheckpointError
from cutaway.files import MODEL_FILES, file_mode, no_link, parse_json, read_whole, sync
from cutaway.model import Model
from cutaway.models.network import Network
from cutaway.models.usage import Usage
from cutaway.text.source_target import TARGET
from cutaway.training import state

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]


CLAIM = ".claim"
CARD, CURVES = "README.md", "curves.png"
_WRITTEN = (*MODEL_FILES, "run.toml", "metrics.jsonl", CARD, CURVES, state.FOLDER, ".*.aside")
"""Patterns of the files that a run writes into its folder."""
_LARGEST_METRICS = 64_000_000  # bytes: the lines of four million steps


class RunFolder:
    def __init__(self, path: Path) -> None:
        self.path = path.expanduser()
        self.training = self.path / state.FOLDER
        self.config = self.path / "run.toml"
        self.metrics = self.path / "metrics.jsonl"
        self._tuned = self.training / "tuned"

    def check_free(self, force: bool) -> None:
        """Checks that no other run and no other files would be overwritten."""
        if not self.path.exists():
            above = next(parent for parent in self.path.absolute().parents if parent.exists())
            if not above.is_dir():
                raise CheckpointError(
                    f"{above} is a file, so {self.path} can't be a folder in it; choose another --out"
                )
            self._check_writable(above)
            return
        if not self.path.is_dir():
            raise CheckpointError(f"{self.path} is a file; --out names a folder to make")
        is_run = self.config.is_file() or self.training.is_dir()  # or half of one, killed as it began
        if not any(self.path.iterdir()) or (force and is_run):
            self._check_writable(self.path)
            return
        self.check_still_free(force)
        if is_run:
            raise CheckpointError(f"{self.path} holds a run that ended before it began; start over with --force")
        raise CheckpointError(f"{self.path} exists and holds something else; choose another --out")

    @staticmethod
    def _check_writable(folder: Path) -> None:
        if not os.access(folder, os.W_OK | os.X_OK):
            raise CheckpointError(f"can't write into {folder}; choose another --out")

    def check_still_free(self, force: bool) -> None:
        """Checks that no run has begun here, perhaps while this one was prepared."""
        if not self.config.is_file() or force:
            return
        newest = state.newest(self.training)
        stands = f"at {newest}" if newest else "at its beginning"
        raise CheckpointError(
            f"{self.path} holds another run, {stands}: resume it (cutaway resume {self.path}), choose another --out, "
            f"or start over with --force"
        )

    @contextmanager
    def claimed(self, anew: bool = False) -> Iterator[None]:
        """Locks the folder: no other process trains in it meanwhile. The lock ends with the process.

        `anew`: the folder is made if there is none, and removed again if no run begins in it.
        """
        self.check_links()
        is_new = anew and not self.path.exists()
        try:
            if anew:
                self.training.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CheckpointError(f"can't write {self.path}: {error.strerror or error}; choose another --out") from None
        with self._locked():
            try:
                yield
            finally:
                if is_new and not self.config.is_file():  # only the owner of the lock may remove it
                    shutil.rmtree(self.path, ignore_errors=True)

    def check_links(self) -> None:
        """Refuses links: in a folder from elsewhere they could lead a run to write, or to delete, in other places."""
        names = [self.path / name for name in (os.listdir(self.path) if self.path.is_dir() else ())]
        found = [path for path in names if any(fnmatch(path.name, pattern) for pattern in _WRITTEN)]
        for place, folders, files in os.walk(self.training):  # it follows no links
            found += [Path(place, name) for name in (*folders, *files)]
        for path in found:
            try:
                mode = path.lstat().st_mode
            except FileNotFoundError:  # of a run that is active here, which the lock detects
                continue
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                kind = "a link" if stat.S_ISLNK(mode) else "no file"
                raise CheckpointError(
                    f"{path} is {kind}, which a run never writes there and would follow to another place; remove it, "
                    f"or put a copy of what it leads to there"
                )

    @contextmanager
    def _locked(self) -> Iterator[None]:
        if fcntl is None:  # Windows: two runs in one folder are not detected
            yield
            return
        try:
            file = open(self.training / CLAIM, "ab", opener=no_link)  # noqa: SIM115  # closed below
        except OSError as error:
            raise CheckpointError(
                f"can't write into {self.training}: {error.strerror or error}; make room, or the folder writable, and "
                f"go on with `cutaway resume`"
            ) from None
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise CheckpointError(
                    f"another process is training in {self.path} now; wait for it, stop it, or choose another --out"
                ) from None
            except OSError:  # a file system without locks
                pass
            yield

    def clear(self) -> None:
        """Removes the run that was here, if any; files that are not a run's stay."""
        for path in self.training.iterdir():
            if path.name == CLAIM:
                continue
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)

    def begin(self, model: Model, run_toml: str) -> None:
        """Writes the files that do not change: the run's config, the network's, the tokenizer."""
        try:
            old = (self.config, *(self.path / name for name in (WEIGHTS, TARGET, CARD, CURVES)), self.metrics)
            for path in old:  # run.toml first: if this is interrupted after it, there is no run
                path.unlink(missing_ok=True)
            self._write_config(model.network, model.usage)
            if model.tokenizer is not None:
                model.tokenizer.save(self.path)
            state.write_whole(self.config, run_toml)
        except (OSError, CheckpointError) as error:
            reason = error.strerror or error if isinstance(error, OSError) else error
            raise CheckpointError(f"can't write {self.path}: {reason}; choose another --out") from None

    def write_weights(self, weights: Mapping[str, Tensor], standing: str | None = None) -> None:
        """Replaces model.safetensors atomically. `standing`: the run's progress, if it has not validated these weights;
        loading them warns of it."""
        aside = self.path / f".{WEIGHTS}.aside"
        try:
            note = None if standing is None else {native.STANDING: standing}
            aside.unlink(missing_ok=True)
            write_weights(aside, {name: tensor_to_write(weight) for name, weight in weights.items()}, note)
            aside.chmod(file_mode(self.path / WEIGHTS))
            sync(aside)
            aside.replace(self.path / WEIGHTS)
            sync(self.path)
        except OSError as error:
            with suppress(OSError):
                aside.unlink()
            raise self._write_error(self.path / WEIGHTS, error) from None

    def write_usage(self, network: Network, usage: Usage) -> None:
        """Writes config.json again with another usage; the weights stay as they are."""
        try:
            self._write_config(network, usage)
        except OSError as error:
            raise self._write_error(self.path / native.CONFIG, error) from None

    def _write_config(self, network: Network, usage: Usage) -> None:
        with tempfile.TemporaryDirectory(dir=self.training) as aside:
            native.write_config(network, Path(aside), usage)
            state.write_whole(self.path / native.CONFIG, (Path(aside) / native.CONFIG).read_text(encoding="utf-8"))

    def tuned_at(self) -> int | None:
        """The step whose model was tuned, if any."""
        with suppress(OSError, ValueError):
            return int(read_whole(self._tuned, 100))
        return None

    def note_tuned(self, step: int) -> None:
        try:
            state.write_whole(self._tuned, f"{step}\n")
        except OSError as error:
            raise self._write_error(self._tuned, error) from None

    def log(self, line: Mapping[str, Any]) -> None:
        """Appends a line to metrics.jsonl."""
        try:
            with open(self.metrics, "a", encoding="utf-8", opener=no_link) as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            raise self._write_error(self.metrics, error) from None

    def logged(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl."""
        return [json.loads(line) for line in self._metrics_text().splitlines()]

    def _metrics_text(self) -> str:
        if not self.metrics.is_file():
            return ""
        try:
            return read_whole(self.metrics, _LARGEST_METRICS).decode("utf-8", errors="replace")
        except OSError as error:
            raise CheckpointError(
                f"{self.metrics} can't be read: {error.strerror or error}; move it away, and the run goes on"
            ) from None

    def forget_after(self, step: int) -> None:
        """Removes the lines of steps that will be repeated."""
        if self.metrics.is_file():
            lines = self._metrics_text().splitlines(keepends=True)
            kept = [line for line in lines if line.endswith("\n") and 0 <= _step_of(line) <= step]
            if len(kept) == len(lines):
                return
            try:
                state.write_whole(self.metrics, "".join(kept))
            except OSError as error:
                raise self._write_error(self.metrics, error) from None

    def _write_error(self, path: Path, error: OSError) -> CheckpointError:
        return CheckpointError(
            f"can't write {path}: {error.strerror or error}; make room, and go on with `cutaway resume {self.path}`"
        )


def _step_of(line: str) -> int:
    """The step of a line of metrics.jsonl; -1 for a line that no run writes, such as one cut off by a power cut."""
    try:
        found = parse_json(line.encode("utf-8"))
        step, valid = found.pop("step"), found.pop("valid", {"loss": 0.0})
    except (ValueError, KeyError, TypeError, AttributeError):
        return -1
    is_whole = "loss" in valid and ("nll" in found) == ("loss" in found) if isinstance(valid, dict) else False
    numbers = [*found.values(), *valid.values()] if is_whole else [None]
    return step if type(step) is int and is_numbers(numbers) else -1


def is_numbers(values: Any) -> bool:
    return isinstance(values, list) and all(
        isinstance(value, int | float) and abs(value) < 2**63 and math.isfinite(value) for value in values
    )
