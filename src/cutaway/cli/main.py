"""The commands, as `cutaway --help` lists them. Each is declared in its own file; none imports torch before it runs."""

import os
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import typer

import cutaway
from cutaway.cli import boundary
from cutaway.cli.answer import answer
from cutaway.cli.chat import chat
from cutaway.cli.classify import classify
from cutaway.cli.compare import compare
from cutaway.cli.complete import complete
from cutaway.cli.convert import convert
from cutaway.cli.embed import embed
from cutaway.cli.evaluate import evaluate
from cutaway.cli.fill import fill
from cutaway.cli.get import get
from cutaway.cli.info import info
from cutaway.cli.machine import machine
from cutaway.cli.models import models
from cutaway.cli.notes import notes
from cutaway.cli.quiz import quiz
from cutaway.cli.recognize import recognize
from cutaway.cli.resume import resume
from cutaway.cli.search import search
from cutaway.cli.see import see
from cutaway.cli.studio import studio
from cutaway.cli.summarize import summarize
from cutaway.cli.train import TrainCommand, train
from cutaway.cli.translate import translate

COMMANDS: dict[str, tuple[Callable[..., None], ...]] = {
    "Learn": (notes, quiz, see, studio, machine),
    "Models": (models, get, info, convert),
    "Tasks": (fill, classify, embed, search, answer, recognize, translate, summarize, complete, chat),
    "Train": (train, resume, evaluate, compare),
}
SETTINGS: dict[Callable[..., None], dict[str, Any]] = {
    notes: {"context_settings": {"ignore_unknown_options": True}},  # -1 is a number, see options.refuse_option
    quiz: {"context_settings": {"ignore_unknown_options": True}},
    train: {"cls": TrainCommand},
}
"""What typer is told of a command besides its panel."""

app = typer.Typer(
    name="cutaway",
    help="The Transformer that you can train, run and look inside.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for panel, commands in COMMANDS.items():
    for command in commands:
        app.command(rich_help_panel=panel, **SETTINGS.get(command, {}))(command)
main = partial(boundary.run, app)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"cutaway {cutaway.__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _options(
    context: typer.Context,
    version: Annotated[  # noqa: ARG001  # its callback does the work
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
    elif any(name.startswith("CUTAWAY_") for name in os.environ):
        from cutaway.machine.environment import unknown_variables

        if (slip := unknown_variables()) is not None:
            typer.echo(f"Warning: {slip}", err=True)
