"""The cache: files that can be made again, in private folders of this user, each entry complete or absent.

    ~/.cache/cutaway/int8/1f0c…-93ab…/     the files of an entry, and manifest.json: the size and checksum of each

Other users can neither add nor change an entry; a damaged one is detected by its checksums, and made again.
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
    """A folder of the cache, made if need be: in $CUTAWAY_CACHE, or in the user's cache of this system
    (~/.cache/cutaway or in $XDG_CACHE_HOME; ~/Library/Caches/cutaway). OSError: it can't be made, or other users may
    write into it."""
    base = base or os.environ.get("CUTAWAY_CACHE") or user_cache()
    try:
        folder = Path(base).expanduser() / name
    except RuntimeError:  # no home
        raise FileNotFoundError(errno.ENOENT, "there is no home folder for the cache", base) from None
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for facts in (folder.lstat(), folder.stat()):  # a link and its target
        if reason := why_not_private(facts):
            raise PermissionError(errno.EPERM, reason, str(folder))
    mode = folder.parent.stat().st_mode
    if os.name == "posix" and mode & stat.S_IWOTH and not mode & stat.S_ISVTX:  # it may be renamed between two checks
        raise PermissionError(errno.EPERM, "any user may put another folder in its place", str(folder))
    return folder


def user_cache() -> str:
    """The user's cache of this system."""
    return user_cache_dir("cutaway", appauthor=False)


def why_not_private(facts: os.stat_result) -> str | None:
    """The reason why other users may have written a file or folder; None if only this user may."""
    if not hasattr(os, "geteuid"):  # Windows has other rights, and a cache for each user
        return None
    if facts.st_uid != os.geteuid():
        return "it belongs to another user"
    if facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not stat.S_ISLNK(facts.st_mode):
        return f"other users may write to it (mode {stat.S_IMODE(facts.st_mode):o})"
    return None


@dataclass(frozen=True)
class CacheEntry:
    """A folder of files that were computed from some input."""

    kind: str
    """The folder of the cache that it is in."""
    made_of: str
    """A digest of everything that the files depend on."""
    subject: str = ""
    """Only the newest entry with the same subject is kept: a file's vectors, until the file changes."""

    @property
    def name(self) -> str:
        return f"{self.subject}-{self.made_of}" if self.subject else self.made_of

    def find(self) -> Path | None:
        """The folder with the files; None if there is none, or if they are damaged."""
        try:
            folder = cache_folder(self.kind) / self.name
            if not self._is_whole(folder):
                return None
            with suppress(OSError):
                os.utime(folder)  # the time of its last use
            return folder
        except OSError:
            return None

    def keep(self, write: Callable[[Path], object], room: int | None = None) -> Path:
        """The folder, filled by `write` unless another process was quicker. `room`: bytes for all entries of its kind;
        beyond it, the least recently used ones are removed."""
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
        """Removes outdated entries, files of killed processes, and entries beyond `room`, as other processes may do."""
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
    """Detects damage, not malice, as only this user can write here: several times as fast as a digest."""
    checksum = 0
    with open_file(path) as file:
        while block := file.read(_BLOCK):
            checksum = zlib.crc32(block, checksum)
    return checksum
