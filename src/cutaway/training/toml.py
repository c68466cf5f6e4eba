"""run.toml: read strictly, written with a comment on every key."""

import json
import re
import textwrap
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from cutaway import schema
from cutaway.errors import ConfigError, unknown
from cutaway.files import read_whole
from cutaway.training.config import TrainConfig

_WIDTH = 118
_LARGEST = 1_000_000  # bytes of a run.toml
_DEEP_KEY = re.compile(r"""(?:(?:[\w-]{1,200}|"(?:[^"\\\n]|\\.){0,200}"|'[^'\n]{0,200}')[ \t]*\.[ \t]*){50}""")
"""a.b.c… of so many parts: tomllib takes time by their square, eight seconds for 25 kB."""


def read_config(path: Path) -> TrainConfig:
    """The config in a run.toml; every error names the file and the key."""
    try:
        text = read_whole(path, _LARGEST).decode("utf-8")
        if _DEEP_KEY.search(text):
            raise RecursionError
        data = tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"{path} can't be read: {error.strerror}") from None
    except RecursionError:
        raise ConfigError(f"{path} is nested too deeply for a run") from None
    except ValueError as error:  # no UTF-8, no TOML, or a number of more digits than Python reads
        raise ConfigError(f"{path} is not TOML: {error}") from None
    return config_of(data, str(path))


def config_of(data: Mapping[str, Any], where: str) -> TrainConfig:
    try:
        return schema.from_json(TrainConfig, _listed(TrainConfig, data), "")
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def with_settings(config: TrainConfig, settings: list[str]) -> TrainConfig:
    """The config with some keys changed, as `section.key=value`."""
    data = schema.to_json(config)
    for setting in settings:
        name, equals, text = setting.partition("=")
        *sections, last = name.strip().split(".")
        table: Any = data
        for section in sections:
            if not isinstance(table.get(section), dict):
                raise ConfigError(unknown("section", section, [key for key in table if isinstance(table[key], dict)]))
            table = table[section]
        if not equals:
            raise ConfigError(f"--set {setting}: expected section.key=value, like optimizer.rate=0.001")
        if last not in table:
            raise ConfigError(f"--set {setting}: {unknown('key', last, table)}")
        table[last] = None if text.strip() == "none" and _may_be_open(sections, last) else _value(text.strip())
    return config_of(data, "--set")


def _may_be_open(sections: list[str], key: str) -> bool:
    """Whether `none` means that a key is open; averaging.of=none is a value."""
    cls: Any = TrainConfig
    for section in sections:
        cls = get_type_hints(cls)[section]
    return type(None) in get_args(get_type_hints(cls)[key])


def _value(text: str) -> Any:
    """A TOML value; any other text is a string."""
    try:
        return tomllib.loads(f"x = {text}")["x"]
    except tomllib.TOMLDecodeError:
        return text


def _listed(cls: type, data: Mapping[str, Any]) -> dict[str, Any]:
    """The data with a list in place of a single text, where a list is expected."""
    hints = get_type_hints(cls)
    found = dict(data)
    for name, value in data.items():
        hint = hints.get(name)
        if isinstance(value, str) and get_origin(hint) is tuple:
            found[name] = [value]
        elif isinstance(value, Mapping) and is_dataclass(hint):
            found[name] = _listed(hint, value)  # type: ignore[arg-type]  # a class, since it is a hint
    return found


def write_config(config: TrainConfig, head: str = "") -> str:
    """The config as a commented run.toml; keys that are still open are commented out."""
    lines = [*_comment(head)] if head else []
    lines += _table(config)
    for field in fields(config):
        section = getattr(config, field.name)
        if is_dataclass(section):
            lines += ["", f"[{field.name}]", *_comment((type(section).__doc__ or "").strip()), *_table(section)]
    return "\n".join(lines) + "\n"


def _table(section: Any) -> Iterator[str]:
    for field in fields(section):
        value = getattr(section, field.name)
        if is_dataclass(value):
            continue
        yield ""
        yield from _comment(field.metadata["text"])
        yield (
            f"# {field.name} =   (chosen by the size of the data)"
            if value is None
            else f"{field.name} = {_toml(value)}"
        )


def _comment(text: str) -> list[str]:
    lines = textwrap.TextWrapper(
        _WIDTH, initial_indent="# ", subsequent_indent="# ", break_long_words=False, break_on_hyphens=False
    )  # fmt: skip
    return [line for part in text.split("\n") for line in lines.wrap(part)]


def _toml(value: Any) -> str:
    if isinstance(value, tuple | list):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    return json.dumps(value, ensure_ascii=False)  # strings, numbers and booleans are written alike
