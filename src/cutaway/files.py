"""Atomic writes of files and folders, and strict reading of JSON."""

import ctypes
import errno
import json
import os
import re
import shutil
import stat
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, BinaryIO

from cutaway.errors import CheckpointError

MODEL_FILES = (
    "config.json", "model.safetensors", "model.safetensors.index.json", "model-*.safetensors", "generation_config.json",
    "preprocessor_config.json", "sentence_bert_config.json", "modules.json", "?_Pooling", "?_Normalize",
    "tokenizer.json", "target_tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "chat_template.jinja", "vocab.txt", "vocab.json", "merges.txt",
    "spiece.model", "tokenizer.model", "source.spm", "target.spm", "target_vocab.json",
)  # fmt: skip
"""Files that saving a model may write, and so may replace; all others in its folder are the user's and stay."""


@contextmanager
def atomic_folder(folder: Path, like: Path | None = None) -> Iterator[Path]:
    """A new folder to write into, beside `folder`; it takes the name `folder` when the block ends without an error.

    It replaces a model that was there before; files that are no part of a model stay. A folder that is not a model (or
    empty) is never touched. The result is no more readable to others than the model it replaces, and than `like`, its
    origin.
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
    made, old = aside.stat().st_ino, aside.with_name(f"{aside.name}.old")
    try:
        yield aside
        _deny(aside, _denied_bits(folder) | _denied_bits(like))
        for path in (*aside.rglob("*"), aside):  # on disk, not in the system's cache, before the rename
            sync(path)
        if not folder.exists():
            aside.rename(folder)
        elif not _exchange(aside, folder):
            folder.rename(old)
            aside.rename(folder)
        sync(folder.parent)
    except OSError as error:
        raise CheckpointError(f"can't write {folder}: {error.strerror or error}") from None
    finally:  # also after Ctrl-C there is a model, and the other files of its folder are there
        if old.exists() and not folder.exists():
            old.rename(folder)
        for left in (aside, old):
            if left.exists() and left.stat().st_ino != made:
                _keep_others(left, folder)
            shutil.rmtree(left, ignore_errors=True)


def _is_model(folder: Path) -> bool:
    """Whether saving may replace a folder: it is a model, or empty."""
    if not folder.is_dir():
        return False
    names = {path.name for path in folder.iterdir()}
    return not names or ("config.json" in names and any(fnmatch(name, "model*.safetensors*") for name in names))


def _denied_bits(folder: Path | None) -> int:
    """The permission bits that others lack on a model's folder or on its weights."""
    denied = 0
    if folder is not None and folder.exists():
        is_folder = folder.is_dir()
        weights = [path for path in folder.glob("model*.safetensors") if path.exists()] if is_folder else [folder]
        for others, read in ((stat.S_IRWXG, stat.S_IRGRP), (stat.S_IRWXO, stat.S_IROTH)):
            enter = read >> 2  # the right to enter a folder
            if (is_folder and not folder.stat().st_mode & enter) or any(
                not path.stat().st_mode & read for path in weights
            ):
                denied |= others
    return denied


def _deny(folder: Path, denied: int) -> None:
    for path in folder.rglob("*"):
        path.chmod(stat.S_IMODE(path.stat().st_mode) & ~denied)
    folder.chmod(0o777 & ~umask() & ~denied)  # mkdtemp makes folders that only their owner may read


def _exchange(a: Path, b: Path) -> bool:
    """Exchanges two names atomically; False where the system or the file system can't."""
    libc: Any = ctypes.CDLL(None) if os.name == "posix" else None
    first, second = os.fsencode(a), os.fsencode(b)
    if hasattr(libc, "renameat2"):
        return bool(libc.renameat2(_HERE, first, _HERE, second, _EXCHANGE) == 0)
    return hasattr(libc, "renamex_np") and bool(libc.renamex_np(first, second, _EXCHANGE) == 0)  # macOS


_HERE, _EXCHANGE = -100, 2  # AT_FDCWD; RENAME_EXCHANGE, and RENAME_SWAP of macOS


def _keep_others(old: Path, folder: Path) -> None:
    """Moves files that are no part of a model back to their folder."""
    for path in old.iterdir():
        if not any(fnmatch(path.name, pattern) for pattern in MODEL_FILES) and not os.path.lexists(folder / path.name):
            path.rename(folder / path.name)


def umask() -> int:
    """The umask of this process; reading it means setting it, so it is set back at once."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def file_mode(path: Path) -> int:
    """The mode for a file that takes this path: that of the file there, or the process's default."""
    return stat.S_IMODE(path.lstat().st_mode) if path.is_file() and not path.is_symlink() else 0o666 & ~umask()


def no_link(name: str, flags: int) -> int:
    """For open(opener=...): a link of this name is an error, so that no link redirects the writing."""
    return os.open(name, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)


def create_new(path: Path) -> BinaryIO:
    """A new file of this name, to be renamed when it is complete. A killed process's file or a link there is removed, a
    link's target is not."""
    path.unlink(missing_ok=True)
    return path.open("xb")


def sync(path: Path) -> None:
    """Flushes a file or folder from the system's cache to disk."""
    if os.name == "nt" and path.is_dir():  # Windows has no such thing for folders
        return
    handle = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def open_file(path: Path) -> BinaryIO:
    """A regular file, to be read. OSError for anything else: a pipe may never send, a device may never end. Bound the
    bytes that are read, too: some of the system's files are longer than their size."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0))
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def read_whole(path: Path, limit: int) -> bytes:
    """All of a regular file of at most `limit` bytes; OSError for anything else."""
    with open_file(path) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"it is larger than {limit:,} bytes, the most for a file of its kind", str(path))
    return data


def read_json(path: Path, limit: int = 10_000_000) -> dict[str, Any]:
    """The object in a JSON file of at most `limit` bytes; a CheckpointError names the file."""
    try:
        data = parse_json(read_whole(path, limit))
    except OSError as error:
        raise CheckpointError(f"{path} can't be read: {error.strerror}") from None
    except ValueError as error:
        raise CheckpointError(f"{path} can't be read as JSON ({error}); copy or save it again") from None
    if not isinstance(data, dict):
        raise CheckpointError(f"{path} holds {type(data).__name__}, expected an object with keys")
    return data


VALUES = 4_000_000
"""The most values of one JSON text; the largest vocabularies have 1.5 million, with their merges."""
DEPTH = 100


def parse_json(text: bytes) -> Any:
    """Standard JSON without duplicate keys, of at most VALUES values in DEPTH levels; else ValueError."""
    check_values(text)
    try:
        data = json.loads(text.decode("utf-8"), object_pairs_hook=_once, parse_constant=_no_constant)
        if re.search(rb"\\u[dD][89a-fA-F]", text):  # a lone surrogate can't be encoded
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
    """ValueError for more values than VALUES: three bytes of a file (`[],`) take 64 as a list in memory."""
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
