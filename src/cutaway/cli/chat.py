"""`cutaway chat`: a conversation on the terminal, or of the lines of a pipe."""

import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cutaway.cli.io import load_model
from cutaway.cli.options import JsonLines, ModelOption, SamplingOptions, with_options
from cutaway.cli.output import print_pieces
from cutaway.cli.terminal import show
from cutaway.errors import CutawayError, InputError
from cutaway.text.lines import lines_of

if TYPE_CHECKING:
    from cutaway.tasks.chat import Chat

COMMANDS = "/reset begins anew, /system TEXT changes the system prompt, /quit (or Ctrl-D) leaves"


@with_options(SamplingOptions)
def chat(
    model: ModelOption,
    system: Annotated[str | None, typer.Option(help="System prompt: what the model is told first.")] = None,
    *,
    as_json: JsonLines = False,
    **given: Any,
) -> None:
    """Hold a conversation: on the terminal, or with each line of a pipe as a turn."""
    options = SamplingOptions(**given)
    talk = load_model(model, options).chat(system=system, tell=_tell, **options.keywords)
    interactive = sys.stdin is not None and sys.stdin.isatty()
    if interactive:
        _tell(f"{COMMANDS}; Ctrl-C stops an answer")
    for line in _typed() if interactive else lines_of(sys.stdin):
        try:
            if line.strip() and not _is_command(talk, line.strip()):
                _turn(talk, line, as_json)
        except StopIteration:
            return
        except KeyboardInterrupt:
            if not interactive:
                raise
        except CutawayError as error:  # in a conversation, a mistake is one turn's
            if not interactive:
                raise
            _tell(f"Error: {error}")


def _turn(talk: "Chat", text: str, as_json: bool) -> None:
    pieces = talk.say(text)
    if as_json:
        turn = {"user": text, "assistant": "".join(pieces), "forgotten": talk.forgotten}
        show(json.dumps(turn, ensure_ascii=False), flush=True)
        return
    print_pieces(pieces, "the model")


def _is_command(talk: "Chat", line: str) -> bool:
    word, _, rest = line.partition(" ")
    if word == "/quit":
        raise StopIteration
    if word == "/reset":
        talk.reset()
    elif word == "/system":
        talk.system = rest.strip() or None
    elif word.startswith("/") and word[1:].isalpha() and not rest:
        raise InputError(f"there is no command {word}; {COMMANDS}")
    else:
        return False
    return True


def _typed() -> Iterator[str]:
    """The lines that a person types; Ctrl-D ends them."""
    import readline  # noqa: F401  # gives input() its line editing

    while True:
        try:
            yield input("> ")
        except EOFError:
            show()
            return
        except UnicodeDecodeError:
            raise InputError("that line is not UTF-8; set the terminal to UTF-8") from None


def _tell(notice: str) -> None:
    show(notice, file=sys.stderr, flush=True)
