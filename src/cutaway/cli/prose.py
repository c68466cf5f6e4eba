"""Paragraphs for the terminal: no wider than one likes to read, and vectors in one piece."""

import re
import textwrap

from rich.console import Console

WIDEST = 100
_HELD = "\u00a0"  # a space that textwrap does not break at


def paragraph(text: str, width: int, *, indent: int = 0, hanging: int = 0) -> str:
    """`text` in lines of at most `width`, all `indent` to the right, the second and later ones `hanging` further."""
    held = re.sub(r"\[[^]]*\]| [×=+] ", lambda match: match[0].replace(" ", _HELD), text)
    lines = textwrap.wrap(
        held, min(width, WIDEST), initial_indent=" " * indent, subsequent_indent=" " * (indent + hanging)
    )  # fmt: skip
    return "\n".join(lines).replace(_HELD, " ")


def say(console: Console, text: str, *, indent: int = 0, hanging: int = 0, style: str = "") -> None:
    """Prints one paragraph; spaces in front of it count as indent."""
    body = text.lstrip()
    indent += len(text) - len(body)
    console.print(paragraph(body, console.width, indent=indent, hanging=hanging), style=style, soft_wrap=True)
