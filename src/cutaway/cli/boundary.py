"""Where the command line begins and ends: a user's mistake is one line on stderr and exit code 2, never a traceback."""

import atexit
import errno
import gc
import logging
import os
import sys
import warnings
from contextlib import suppress
from typing import NoReturn

import typer

from cutaway.cli.hints import EXAMPLES, hint, missing_model
from cutaway.cli.terminal import Visible, show
from cutaway.errors import CutawayError
from cutaway.training.tasks import TASKS

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def run(app: typer.Typer) -> None:
    """Runs the command that sys.argv asks for, and exits."""
    try:
        # Importing torch makes 160,000 objects that live to the end; searching them for garbage, while they are made
        # and once more on the way out, took 0.5 s of the 2.1 that `cutaway models` needed.
        gc.set_threshold(50_000)
        warnings.filterwarnings("ignore", "Failed to initialize NumPy")  # torch's, where NumPy is not installed
        atexit.register(gc.freeze)
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="replace")  # formulas have letters that some terminals lack
        if logging.lastResort is not None:  # what prints the warnings of all libraries
            logging.lastResort.setFormatter(Visible())
        code = app(standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()  # here, where its errors can be told
        sys.exit(code)
    except typer.TyperException as error:  # an option or command that does not exist, or a value it can't take
        _fail(f"{_mistake(error)} (see {_command(error)} --help)")
    except CutawayError as error:
        _fail(str(error))
    except (typer.Abort, KeyboardInterrupt):
        sys.exit(130)
    except BrokenPipeError:  # `cutaway notes | head`: the reader has seen enough
        _drop_output()
        sys.exit(0)
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # typer was the first to hear of it, and calls it an error
            _drop_output()
            sys.exit(0)
        raise
    except OSError as error:
        if error.errno not in _FULL or error.filename is not None:
            raise  # of some other file, so for others to explain
        _drop_output()  # `cutaway notes > /dev/full`
        _fail(f"the output could not be written: {error.strerror or error}; make room, or write it elsewhere")


def _command(error: Exception) -> str:
    context = getattr(error, "ctx", None)
    return "cutaway" if context is None else str(context.command_path)


def _mistake(error: typer.TyperException) -> str:
    """Typer's sentence; of an option that another library has, with the name it has here; without a model, which."""
    option, context = getattr(error, "option_name", None), getattr(error, "ctx", None)
    missing = getattr(getattr(error, "param", None), "name", None)
    if missing == "model" and context is not None and context.command.name in EXAMPLES:
        return missing_model(context.command.name, TASKS)
    if option is not None and context is not None and (said := hint(option, context.command)):
        return f"No such option: {option}; {said}"
    return " ".join(error.format_message().split()).rstrip(".")


def _fail(message: str) -> NoReturn:
    if sys.stderr is not None:
        with suppress(OSError):
            show(f"Error: {message}", file=sys.stderr, flush=True)
    sys.exit(2)


def _drop_output() -> None:
    """What is still to be written can't be; Python would try once more on its way out, and complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
