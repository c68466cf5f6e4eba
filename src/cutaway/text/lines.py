"""Text by lines, from files and pipes of any content."""

from collections.abc import Iterator
from typing import IO, TextIO, cast

from cutaway.errors import InputError

LONGEST = 16_000_000  # bytes of one line


def lines_of(stream: TextIO | IO[bytes] | None, name: str = "stdin") -> Iterator[str]:
    """The lines of a file, without their ends, read on demand.

    An empty line is an empty text. Bytes that are not UTF-8, a NUL byte, or a line of more than 16 MB is an InputError
    that names the line.
    """
    if stream is None:
        raise InputError(f"{name} is closed; give a text as argument")
    source = cast(IO[bytes], getattr(stream, "buffer", stream))  # a text stream has bytes below
    number = 0
    while line := source.readline(LONGEST + 1):
        number += 1
        yield text_of(line, number, name)


class Utf16Error(InputError):
    """A file of UTF-16: not one bad line, but the wrong encoding."""


def text_of(line: bytes, number: int, name: str) -> str:
    """One line without its end; `number` counts from 1."""
    if len(line) > LONGEST:
        raise InputError(f"line {number} of {name} is longer than {LONGEST:,} bytes; break it into lines")
    if number == 1 and line.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise Utf16Error(f"{name} is UTF-16, expected UTF-8; convert it with iconv -f utf-16 -t utf-8")
    if b"\0" in line:
        raise InputError(f"line {number} of {name} has a NUL byte: it is not text")
    try:
        text = line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"line {number} of {name} is not UTF-8 (byte {error.start + 1} of the line); convert it, for example "
            f"with iconv -f latin1 -t utf-8"
        ) from None
    return text.removesuffix("\n").removesuffix("\r")
