"""tokenizer_config.json and its older companions, read strictly: wrong types are errors that name the file.

No code that these files name is run (`auto_map`), and no name in them is used as a path.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken

from cutaway.errors import CheckpointError
from cutaway.files import parse_json, read_whole
from cutaway.text.tokenizer import ROLES

LIMIT = 64 * 2**20
"""Bytes of a tokenizer file at most (the largest known have 35 MB); a larger one is refused unread."""

ADDED = 200_000
"""Tokens that are added to a vocabulary at most."""
LONGEST = 1000
"""Characters of a token, of a prefix, and of a word that WordPiece reads, at most."""

_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


@dataclass(frozen=True)
class TokenizerSettings:
    values: Mapping[str, Any] = field(default_factory=dict)
    """The contents of tokenizer_config.json."""
    named: Mapping[str, AddedToken | None] = field(default_factory=dict)
    """Role -> token; None where the file has null."""
    added: Mapping[int, AddedToken] = field(default_factory=dict)
    """Id -> token, beside or beyond the vocabulary's own."""
    extra: tuple[AddedToken, ...] = ()
    """More special tokens, without a role."""
    chat_template: str | None = None

    def flag(self, key: str, default: bool) -> bool:
        value = self.values.get(key)
        if value is not None and not isinstance(value, bool):
            raise CheckpointError(f"tokenizer_config.json: {key} is {value!r}; expected true or false")
        return default if value is None else value

    def count(self, key: str, default: int) -> int:
        value = self.values.get(key)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= 10**6):
            raise CheckpointError(f"tokenizer_config.json: {key} is {value!r}; expected a number from 0 to 1000000")
        return default if value is None else value

    @property
    def max_length(self) -> int | None:
        """None where the file has no limit, or a very large number for none."""
        value = self.values.get("model_max_length")
        if value is None or (isinstance(value, int | float) and value > 10**9):
            return None
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise CheckpointError(f"tokenizer_config.json: model_max_length is {value!r}; expected a positive number")
        return value


def read_bytes(folder: Path, name: str) -> bytes | None:
    """A file of the folder, None if there is none. It may be a link: the hub's cache is made of links."""
    path = folder / name
    try:
        if not path.is_file():
            return None
        if (size := path.stat().st_size) > LIMIT:
            raise CheckpointError(f"{path} has {size} bytes; no tokenizer needs more than {LIMIT}")
        return read_whole(path, LIMIT)
    except OSError as error:
        raise CheckpointError(f"can't read {path}: {error.strerror or error}") from None


def read_text(folder: Path, name: str) -> str | None:
    content = read_bytes(folder, name)
    try:
        return None if content is None else content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{folder / name} is no UTF-8 text: byte {error.start} fits no character") from None


def read_object(folder: Path, name: str) -> dict[str, Any] | None:
    text = read_text(folder, name)
    if text is None:
        return None
    try:
        value = parse_json(text.encode())
    except ValueError as error:
        raise CheckpointError(f"{folder / name} is no valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{folder / name} holds a {type(value).__name__}; expected an object")
    return value


def read_vocabulary(folder: Path, name: str) -> dict[str, int] | None:
    """Token -> id."""
    found = read_object(folder, name)
    if found is None:
        return None
    for token, number in found.items():
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < 2**31:
            raise CheckpointError(f"{folder / name}: '{token}' has the id {number!r}; expected a number from 0")
    if len(set(found.values())) != len(found):
        raise CheckpointError(f"{folder / name} gives one id to several tokens")
    return found


def read_settings(folder: Path) -> TokenizerSettings:
    where = folder / "tokenizer_config.json"
    values = read_object(folder, "tokenizer_config.json") or {}
    added: dict[int, AddedToken] = {}
    tokens: dict[str, Any] = dict(values)
    if "added_tokens_decoder" in values:  # newer files have all tokens there; the older companions are then not read
        listed = values["added_tokens_decoder"]
        if not isinstance(listed, dict):
            raise CheckpointError(f"{where}: added_tokens_decoder is {listed!r}; expected an object")
        for number, value in listed.items():
            if not (number.isascii() and number.isdigit() and len(number) < 10):
                raise CheckpointError(f"{where}: added_tokens_decoder has the key '{number}'; expected a token id")
            added[int(number)] = _token(value, f"{where}: token {number}")
    else:
        tokens |= read_object(folder, "special_tokens_map.json") or {}
    named = {
        role: None if tokens[key] is None else _token(tokens[key], f"{where}: {key}", True)
        for role, key in ROLES.items()
        if key in tokens
    }
    extra = _extra(tokens, where)
    if len(added) + len(extra) > ADDED:
        raise CheckpointError(f"{where} adds {len(added) + len(extra):,} tokens; expected {ADDED:,} at most")
    if "added_tokens_decoder" not in values:
        special = {token.content for token in (*named.values(), *extra) if token is not None}
        for content, number in _added(folder).items():
            added[number] = AddedToken(content, special=content in special, normalized=content not in special)
    template = read_text(folder, "chat_template.jinja")
    return TokenizerSettings(
        values, named, added, extra, template if template is not None else _template(values, where)
    )


def _added(folder: Path) -> dict[str, int]:
    """The added tokens of an older folder: token -> id."""
    found = read_vocabulary(folder, "added_tokens.json") or {}
    if len(found) > ADDED or any(len(token) > LONGEST for token in found):
        raise CheckpointError(
            f"{folder / 'added_tokens.json'} adds {len(found):,} tokens; expected {ADDED:,} at most, "
            f"of {LONGEST:,} characters at most"
        )
    return found


def register(backend: tokenizers.Tokenizer, settings: TokenizerSettings, defaults: Mapping[str, str]) -> dict[str, str]:
    """Adds the added and special tokens to `backend`, in transformers' order; returns role -> token.

    Tokens that the vocabulary lacks get the next free ids. `tokenizers` leaves no gaps: another id in the file is an
    error here, where transformers silently uses the wrong one.
    """
    named = {role: AddedToken(content, special=True) for role, content in defaults.items()} | dict(settings.named)
    roles = {role: token for role in ROLES if (token := named.get(role)) is not None}
    contents = {token.content for token in roles.values()}
    tokens = [_special(token) if token.content in contents else token for _, token in sorted(settings.added.items())]
    known = {token.content for token in (*backend.get_added_tokens_decoder().values(), *tokens)}
    for token in (*map(_special, roles.values()), *settings.extra):
        if token.content not in known:
            known.add(token.content)
            tokens.append(token)
    backend.add_tokens(tokens)
    for number, token in settings.added.items():
        if (found := backend.token_to_id(token.content)) != number:
            raise CheckpointError(
                f"the tokenizer's files give '{token.content}' the id {number}, but the vocabulary gives it {found}; "
                "its files do not belong together"
            )
    return {role: token.content for role, token in roles.items()}


def _special(token: AddedToken) -> AddedToken:
    """The same token, marked special."""
    flags = {flag: getattr(token, flag) for flag in _FLAGS} | {"special": True}
    return token if token.special else AddedToken(token.content, **flags)


def _token(value: Any, where: str, special: bool = False) -> AddedToken:
    if isinstance(value, str):
        value = {"content": value}
    content = value.get("content") if isinstance(value, dict) else None
    if not isinstance(content, str) or not content:
        raise CheckpointError(f"{where} is {value!r}; expected a text, or an object with its content")
    if len(content) > LONGEST:
        raise CheckpointError(f"{where} has {len(content):,} characters; expected {LONGEST:,} at most")
    flags = {flag: value[flag] for flag in _FLAGS if value.get(flag) is not None}
    for flag, state in flags.items():
        if not isinstance(state, bool):
            raise CheckpointError(f"{where}: {flag} is {state!r}; expected true or false")
    if special:
        flags["special"] = True
    return AddedToken(content, **flags)


def _extra(values: Mapping[str, Any], where: Path) -> tuple[AddedToken, ...]:
    """Special tokens without one of the seven roles: a list, named ones as an object, or under keys of their own."""
    found = values.get("extra_special_tokens") or values.get("additional_special_tokens") or []
    if not isinstance(found, list | dict):
        raise CheckpointError(f"{where}: extra_special_tokens is {found!r}; expected a list")
    listed: Iterable[Any] = found.values() if isinstance(found, dict) else found
    keys = [key for key in values if key.endswith("_token") and key not in ROLES.values()]
    own = [values[key] for key in keys if isinstance(values[key], str)]
    return tuple(_token(value, f"{where}: extra special token", isinstance(value, str)) for value in (*own, *listed))


def _template(values: Mapping[str, Any], where: Path) -> str | None:
    """The chat template; of several, the one called "default"."""
    found = values.get("chat_template")
    if isinstance(found, list):
        found = {entry.get("name"): entry.get("template") for entry in found if isinstance(entry, dict)}
    if isinstance(found, dict):
        found = found.get("default")
    if found is not None and not isinstance(found, str):
        raise CheckpointError(f"{where}: chat_template is {type(found).__name__}; expected a text")
    return found
