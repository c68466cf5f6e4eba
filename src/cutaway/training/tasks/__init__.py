"""What can be trained: a file for each task, named after the command that runs its models, and a line for it here."""

from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING

from cutaway.errors import ConfigError, unknown

if TYPE_CHECKING:
    from cutaway.training.task import Task

PAIRS = ("source", "target", "pairs", "columns", "valid_source", "valid_target", "valid_pairs")
TEXT = ("text", "valid_text")
"""Keys of run.toml's [data] that name files of pairs, and of running text."""


@dataclass(frozen=True)
class TaskEntry:
    """Where the class of a task is, and what it learns from: known before torch is loaded."""

    path: str
    files: tuple[str, ...]


TASKS = {
    "translate": TaskEntry("cutaway.training.tasks.translate:Translation", PAIRS),
    "complete": TaskEntry("cutaway.training.tasks.complete:Completion", TEXT),
    "classify": TaskEntry("cutaway.training.tasks.classify:Classification", PAIRS),
}
"""Each task by its name in `cutaway train NAME`."""


def task_class(name: str) -> "type[Task]":
    if name not in TASKS:
        raise ConfigError(unknown("task", name, TASKS))
    found: type[Task] = resolve_name(TASKS[name].path)
    return found
