"""What cutaway can make again, kept for the next time: in folders that are this user's alone, each entry whole or gone.

    ~/.cache/cutaway/int8/1f0c…-93ab…/     the files of an entry, and manifest.json: the size and checksum of each

Others can neither put an entry there nor change one; what is damaged is noticed by its checksum, and made again.
"""

import errno
import json
import os
import shutil
import stat
import tempfile
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from platformdirs import user_cache_dir

from cutaway.files import open_file, parse_json, read_whole

_MANIFEST = "manifest.json"
_LARGEST_MANIFEST = 100_000
_WRITING = ".writing-"
_DAY = 24 * 3600
_BLOCK = 1 << 20


def cache_folder(name: str, base: str | None = None) -> Path:
    """A folder for what cutaway can make again, made if need be: in $CUTAWAY_CACHE, or in the cache that this system
    has for its user (~/.cache/cutaway or in $XDG_CACHE_HOME; ~/Library/Caches/cutaway). OSError: there can be none,
    or others may write into it."""
    base = base or os.environ.get("CUTAWAY_CACHE") or users_own()
    try:
        folder = Path(base).expanduser() / name
    except RuntimeError:  # no home
        raise FileNotFoundError(errno.ENOENT, "there is no home folder to keep it in", base) from None
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for facts in (folder.lstat(), folder.stat()):  # a link and where it leads
        if reason := why_not_ours(facts):
            raise PermissionError(errno.EPERM, reason, str(folder))
    mode = folder.parent.stat().st_mode
    if (
        os.name == "posix" and mode & stat.S_IWOTH and not mode & stat.S_ISVTX
    ):  # whoever may rename ours, between two looks
        raise PermissionError(errno.EPERM, "any user may put another folder in its place", str(folder))
    return folder


def users_own() -> str:
    """The cache that this system has for its user."""
    return user_cache_dir("cutaway", appauthor=False)


def why_not_ours(facts: os.stat_result) -> str | None:
    """Why a file or folder may hold what somebody else put there; None if only this user can have."""
    if not hasattr(os, "geteuid"):  # Windows has other rights, and a cache for each user
        return None
    if facts.st_uid != os.geteuid():
        return "it belongs to another user"
    if facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not stat.S_ISLNK(facts.st_mode):
        return f"other users may write to it (mode {stat.S_IMODE(facts.st_mode):o})"
    return None


@dataclass(frozen=True)
class CacheEntry:
    """Some files that were made of something, in a folder of their own."""

    kind: str
    """The folder of the cache that it is in."""
    made_of: str
    """A digest of all that the files depend on."""
    subject: str = ""
    """Of entries with the same subject, only the newest is kept: a file's vectors, until the file changes."""

    @property
    def name(self) -> str:
        return f"{self.subject}-{self.made_of}" if self.subject else self.made_of

    def find(self) -> Path | None:
        """The folder with the files, as they were written; None if there is none, or if they are damaged."""
        try:
            folder = cache_folder(self.kind) / self.name
            if not self._is_whole(folder):
                return None
            with suppress(OSError):
                os.utime(folder)  # used just now
            return folder
        except OSError:
            return None

    def keep(self, write: Callable[[Path], object], room: int | None = None) -> Path:
        """The folder that `write` filled, unless another process was quicker. `room`: bytes for all entries of its
        kind; beyond it, those that were not used for the longest time are removed."""
        kind = cache_folder(self.kind)
        folder, aside = kind / self.name, Path(tempfile.mkdtemp(prefix=_WRITING, dir=kind))
        try:
            write(aside)
            self._seal(aside)
            try:
                aside.rename(folder)
            except OSError:  # it is there: another process was quicker, or it is damaged
                if not self._is_whole(folder):
                    shutil.rmtree(folder, ignore_errors=True)
                    aside.rename(folder)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        self._clear_away(kind, room)
        return folder

    def _seal(self, folder: Path) -> None:
        files = {path.name: [path.stat().st_size, _checksum(path)] for path in sorted(folder.iterdir())}
        text = json.dumps({"entry": self.name, "files": files}, indent=1)
        (folder / _MANIFEST).write_text(text + "\n", encoding="utf-8")

    def _is_whole(self, folder: Path) -> bool:
        try:
            sealed: Any = parse_json(read_whole(folder / _MANIFEST, _LARGEST_MANIFEST))
            if sealed["entry"] != self.name:
                return False
            files = {path.name: path for path in folder.iterdir() if path.name != _MANIFEST}
            sizes = {name: path.stat().st_size for name, path in files.items()}
            if sizes != {name: size for name, (size, _) in sealed["files"].items()}:
                return False
            return all(_checksum(path) == sealed["files"][name][1] for name, path in files.items())
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def _clear_away(self, kind: Path, room: int | None) -> None:
        """What is out of date, what killed processes left, and what there is no room for. Others may do the same."""
        found = []
        for path in kind.iterdir():
            with suppress(OSError):
                is_old = time.time() - path.stat().st_mtime > _DAY
                if path.name.startswith("."):
                    if is_old:
                        shutil.rmtree(path)
                elif path.name != self.name and self.subject and path.name.startswith(f"{self.subject}-"):
                    shutil.rmtree(path)
                else:
                    found.append((path.name == self.name, path.stat().st_mtime_ns, _n_bytes(path), path))
        for is_this, _, n_bytes, path in sorted(found, reverse=True) if room is not None else ():
            room = (room or 0) - n_bytes
            if room < 0 and not is_this:
                with suppress(OSError):
                    shutil.rmtree(path) if path.is_dir() else path.unlink()


def _n_bytes(path: Path) -> int:
    return sum(each.stat().st_size for each in path.iterdir()) if path.is_dir() else path.stat().st_size


def _checksum(path: Path) -> int:
    """For damage, not for malice, which has no way in: several times as fast as a digest."""
    checksum = 0
    with open_file(path) as file:
        while block := file.read(_BLOCK):
            checksum = zlib.crc32(block, checksum)
    return checksum
