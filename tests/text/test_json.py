"""JSON from strangers: read in time and memory that grow with its size, or refused in one sentence."""

import json
import os
import time
from pathlib import Path

import pytest

from cutaway.checkpoint_info import licence
from cutaway.errors import CheckpointError
from cutaway.files import parse_json, read_json


def test_keys_that_occur_twice_are_found_in_linear_time() -> None:
    text = "{" + ",".join(f'"{i}":0' for i in range(200_000)) + ',"199999":1}'
    began = time.monotonic()
    with pytest.raises(ValueError, match="the key '199999' occurs twice"):
        parse_json(text.encode())
    assert time.monotonic() - began < 5  # 0.2 s; the quadratic search took minutes


def test_the_first_key_that_occurs_twice_is_named() -> None:
    with pytest.raises(ValueError, match="the key 'b' occurs twice"):
        parse_json(b'{"a": 1, "b": 2, "c": 3, "c": 3, "b": 4}')


@pytest.mark.parametrize("levels", [101, 900, 100_000])
@pytest.mark.parametrize("marks", ["[]", '{"a":}'])
def test_deep_values_are_refused(levels: int, marks: str) -> None:
    text = marks[:-1] * levels + "0" * ("{" in marks) + marks[-1] * levels
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_json(text.encode())


def test_values_of_100_levels_are_read() -> None:
    assert parse_json(b"[" * 100 + b"]" * 100)[0][0][0] != []
    assert parse_json(json.dumps({"a": [{}, [], {"b": [[]]}], "c": 1}).encode()) == {"a": [{}, [], {"b": [[]]}], "c": 1}


def test_small_files_of_many_values_are_refused_before_they_are_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b'{"a":[' + b"[]," * 3_000_000 + b"0]}")
    with pytest.raises(
        CheckpointError, match=r"can't be read as JSON \(up to 6,000,002 values, of 4,000,000 at most\)"
    ):
        read_json(path)


def test_a_pipe_does_not_hold_its_reader_for_ever(tmp_path: Path) -> None:
    for name in ("config.json", "README.md"):
        os.mkfifo(tmp_path / name)
    with pytest.raises(CheckpointError, match=r"config.json can't be read: it is not a regular file"):
        read_json(tmp_path / "config.json")
    assert licence(tmp_path) is None


def test_a_device_does_not_fill_the_memory(tmp_path: Path) -> None:
    (tmp_path / "config.json").symlink_to("/dev/zero")
    with pytest.raises(CheckpointError, match=r"config.json can't be read: it is not a regular file"):
        read_json(tmp_path / "config.json")
