"""The cache: folders that only this user can have filled."""

import os
from pathlib import Path

import pytest

from cutaway.cache import CacheEntry, cache_folder

pytestmark = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="Windows has other rights")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CUTAWAY_CACHE", str(tmp_path))
    return tmp_path


def write(folder: Path) -> None:
    (folder / "file").write_text("made of a")


def test_a_folder_that_others_may_write_to_is_not_used(cache: Path) -> None:
    CacheEntry("int8", "a").keep(write)
    assert CacheEntry("int8", "a").find() == cache / "int8" / "a"
    for mode in (0o777, 0o1777, 0o770, 0o702):
        (cache / "int8").chmod(mode)
        with pytest.raises(PermissionError, match=rf"other users may write to it \(mode {mode:o}\)"):
            cache_folder("int8")
        assert CacheEntry("int8", "a").find() is None


@pytest.mark.usefixtures("cache")
def test_a_folder_of_somebody_else_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    CacheEntry("int8", "a").keep(write)
    another = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: another)
    with pytest.raises(PermissionError, match="it belongs to another user"):
        cache_folder("int8")
    assert CacheEntry("int8", "a").find() is None


@pytest.mark.usefixtures("cache")
def test_what_is_made_is_for_this_user_alone() -> None:
    before = os.umask(0)
    try:
        folder = CacheEntry("int8", "a").keep(write)
    finally:
        os.umask(before)
    assert [path.stat().st_mode & 0o777 for path in (folder, folder.parent)] == [0o700, 0o700]


def test_a_link_to_another_disk_is_followed(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "large disk").mkdir(mode=0o700)
    (cache / "int8").symlink_to(tmp_path / "large disk")
    assert CacheEntry("int8", "a").keep(write) == cache / "int8" / "a"
    assert (tmp_path / "large disk" / "a" / "file").is_file()


def test_an_entry_under_another_name_is_not_believed(cache: Path) -> None:
    CacheEntry("int8", "a").keep(write).rename(cache / "int8" / "b")
    assert CacheEntry("int8", "b").find() is None


def test_of_one_subject_only_the_newest_is_kept(cache: Path) -> None:
    for subject, made_of in (("x", "1"), ("y", "1"), ("x", "2")):
        CacheEntry("int8", made_of, subject).keep(write)
    assert sorted(path.name for path in (cache / "int8").iterdir()) == ["x-2", "y-1"]


def test_a_folder_that_others_may_exchange_is_not_used(cache: Path) -> None:
    CacheEntry("int8", "a").keep(write)
    cache.chmod(0o777)
    with pytest.raises(PermissionError, match="any user may put another folder in its place"):
        cache_folder("int8")
    cache.chmod(0o1777)  # as /tmp
    assert CacheEntry("int8", "a").find() is not None


@pytest.mark.usefixtures("cache")
def test_an_entry_whose_manifest_is_a_pipe_is_made_again() -> None:
    entry = CacheEntry("int8", "a")
    manifest = entry.keep(write) / "manifest.json"
    manifest.unlink()
    os.mkfifo(manifest)
    assert entry.find() is None
    entry.keep(write)
    assert entry.find() is not None
