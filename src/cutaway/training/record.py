"""What happens in a run, written down: metrics.jsonl, and TensorBoard's files where that is installed."""

from typing import Any

from cutaway.training.folder import RunFolder
from cutaway.training.task import Scores
from cutaway.training.watch import Step, Watch

_EVERY = 10  # steps between two lines


class Recorder(Watch):
    """Writes down what it hears, and tells `other`."""

    def __init__(self, folder: RunFolder, other: Watch) -> None:
        self.folder, self.other = folder, other
        self._board: Any = None
        try:
            from tensorboardX import SummaryWriter
        except ImportError:
            return
        self._board = SummaryWriter(str(folder.training / "tensorboard"))

    def step(self, step: Step) -> None:
        if step.number % _EVERY == 0:
            rate = round(step.tokens / step.seconds, 1) if step.seconds else 0.0
            line = {
                "step": step.number, "epochs": round(step.epochs, 3), "loss": step.loss, "nll": step.nll,
                "gradient": step.norm, "rate_factor": step.factor, "tokens_per_second": rate,
            }  # fmt: skip
            self._write(step.number, line, "train")
        self.other.step(step)

    def look(self, step: int, scores: Scores, is_best: bool, seconds: float) -> None:
        self._write(step, {"step": step, "valid": scores, "best": is_best, "seconds": round(seconds, 2)}, "valid")
        self.other.look(step, scores, is_best, seconds)

    def _write(self, step: int, line: dict[str, Any], kind: str) -> None:
        self.folder.log(line)
        if self._board is not None:
            for name, value in line.get("valid", line).items():
                if name not in ("step", "best"):
                    self._board.add_scalar(f"{kind}/{name}", value, step)

    def saved(self, step: int) -> None:
        if self._board is not None:
            self._board.flush()
        self.other.saved(step)

    def resumed(self, step: int) -> None:
        self.folder.forget_after(step)
        self.other.resumed(step)

    def say(self, text: str) -> None:
        self.other.say(text)

    def warn(self, text: str) -> None:
        self.other.warn(text)
