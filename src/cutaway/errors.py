"""Errors that a user can correct, each explained in one sentence.

The message names the thing, the value, the rule and the way out; the command line prints it and exits with 2.
"""

import difflib
import re
from collections.abc import Iterable, Sequence

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


class CutawayError(Exception):
    """An error that the user can correct, explained in full by its text. The text is one line, whatever it quotes: line
    breaks and escape sequences in names and values are escaped."""

    def __str__(self) -> str:
        text = _CONTROL.sub(lambda found: ascii(found[0])[1:-1], Exception.__str__(self))
        return text if len(text) <= 1500 else f"{text[:1500]} …"


class ConfigError(CutawayError, ValueError):
    """A config that describes no model: a value out of range, an unknown key, parts that do not fit."""


class InputError(CutawayError, ValueError):
    """Input that a model, a task or a command can't take."""


class UnknownNameError(InputError, KeyError):
    """A name that a trace, or another mapping, does not have."""


class CheckpointError(CutawayError):
    """A folder or file that holds no usable weights, or can't be written."""


def unknown(kind: str, name: str, known: Iterable[str], limit: int = 40, *, typed: bool = True) -> str:
    """`no preset 'bert-bsae'; did you mean 'bert-base'? (known: ...)`

    `typed` False: the name comes from a program, not from a keyboard, so no similar one is suggested.
    """
    known, name = sorted(known), str(name)
    name = name if len(name) <= 100 else f"{name[:99]}…"
    nearest = " or ".join(f"'{each}'" for each in _nearest(name, known)) if typed else ""
    hint = f"; did you mean {nearest}?" if nearest else ""
    listed = ", ".join(known[:limit]) + (", …" if len(known) > limit else "")
    return f"no {kind} '{name}'{hint} (known: {listed})"


def _nearest(name: str, known: Sequence[str]) -> list[str]:
    """The same name in another case, up to three that begin with it, or the most similar one; case does not count."""
    wanted = name.lower()
    same = [each for each in known if each.lower() == wanted]
    longer = [each for each in known if wanted and each.lower().startswith(wanted)]
    if same or longer:
        return (same or longer)[:3]
    spelled = {each.lower(): each for each in known}
    close = difflib.get_close_matches(wanted, spelled, n=5)
    return [spelled[each] for each in sorted(close, key=lambda each: -_common_prefix(wanted, each))[:1]]


def _common_prefix(a: str, b: str) -> int:
    """The length of the common prefix of two words."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
