"""Paragraphs for the terminal: no wider than one likes to read, and vectors in one piece."""

import re
import textwrap
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from cutaway.cli.terminal import visible

WIDEST = 100
_HELD = "\u00a0"  # a space that textwrap does not break at


class Screen(Console):
    """A console that leaves a reader's early end (`| head`) to main(), which calls it no error, and that shows what
    files and models say without doing it."""

    def __init__(self, stderr: bool = False) -> None:
        super().__init__(highlight=False, markup=False, stderr=stderr)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError

    def print_whole(self, table: RenderableType) -> None:
        """Prints a table of which nothing is cut; a row that is too long for it the terminal wraps."""
        width = self.width
        self.width = max(width, self.measure(table, options=self.options.update(max_width=10_000)).maximum)
        self.print(table, crop=False)
        self.width = width

    def can_show(self, text: str) -> bool:
        """Whether the terminal has these letters."""
        try:
            text.encode(self.encoding)
        except (UnicodeEncodeError, LookupError):
            return False
        return True


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
