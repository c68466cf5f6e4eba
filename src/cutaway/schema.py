"""Dataclasses to and from JSON, strictly: unknown keys, missing keys and wrong types are errors that name the place."""

import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from cutaway.checks import describe
from cutaway.errors import ConfigError, unknown

T = TypeVar("T")


def to_json(value: Any) -> Any:
    """A dataclass as plain dicts, lists, numbers and strings. One of several kinds has its name under "kind"."""
    if is_dataclass(value) and not isinstance(value, type):
        kind = getattr(value, "kind", None)
        named = {} if kind is None else {"kind": kind}
        return named | {field.name: to_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    return value


def from_json(cls: type[T], data: Any, where: str = "config") -> T:
    """The dataclass that `data` describes; `where` names it in errors, "" not at all."""
    if not isinstance(data, Mapping):
        raise ConfigError(f"{where} is {_named(data)}; expected an object with the keys of {cls.__name__}")
    hints = get_type_hints(cls)
    known = {field.name: field for field in fields(cls)}  # type: ignore[arg-type]  # T is a dataclass by contract
    is_tagged = "kind" not in known and hasattr(cls, "kind")  # else "kind" is an ordinary key
    given = {key: value for key, value in data.items() if key != "kind" or not is_tagged}
    for key in given:
        if key not in known:
            raise ConfigError(f"{where}{': ' if where else ''}{unknown('key', str(key), known)}")
    missing = [
        name for name, field in known.items()
        if name not in given and field.default is MISSING and field.default_factory is MISSING
    ]  # fmt: skip
    if missing:
        raise ConfigError(f"{where} lacks {', '.join(missing)}")
    return cls(**{key: _value(hints[key], value, _within(where, key)) for key, value in given.items()})


def from_json_of(classes: Sequence[type[T]], data: Any, where: str = "config") -> T:
    """`from_json` for one of several dataclasses, selected by "kind"."""
    if not isinstance(data, Mapping):
        raise ConfigError(f"{where} is {_named(data)}; expected an object")
    chosen: type[T] = _kind(list(classes), data, where)
    return from_json(chosen, data, where)


def _value(hint: Any, value: Any, where: str) -> Any:
    options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    if value is None and type(None) in options:
        return None
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            raise ConfigError(f"{where}: {unknown('choice', str(value), map(str, get_args(hint)))}")
        return value
    dataclasses = [option for option in options if is_dataclass(option)]
    if dataclasses:
        return from_json(_kind(dataclasses, value, where), value, where)
    literals = [option for option in options if get_origin(option) is Literal]
    if literals and (isinstance(value, str) or not any(type(value) is option for option in options)):
        return _value(literals[0], value, where)
    tuples = [option for option in options if get_origin(option) is tuple]
    if get_origin(hint) is tuple or tuples:
        if not isinstance(value, list):
            raise ConfigError(f"{where} is {_named(value)}; expected a list")
        items = get_args(tuples[0] if tuples else hint)
        if Ellipsis in items:
            items = (items[0],) * len(value)
        if len(items) != len(value):
            raise ConfigError(f"{where} is {_named(value)}; expected a list of {len(items)}")
        return tuple(
            _value(item, each, f"{where}[{i}]") for i, (item, each) in enumerate(zip(items, value, strict=True))
        )
    if float in options and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise ConfigError(f"{where} is {describe(value)}; expected a number that a float holds") from None
    if not any(type(value) is option for option in options):
        wanted = " or ".join(option.__name__ for option in options if option is not type(None))
        raise ConfigError(f"{where} is {_named(value)}; expected {wanted}")
    return value


def _kind(options: list[Any], value: Any, where: str) -> Any:
    """The one of several dataclasses that a JSON object's "kind" names."""
    if len(options) == 1:
        return options[0]
    kinds = {option.kind: option for option in options}
    kind = value.get("kind") if isinstance(value, Mapping) else None
    if not isinstance(kind, str) or kind not in kinds:
        raise ConfigError(f"{where}: {unknown('kind', str(kind), kinds)}")
    return kinds[kind]


def _within(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


def _named(value: Any) -> str:
    return f"{value!r} ({type(value).__name__})"
