"""Tuning of a finished model's search on the validation examples, within a time limit."""

import time

import torch

from cutaway.checkpoints import native
from cutaway.loading import load
from cutaway.progress import Pace, duration
from cutaway.training.folder import RunFolder
from cutaway.training.loop import Outcome
from cutaway.training.task import Task
from cutaway.training.watch import Stop, Watch

SHARE, LEAST, MOST = 0.1, 15.0, 300.0
"""The time limit: a share of the training's seconds, within bounds."""


class _EndedError(Exception):
    """The time limit is reached, or the user has stopped it."""


def tune(folder: RunFolder, task: Task, outcome: Outcome, watch: Watch, stop: Stop, device: torch.device) -> bool:
    """Tunes the usage of the model in the folder; True if its config.json has changed.

    If the time limit or Ctrl-C ends it early, the settings stay as they are.
    """
    usage, steps = native.describe(folder.path).usage, outcome.progress.step
    if not task.tunable(usage, outcome.scores) or folder.tuned_at() == steps:
        return False
    limit = min(MOST, max(LEAST, SHARE * outcome.progress.time))
    end = time.monotonic() + limit

    def show(pace: Pace) -> None:
        watch.busy("choosing the length penalty", pace)
        if stop() is not None or time.monotonic() > end:
            raise _EndedError

    watch.say(f"choosing the length penalty on validation pairs, {duration(limit)} at most (validation.tune)")
    stopped = (
        f"stopped before the length penalty was chosen: it stays {usage.length_penalty:g}. The model is finished; "
        f"`cutaway resume {folder.path}` chooses it"
    )
    model = load(folder.path, device=device)
    try:
        found = task.tuned(model, show)
    except _EndedError:
        if stop() is not None:
            watch.say(stopped)
            return False
        watch.say(f"{duration(limit)} were not enough: the length penalty stays {usage.length_penalty:g}")
        found = usage
    except KeyboardInterrupt:
        watch.say(stopped)
        raise
    finally:
        watch.busy("")
    if found != usage:
        watch.say(
            f"with {found.beams} beams, a length penalty of {found.length_penalty:g} is best: kept in config.json"
        )
        folder.write_usage(model.network, found)
    folder.note_tuned(steps)
    return found != usage
