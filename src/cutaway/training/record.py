"""Logs of a run: metrics.jsonl, and TensorBoard's event files if it is installed."""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from cutaway.progress import Pace
from cutaway.training.folder import RunFolder
from cutaway.training.metrics import Scores
from cutaway.training.watch import StepReport, Watch

_EVERY = 10  # steps between two lines


class Board:
    """An event file of TensorBoard, written synchronously: tensorboardX's own thread dies of a full disk, and its
    caller then waits for ever."""

    def __init__(self, folder: Path) -> None:
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto import event_pb2
        from tensorboardX.summary import scalar

        folder.mkdir(parents=True, exist_ok=True)
        self._event, self._scalar = event_pb2.Event, scalar
        self.events = EventsWriter(str(folder / "events"), f".{os.getpid()}")

    def add(self, name: str, value: float, step: int) -> None:
        self.events.write_event(self._event(wall_time=time.time(), step=step, summary=self._scalar(name, value)))


class Recorder(Watch):
    """Logs the events of a run, and passes them on to `other`."""

    def __init__(self, folder: RunFolder, other: Watch) -> None:
        self.folder, self.other = folder, other
        self._board: Board | None = None
        with self._optional(), suppress(ImportError):
            self._board = Board(folder.training / "tensorboard")

    def step(self, step: StepReport) -> None:
        if step.number % _EVERY == 0:
            rate = round(step.tokens / step.seconds, 1) if step.seconds else 0.0
            line = {
                "step": step.number, "epochs": round(step.epochs, 3), "loss": step.loss, "nll": step.nll,
                "gradient": step.norm, "rate_factor": step.factor, f"{step.unit}s_per_second": rate,
            }  # fmt: skip
            self._write(step.number, line, "train")
        self.other.step(step)

    def busy(self, text: str, pace: Pace | None = None) -> None:
        self.other.busy(text, pace)

    def validated(self, step: int, scores: Scores, is_best: bool, seconds: float) -> None:
        self._write(step, {"step": step, "valid": scores, "best": is_best, "seconds": round(seconds, 2)}, "valid")
        self.other.validated(step, scores, is_best, seconds)

    def _write(self, step: int, line: dict[str, Any], kind: str) -> None:
        self.folder.log(line)
        with self._optional():
            for name, value in line.get("valid", line).items():
                if self._board is not None and name not in ("step", "best"):
                    self._board.add(f"{kind}/{name}", value, step)

    @contextmanager
    def _optional(self) -> Iterator[None]:
        """Turns errors of TensorBoard's files into a warning: the run goes on without them."""
        try:
            yield
        except OSError as error:
            board, self._board = self._board, None
            if board is not None:
                with suppress(OSError):
                    board.events.close()
            self.other.warn(f"TensorBoard's file can't be written: {error.strerror or error}; going on without")

    def saved(self, step: int) -> None:
        with self._optional():
            if self._board is not None:
                self._board.events.flush()
        self.other.saved(step)

    def close(self) -> None:
        with self._optional():
            if self._board is not None:
                self._board.events.close()
        self._board = None

    def resumed(self, step: int, logged: Sequence[Mapping[str, Any]] = ()) -> None:
        self.folder.forget_after(step)
        self.other.resumed(step, logged or self.folder.logged())

    def say(self, text: str) -> None:
        self.other.say(text)

    def warn(self, text: str) -> None:
        self.other.warn(text)
