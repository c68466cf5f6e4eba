"""Validation of fields and arguments by their annotations, where a value is given.

Dataclasses do not check their annotations: a typo in a `Literal` would silently build another model.
"""

import math
import types
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from cutaway.errors import ConfigError, unknown


@dataclass(frozen=True)
class NumberRule:
    """A condition on a number, in words and as a test."""

    text: str
    holds: Callable[[float], bool]


Size = Annotated[int, NumberRule("at least 1", lambda number: number >= 1)]
Count = Annotated[int, NumberRule("at least 0", lambda number: number >= 0)]
Positive = Annotated[float, NumberRule("above 0", lambda number: number > 0)]
AboveOne = Annotated[float, NumberRule("above 1", lambda number: number > 1)]
Probability = Annotated[float, NumberRule("at least 0 and below 1", lambda number: 0 <= number < 1)]


def describe(value: object) -> str:
    """`'16' (str)`; on one line, and cut if it is long."""
    text = " ".join(repr(value).split())
    return f"{text if len(text) <= 60 else text[:57] + '…'} ({type(value).__name__})"


def check_fields(config: Any, where: str | None = None) -> None:
    """Checks every field of a dataclass against its annotation: a type, one of the choices, a finite number.

    `where` names it in errors, "" not at all; the class does if it is None.
    """
    where = type(config).__name__ if where is None else where
    for name, hint in _hints(type(config)).items():  # type: ignore[arg-type]  # a class can be hashed
        check(f"{where}.{name}" if where else name, getattr(config, name), hint)


class CheckedFields:
    """A dataclass whose fields are checked when it is made."""

    def __post_init__(self) -> None:
        check_fields(self)


def check(where: str, value: object, hint: Any) -> None:
    """Checks a value against an annotation; `where` names it in the error."""
    options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    if value is None and type(None) in options:
        return
    for option in options:
        wanted, *rules = get_args(option) if get_origin(option) is Annotated else (option,)
        if get_origin(wanted) is Literal:
            if isinstance(value, str) and value in get_args(wanted):
                return
        elif _is(value, wanted):
            _check_number(where, value, rules)
            return
    choices = [choice for option in options if get_origin(option) is Literal for choice in get_args(option)]
    if choices and isinstance(value, str):
        raise ConfigError(f"{where}: {unknown('choice', value, choices)}")
    types_ = [get_args(option)[0] if get_origin(option) is Annotated else option for option in options]
    names = [repr(choice) for choice in choices]
    names += [each.__name__ for each in types_ if get_origin(each) is not Literal and each is not type(None)]
    raise ConfigError(f"{where} is {describe(value)}; expected {' or '.join(names)}")


def check_arguments(part: str, hint: Any, **arguments: object) -> None:
    """Checks some arguments of a part against one annotation."""
    for name, value in arguments.items():
        check(f"{part}: {name}", value, hint)


def _is(value: object, wanted: type) -> bool:
    """isinstance, but an int is also a float, and a bool is neither."""
    if isinstance(value, bool):
        return wanted is bool
    return isinstance(value, float | int if wanted is float else get_origin(wanted) or wanted)  # tuple[str, ...]: tuple


def _check_number(where: str, value: Any, rules: list[NumberRule]) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{where}={value} must be a finite number")
    for rule in rules:
        if not rule.holds(value):
            raise ConfigError(f"{where}={value} must be {rule.text}")


def parse_int(text: str) -> int | None:
    """The number of a text of decimal digits; None for any other text, and for 10 digits or more."""
    return int(text) if text.isdecimal() and len(text) < 10 else None


@cache
def _hints(cls: type) -> dict[str, Any]:
    hints = get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in fields(cls)}
