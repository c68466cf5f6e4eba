"""`cutaway chat`: a conversation on the terminal, or of the lines of a pipe."""

import json
import sys
from collections.abc import Iterator

from cutaway.cli.io import lines_of, load_model
from cutaway.cli.terminal import show
from cutaway.cli.writing import WritingOptions, print_pieces
from cutaway.errors import CutawayError, InputError
from cutaway.tasks.chat import Chat

COMMANDS = "/reset begins anew, /system TEXT changes the system prompt, /quit (or Ctrl-D) leaves"


def run(name: str, system: str | None, asked: WritingOptions, as_json: bool) -> None:
    chat = load_model(name, asked.where).chat(system=system, tell=_tell, **asked.options)
    talks = sys.stdin is not None and sys.stdin.isatty()
    if talks:
        _tell(f"{COMMANDS}; Ctrl-C stops an answer")
    for line in _typed() if talks else lines_of(sys.stdin):
        try:
            if line.strip() and not _is_command(chat, line.strip()):
                _turn(chat, line, as_json)
        except StopIteration:
            return
        except KeyboardInterrupt:
            if not talks:
                raise
        except CutawayError as error:  # in a conversation, a mistake is one turn's
            if not talks:
                raise
            _tell(f"Error: {error}")


def _turn(chat: Chat, text: str, as_json: bool) -> None:
    pieces = chat.say(text)
    if as_json:
        answer = "".join(pieces)
        show(
            json.dumps({"user": text, "assistant": answer, "forgotten": chat.forgotten}, ensure_ascii=False), flush=True
        )
        return
    print_pieces(pieces, "the model")


def _is_command(chat: Chat, line: str) -> bool:
    word, _, rest = line.partition(" ")
    if word == "/quit":
        raise StopIteration
    if word == "/reset":
        chat.reset()
    elif word == "/system":
        chat.system = rest.strip() or None
    elif word.startswith("/") and word[1:].isalpha() and not rest:
        raise InputError(f"there is no command {word}; {COMMANDS}")
    else:
        return False
    return True


def _typed() -> Iterator[str]:
    """What a person types, line by line; Ctrl-D ends it."""
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
