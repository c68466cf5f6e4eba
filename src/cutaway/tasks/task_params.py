"""What a checkpoint says of its tasks: T5's config.json has a prefix, lengths and beams for each it was taught."""

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cutaway.checkpoints.generation_settings import read_settings
from cutaway.checkpoints.keys import Keys
from cutaway.checkpoints.usage import CONFIG
from cutaway.generation import Generation, changed

if TYPE_CHECKING:
    from cutaway.model import Model

_LANGUAGES = re.compile(r"translation_(\w+?)_to_(\w+)")
_NAMES = re.compile(r"translate (\w+) to (\w+)")


@dataclass(frozen=True)
class TaskParams:
    """One task: how its makers want it written, and the words that ask for it."""

    generation: Generation
    prefix: str = ""


@dataclass(frozen=True)
class Direction:
    """One direction of translation, each language by its code and, where the prefix has one, its name."""

    source: tuple[str, ...]
    target: tuple[str, ...]
    taught: TaskParams

    def __str__(self) -> str:
        return f"{self.source[0]} to {self.target[0]}"


def tasks_of(model: "Model") -> dict[str, TaskParams]:
    """task_specific_params of config.json, by name; empty for most models."""
    if model.origin is None:
        return {}
    keys = Keys(model.origin.files[CONFIG], f"{model.name}'s {CONFIG}").part("task_specific_params")
    return {name: _taught(keys.part(name), model.usage.generation) for name in keys.data}


def _taught(keys: Keys, usual: Generation) -> TaskParams:
    """Their lengths count the token that decoding starts with; ours count what is written."""
    prefix = keys.get("prefix", "")
    if not isinstance(prefix, str):
        raise keys.wrong("prefix", prefix, "a text")
    changes = read_settings(keys).changes
    if (longest := keys.optional_count("max_length")) is not None:
        changes.setdefault("max_new_tokens", max(1, longest - 1))
    if "min_length" in keys.data:
        changes.setdefault("min_new_tokens", max(0, int(keys.number("min_length", 0, high=2**31)) - 1))
    return TaskParams(changed(usual, changes), prefix)


def directions(tasks: dict[str, TaskParams]) -> list[Direction]:
    """The translations among the tasks that begin with a prefix."""
    found = []
    for name, taught in tasks.items():
        if (codes := _LANGUAGES.fullmatch(name)) and taught.prefix:
            names = _NAMES.match(taught.prefix)
            source, target = ((codes[i], *((names[i],) if names else ())) for i in (1, 2))
            found.append(Direction(source, target, taught))
    return found
