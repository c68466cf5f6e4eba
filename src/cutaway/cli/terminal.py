"""What is printed: text of files and models is shown; it never moves the cursor, clears the screen or turns letters."""

import logging
import re
import sys
from typing import Any, TextIO

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def show(*parts: Any, end: str = "\n", file: TextIO | None = None, flush: bool = False) -> None:
    """Prints, as `print` does. Only a file or another program gets results as they are, with whatever is in them."""
    text = " ".join(map(str, parts))
    print(strip_control(text) if file is None else visible(text), end=end, file=file, flush=flush)


def strip_control(text: str) -> str:
    """For stdout."""
    return text if sys.stdout is None or not sys.stdout.isatty() else visible(text)


def visible(text: str) -> str:
    """Control characters as a sign that there were some; tabs and line breaks stay."""
    return _CONTROL.sub("\ufffd", text)


class Visible(logging.Formatter):
    """For messages of a log."""

    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))
