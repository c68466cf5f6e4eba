"""Files that appear whole or not at all."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cutaway.errors import CheckpointError


@contextmanager
def written_aside(folder: Path) -> Iterator[Path]:
    """A new folder to write into, beside `folder`; it takes the name `folder` when the block ends well.

    What stood there before is replaced then, and only if it is a saved model (or empty): never somebody's own files.
    """
    folder = folder.absolute()
    if folder.exists() and (not folder.is_dir() or (any(folder.iterdir()) and not (folder / "config.json").exists())):
        raise CheckpointError(f"{folder} exists and holds something other than a saved model; choose another name")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    except OSError as error:
        raise CheckpointError(f"can't write to {folder.parent}: {error.strerror}") from None
    try:
        try:
            yield aside
            for path in aside.iterdir():
                _sync(path)
            _sync(aside)
            old = None
            if folder.exists():
                old = aside.with_suffix(".old")
                folder.rename(old)
            aside.rename(folder)
            _sync(folder.parent)
            if old is not None:
                shutil.rmtree(old)
        except OSError as error:
            raise CheckpointError(f"can't write {folder}: {error.strerror or error}") from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _sync(path: Path) -> None:
    """On disk, not only in the system's cache."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
