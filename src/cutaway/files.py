"""Files that appear whole or not at all, and JSON read with care."""

import errno
import json
import os
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from platformdirs import user_cache_dir

from cutaway.errors import CheckpointError

OURS = (
    "config.json", "model.safetensors", "model.safetensors.index.json", "model-*.safetensors", "generation_config.json",
    "preprocessor_config.json", "sentence_bert_config.json", "modules.json", "?_Pooling", "?_Normalize",
    "tokenizer.json", "target_tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "chat_template.jinja", "vocab.txt", "vocab.json", "merges.txt",
    "spiece.model", "tokenizer.model", "source.spm", "target.spm", "target_vocab.json",
)  # fmt: skip
"""What saving a model may write, and so may replace; all else in its folder is somebody's own and stays."""


def cache_folder(name: str) -> Path:
    """A folder for what cutaway can make again, made if need be: in $CUTAWAY_CACHE, or in the cache that this system
    has for its user (~/.cache/cutaway or in $XDG_CACHE_HOME; ~/Library/Caches/cutaway). OSError: there can be none."""
    base = os.environ.get("CUTAWAY_CACHE") or user_cache_dir("cutaway", appauthor=False)
    try:
        folder = Path(base).expanduser() / name
    except RuntimeError:  # no home
        raise FileNotFoundError(errno.ENOENT, "there is no home folder to keep it in", base) from None
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


@contextmanager
def written_aside(folder: Path) -> Iterator[Path]:
    """A new folder to write into, beside `folder`; it takes the name `folder` when the block ends well.

    A model that stood there before is replaced then, and the files that are no part of a model stay. A folder that is
    not a model (or empty) is never touched.
    """
    try:
        folder = folder.resolve() if folder.is_symlink() else folder.absolute()
        if folder == Path.cwd():
            raise CheckpointError(f"{folder} is the folder you are in, which saving would replace; choose another name")
        if folder.exists() and not _is_model(folder):
            raise CheckpointError(f"{folder} exists and holds something other than a saved model; choose another name")
        folder.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise CheckpointError(f"can't write {str(folder)[:200]!r}: {reason}") from None
    try:
        try:
            yield aside
            aside.chmod(0o777 & ~_umask())  # mkdtemp makes folders that only their owner may read
            _swap(folder, aside)
        except OSError as error:
            raise CheckpointError(f"can't write {folder}: {error.strerror or error}") from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _is_model(folder: Path) -> bool:
    """A folder that saving may replace: a model, or nothing at all."""
    if not folder.is_dir():
        return False
    names = {path.name for path in folder.iterdir()}
    return not names or ("config.json" in names and any(fnmatch(name, "model*.safetensors*") for name in names))


def _swap(folder: Path, aside: Path) -> None:
    """`aside` becomes `folder`. What it replaces is given up only when the new files are on disk, not in a cache."""
    if not folder.exists():
        aside.rename(folder)
        return
    for path in (*aside.rglob("*"), aside):
        sync(path)
    old = aside.with_name(aside.name + ".old")
    folder.rename(old)
    aside.rename(folder)
    for path in old.iterdir():
        if not any(fnmatch(path.name, pattern) for pattern in OURS) and not (folder / path.name).exists():
            path.rename(folder / path.name)
    sync(folder.parent)
    shutil.rmtree(old)


def _umask() -> int:
    """The bits that new files of this process do not get; asking means setting, so it is set back at once."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def sync(path: Path) -> None:
    """On disk, not only in the system's cache."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_json(path: Path, limit: int = 10_000_000) -> dict[str, Any]:
    """The object in a JSON file of at most `limit` bytes; anything else is a sentence that names the file."""
    try:
        if (size := path.stat().st_size) > limit:
            raise CheckpointError(f"{path} has {size:,} bytes; a file of its kind has at most {limit:,}")
        data = parse_json(path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"{path} can't be read: {error.strerror}") from None
    except ValueError as error:
        raise CheckpointError(f"{path} can't be read as JSON ({error}); copy or save it again") from None
    if not isinstance(data, dict):
        raise CheckpointError(f"{path} holds {type(data).__name__}, expected an object with keys")
    return data


VALUES = 4_000_000
"""So many values at most are in one JSON text; the largest vocabularies have 1.5 million, with their merges."""
DEPTH = 100


def parse_json(text: bytes) -> Any:
    """JSON as the standard has it, every key once, of at most VALUES values in DEPTH levels. ValueError otherwise,
    however odd the bytes are."""
    check_values(text)
    try:
        data = json.loads(text.decode("utf-8"), object_pairs_hook=_once, parse_constant=_no_constant)
        if re.search(rb"\\u[dD][89a-fA-F]", text):  # half a character, written as an escape: no text can hold it
            json.dumps(data, ensure_ascii=False).encode("utf-8")
    except RecursionError:
        raise ValueError("nested too deeply") from None
    level = [data]
    for _ in range(DEPTH):
        children = (value.values() if isinstance(value, dict) else value for value in level if value)
        level = [child for values in children for child in values if isinstance(child, dict | list)]
        if not level:
            return data
    raise ValueError("nested too deeply")


def check_values(text: bytes) -> None:
    """ValueError for more values than VALUES: three bytes of a file (`[],`) are a list of 64 in memory."""
    count = sum(text.count(mark) for mark in (b",", b"[", b"{"))
    if count > VALUES:
        raise ValueError(f"up to {count:,} values, of {VALUES:,} at most")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        counts = Counter(key for key, _ in pairs)
        raise ValueError(f"the key {next(key for key, count in counts.items() if count > 1)[:80]!r} occurs twice")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
