"""The mistakes a user can make, each told in one sentence.

The message names the thing, the value, the rule and the way out; the command line prints it and exits with 2.
"""

import difflib
from collections.abc import Iterable


class CutawayError(Exception):
    """A mistake the user can mend; its text is the whole explanation."""


class ConfigError(CutawayError, ValueError):
    """A config that describes no model: a value out of range, an unknown key, parts that do not fit."""


class InputError(CutawayError, ValueError):
    """Tokens, masks or vectors that this model can't take."""


class CheckpointError(CutawayError):
    """A folder or file that holds no usable weights, or can't be written."""


def unknown(kind: str, name: str, known: Iterable[str], limit: int = 40) -> str:
    """`no preset 'bert-bsae'; did you mean 'bert-base'? (known: ...)`"""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean '{close[0]}'?" if close else ""
    listed = ", ".join(known[:limit]) + (", …" if len(known) > limit else "")
    return f"no {kind} '{name}'{hint} (known: {listed})"
