"""`cutaway train`: a model learnt from a user's data, shown while it learns."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from cutaway.cli.options import Json, with_options
from cutaway.cli.terminal import show
from cutaway.errors import ConfigError, unknown
from cutaway.training import tasks
from cutaway.training.tasks import TASKS

if TYPE_CHECKING:
    from cutaway.training.config import TrainConfig
    from cutaway.training.watch import Stop

PAIRS, TEXT = (
    f"Data of {' and '.join(name for name, task in TASKS.items() if task.files == files)}"
    for files in (tasks.PAIRS, tasks.TEXT)
)
MODEL, TRAINING = "Model", "Training"
"""Panels of the help."""


def option(panel: str, text: str, *names: str, **settings: Any) -> Any:
    """An option of this panel."""
    return typer.Option(*names, help=text, rich_help_panel=panel, **settings)


Files = list[str] | None
DeviceKey = Annotated[
    str | None,
    option(TRAINING, "machine.device: auto (a GPU if there is one), cpu, cuda, cuda:1 or mps.", "--device"),
]
Plot = Annotated[bool, typer.Option("--plot", help="Draw the curves while it learns.")]


@dataclass(frozen=True)
class TrainOptions:
    """Options that set a key of the run.toml."""

    source: Annotated[Files, option(PAIRS, "Sentences, one a line.", metavar="FILE")] = None
    target: Annotated[Files, option(PAIRS, "Their translations (or labels), line by line.", metavar="FILE")] = None
    pairs: Annotated[
        Files, option(PAIRS, "Instead: TSV, CSV, JSONL, Parquet, a folder, or hf:owner/name.", metavar="FILE")
    ] = None
    columns: Annotated[
        str | None,
        option(PAIRS, "Source's and target's columns in PAIRS: names in a header, or numbers.", metavar="A,B"),
    ] = None
    valid_source: Annotated[Files, option(PAIRS, "Sentences to validate on.", metavar="FILE")] = None
    valid_target: Annotated[Files, option(PAIRS, "Their translations (or labels).", metavar="FILE")] = None
    valid_pairs: Annotated[Files, option(PAIRS, "Instead, as PAIRS.", metavar="FILE")] = None
    text: Annotated[Files, option(TEXT, "Running text.", metavar="FILE")] = None
    valid_text: Annotated[Files, option(TEXT, "Text to validate on.", metavar="FILE")] = None
    preset: Annotated[
        str | None, option(MODEL, "A model of `cutaway models`; the default depends on the data's size.")
    ] = None
    start: Annotated[str | None, option(MODEL, "Go on from a trained model.", "--from", metavar="MODEL")] = None
    vocabulary: Annotated[int | None, option(MODEL, "Tokens of the vocabulary to learn.", min=1)] = None
    steps: Annotated[int | None, option(TRAINING, "Steps in all; the default depends on the data's size.", min=1)] = (
        None
    )
    seed: Annotated[int | None, option(TRAINING, "Another seed makes another model.")] = None
    device: DeviceKey = None
    settings: Annotated[
        list[str] | None,
        option(TRAINING, "Any key of a run.toml: optimizer.rate=0.001", "--set", metavar="KEY=VALUE"),
    ] = None

    def applied_to(self, config: "TrainConfig") -> "TrainConfig":
        """`config` with the keys that were given."""
        from cutaway.training.toml import with_settings

        names = ("source", "target", "pairs", "valid_source", "valid_target", "valid_pairs", "text", "valid_text")
        data: dict[str, Any] = {name: tuple(files) for name in names if (files := getattr(self, name))}
        if self.columns:
            data["columns"] = tuple(self.columns.split(","))
        model = _given(preset=self.preset, start=self.start)
        config = replace(
            config, data=replace(config.data, **data), model=replace(config.model, **model), **_given(seed=self.seed)
        )
        for section, key in (("tokenizer", "vocabulary"), ("schedule", "steps"), ("machine", "device")):
            if (value := getattr(self, key)) is not None:
                config = replace(config, **{section: replace(getattr(config, section), **{key: value})})
        return with_settings(config, self.settings) if self.settings else config


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


class TrainCommand(TyperCommand):
    """The help of `train TASK` leaves out files that other tasks learn from."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]  # typer has two
        task = next((word for word in args if word in TASKS), None)
        for option in self.params:
            if task is not None and getattr(option, "rich_help_panel", None) in (PAIRS, TEXT):
                option.hidden = option.name not in TASKS[task].files  # type: ignore[attr-defined]  # no argument has it
        return super().parse_args(ctx, args)


@with_options(TrainOptions)
def train(
    task: Annotated[
        str, typer.Argument(metavar="TASK|RUN.toml", help=f"{', '.join(TASKS)}, or a file with all settings.")
    ],
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Folder for the model; it is made.")] = None,
    *,
    write_config: Annotated[
        Path | None, typer.Option(metavar="RUN.toml", help="Do not train: write all settings, explained.")
    ] = None,
    plot: Plot = False,
    force: Annotated[bool, typer.Option("--force", help="Start over in a folder that holds a run.")] = False,
    as_json: Json = False,
    **given: Any,
) -> None:
    """Train a model on your data: a translator (two files of sentences), a writer (text), a classifier (texts, labels).

    Ctrl-C stops it, and `cutaway resume` goes on where it was."""
    if task not in TASKS and not task.endswith(".toml"):
        raise ConfigError(f"{unknown('task', task, TASKS)}; or give a .toml file")
    from cutaway.training import run, toml
    from cutaway.training.config import TrainConfig

    config = TrainConfig(task=task) if task in TASKS else toml.read_config(Path(task))
    config = TrainOptions(**given).applied_to(config)
    if write_config is not None:
        if write_config.exists() and not force:
            raise ConfigError(f"{write_config} exists; choose another name, or write over it with --force")
        title = f"A training run of cutaway: cutaway train {write_config} --out my-model"
        try:
            write_config.write_text(toml.write_config(config, title), encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"can't write {write_config}: {error.strerror}") from None
        show(write_config)
        return
    if out is None:
        raise ConfigError("--out is missing: name a folder for the model, as in --out my-model")
    from cutaway.cli.display.training import report, watching

    with stopping() as stop, watching(plot) as watch:
        outcome = run.train(config, out, watch=watch, force=force, stop=stop)
    report(outcome, out, as_json)


@contextmanager
def stopping() -> Iterator["Stop"]:
    """Ctrl-C and SIGTERM end the run after its present step, and the state is saved; a second one ends it at once."""
    heard: list[str] = []

    def hear(number: int, _: FrameType | None) -> None:
        heard.append(signal.Signals(number).name)
        if len(heard) > 1:
            raise KeyboardInterrupt
        with suppress(OSError):  # not show(), which the signal may have interrupted: a buffer is not reentrant
            os.write(2, "stopping (once more: at once) …\n".encode())

    before = {number: signal.signal(number, hear) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: heard[0] if heard else None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
