"""The commands and their options. Nothing here imports torch, so that help is quick."""

import atexit
import gc
import os
import sys
from typing import Annotated

import typer

import cutaway
from cutaway.errors import CutawayError

app = typer.Typer(
    name="cutaway",
    help="The Transformer that you can train, run and look inside.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for other programs.")]


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


@app.command(rich_help_panel="Learn")
def notes(
    number: Annotated[int | None, typer.Argument(help="One example, with its arithmetic written out.")] = None,
    json: Json = False,
) -> None:
    """The worked examples of the lecture notes, recomputed: what is printed, what is true, what went wrong."""
    from cutaway.cli import notes

    notes.run(number, json)


@app.command(rich_help_panel="Learn")
def quiz(
    number: Annotated[int | None, typer.Argument(help="One question only.")] = None,
    answers: Annotated[bool, typer.Option("--answers", help="Do not ask: show all answers and why.")] = False,
    json: Json = False,
) -> None:
    """The seven questions of the notes, with answers explained and shown on a running part."""
    from cutaway.cli import quiz

    quiz.run(number, answers, json)


@app.command(rich_help_panel="Models")
def models(
    names: Annotated[list[str] | None, typer.Argument(help="Presets to show; all by default.")] = None,
    context: Annotated[int, typer.Option(help="Tokens that attention looks at, for the FLOPs.", min=1)] = 512,
    json: Json = False,
) -> None:
    """The models cutaway can build: parameters by part, FLOPs, bytes of weights and of the key/value cache."""
    from cutaway.cli import models

    models.run(names or [], context, json)


def _command(error: Exception) -> str:
    context = getattr(error, "ctx", None)
    return "cutaway" if context is None else str(context.command_path)


def main() -> None:
    """A user's mistake is one line on stderr and exit code 2; never a traceback."""
    # Importing torch makes 160,000 objects that live to the end; searching them for garbage, while they are made
    # and once more on the way out, took 0.5 s of the 2.1 that `cutaway models` needed.
    gc.set_threshold(50_000)
    atexit.register(gc.freeze)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # formulas have letters that some terminals lack
    try:
        sys.exit(app(standalone_mode=False))
    except typer.TyperException as error:  # an option or command that does not exist, or a value it can't take
        message = " ".join(error.format_message().split()).rstrip(".")
        typer.echo(f"Error: {message} (see {_command(error)} --help)", err=True)
        sys.exit(2)
    except CutawayError as error:
        typer.echo(f"Error: {error}", err=True)
        sys.exit(2)
    except (typer.Abort, KeyboardInterrupt):
        sys.exit(130)
    except BrokenPipeError:  # `cutaway notes | head`: the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
