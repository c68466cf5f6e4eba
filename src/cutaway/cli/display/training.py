"""A training run, shown while it learns: a line now and then for a log, a line that moves and curves for a terminal."""

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cutaway.cli.io import SECONDS_BETWEEN_LINES
from cutaway.cli.plot import plot
from cutaway.cli.terminal import show
from cutaway.progress import Pace, duration
from cutaway.training import distributed
from cutaway.training.folder import RunFolder
from cutaway.training.loop import ANOTHER_RANK, Outcome
from cutaway.training.metrics import Scores
from cutaway.training.tasks import task_class
from cutaway.training.toml import read_config
from cutaway.training.watch import StepReport, Watch

BETWEEN_UPDATES = 0.2
"""Seconds, of a line that moves."""
STOPPED = {"SIGINT": 130, "SIGTERM": 143, ANOTHER_RANK: 143}
"""Why a run was stopped -> its exit code."""


def report(outcome: Outcome, out: Path, as_json: bool) -> None:
    """On stdout; a run that was stopped ends with the signal's exit code, as shells expect."""
    if distributed.rank() != 0:
        return
    progress = outcome.progress
    if outcome.reason in STOPPED:
        show(f"stopped at step {progress.step}; go on with: cutaway resume {out}", file=sys.stderr)
        sys.exit(STOPPED[outcome.reason])
    task = task_class(read_config(RunFolder(out).config).task)
    facts = {
        "model": str(out), "reason": outcome.reason, "steps": progress.step,
        f"{task.unit}s": progress.tokens,
        "seconds": round(progress.time, 1), "scores": outcome.scores, "signatures": outcome.signatures,
        "averaged": list(outcome.averaged),
    }  # fmt: skip
    if as_json:
        show(json.dumps(facts))
        return
    if outcome.reason == "done already":
        show("this run was done already", file=sys.stderr)
    scores = ", ".join(f"{name} {value:.2f}" for name, value in outcome.scores.items())
    show(f"{out}: {scores} after {progress.step:,} steps, {duration(progress.time)}")
    show(f'try it: cutaway {task.command} "…" --model {out}')


@contextmanager
def watching(draw: bool) -> Iterator[Watch]:
    """While a run lasts, the watch that prints it: live on a terminal, else as log lines; of the ranks of a cluster,
    only the first prints. `draw`: with curves, on a terminal."""
    if distributed.rank() != 0:
        yield Watch()
    elif sys.stderr is not None and sys.stderr.isatty():
        with Live(draw) as watch:
            yield watch
    else:
        if draw:
            show("no --plot: stderr is not a terminal; curves.png will have the curves", file=sys.stderr)
        yield LogLines()


class LogLines(Watch):
    """For logs: a line for each validation, and for a step now and then."""

    def __init__(self) -> None:
        self._told = time.monotonic()
        self._seen = Rate()

    def say(self, text: str) -> None:
        show(text, file=sys.stderr, flush=True)

    def warn(self, text: str) -> None:
        self.say(f"Warning: {text}")

    def resumed(self, step: int, logged: Sequence[Mapping[str, Any]] = ()) -> None:
        self.say(f"going on after step {step}")

    def step(self, step: StepReport) -> None:
        self._seen.add(step)
        if time.monotonic() - self._told > SECONDS_BETWEEN_LINES or step.number == 1:
            self._told = time.monotonic()
            self.say(self._seen.line(step))

    def busy(self, text: str, pace: Pace | None = None) -> None:
        """What takes long gets a line now and then, too."""
        if text and time.monotonic() - self._told > SECONDS_BETWEEN_LINES:
            self._told = time.monotonic()
            self.say(f"{text} …" if pace is None else f"{text}: {pace}")

    def validated(self, step: int, scores: Scores, is_best: bool, seconds: float) -> None:
        self.say(f"step {step}: {_scores(scores)}{' (best)' if is_best else ''}")


class Live(Watch):
    """For people: a line that moves, a line for each validation above it, and with --plot the curves below."""

    def __init__(self, draw: bool) -> None:
        from rich.live import Live as RichLive

        from cutaway.cli.pager import Screen

        self._console = Screen(stderr=True)
        self._live = RichLive(console=self._console, refresh_per_second=4, redirect_stdout=False, redirect_stderr=False)
        self._draw = draw
        self._seen = Rate()
        self._losses: list[tuple[float, float]] = []
        self._validations: list[tuple[int, Scores]] = []
        self._line, self._unit = "", "token"
        self._shown = 0.0  # when

    def __enter__(self) -> "Live":
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.busy("")
        self._live.stop()

    def say(self, text: str) -> None:
        self._console.print(text)

    def warn(self, text: str) -> None:
        self._console.print(f"Warning: {text}", style="yellow")

    def resumed(self, step: int, logged: Sequence[Mapping[str, Any]] = ()) -> None:
        self._losses = [(line["step"], line["nll"]) for line in logged if "nll" in line]
        self._validations = [(line["step"], line["valid"]) for line in logged if "valid" in line]
        self.say(f"going on after step {step}")

    def step(self, step: StepReport) -> None:
        self._seen.add(step)
        self._unit = step.unit
        self._losses.append((step.number, step.nll))
        if len(self._losses) > 4000:
            del self._losses[::2]
        self._line = self._seen.line(step)
        self._show(self._line)

    def busy(self, text: str, pace: Pace | None = None) -> None:
        if pace is not None and time.monotonic() - self._shown < BETWEEN_UPDATES:
            return
        far = " …" if pace is None else f": {pace}"
        self._show(f"{self._line}; {text}{far}".removeprefix("; ") if text else self._line)

    def _show(self, line: str) -> None:
        from rich.text import Text

        self._shown = time.monotonic()
        self._live.update(Text("\n".join([*self._curves(), line])))

    def validated(self, step: int, scores: Scores, is_best: bool, seconds: float) -> None:
        self._validations.append((step, scores))
        self.say(f"step {step}: {_scores(scores)}{' (best)' if is_best else ''}")

    def _curves(self) -> list[str]:
        if not self._draw or len(self._losses) < 2:
            return []
        width = max(20, min(100, self._console.width - 12))
        drawn = [f"loss of a {self._unit}: training, and validation"]
        drawn += plot([self._losses, [(step, scores["loss"]) for step, scores in self._validations]], width, 8)
        names = [name for name in (self._validations[-1][1] if self._validations else {}) if name != "loss"]
        if len(self._validations) > 1 and names:
            drawn += [f"{names[0]} on the validation examples"]
            drawn += plot([[(step, scores[names[0]]) for step, scores in self._validations]], width, 8)
        return drawn


class Rate:
    """How fast steps are made, over the last of them."""

    def __init__(self) -> None:
        self._steps: list[tuple[float, int]] = []

    def add(self, step: StepReport) -> None:
        self._steps = [*self._steps[-49:], (time.monotonic(), step.tokens)]

    def line(self, step: StepReport) -> str:
        tokens = sum(tokens for _, tokens in self._steps[1:])
        seconds = self._steps[-1][0] - self._steps[0][0]
        text = f"step {step.number:,} of {step.of:,}, epoch {step.epochs:.1f}, loss {step.recent:.3f}"
        if seconds > 0:
            left = (step.of - step.number) * seconds / (len(self._steps) - 1)
            text += f", {tokens / seconds:,.0f} {step.unit}s/s, {duration(left)} left"
        return f"{text}, {memory() / 2**20:,.0f} MB"


def memory() -> int:
    """Bytes of memory that this process has now, or had at most where that is not known."""
    try:
        import resource

        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _scores(scores: Scores) -> str:
    return ", ".join(
        f"{name} {value:.3f}" if name == "loss" else f"{name} {value:.2f}" for name, value in scores.items()
    )
