"""Safetensors as they should not be: each is one clear sentence, and a good one is read and written exactly."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from cutaway.checkpoints.weights import INDEX, open_weights, read_header, tensor_to_write, write_weights
from cutaway.errors import CheckpointError


def safetensors(path: Path, header: Any, data: bytes = b"\x00" * 24) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def entry(begin: int, end: int, shape: list[int], dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def test_what_we_write_safetensors_reads_and_the_other_way(tmp_path: Path) -> None:
    dtypes = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.uint8, torch.bool]
    tensors = {f"t.{i}": (torch.arange(15) % 3).view(3, 5).to(dtype) for i, dtype in enumerate(dtypes)}
    tensors |= {
        "number": torch.tensor(3.5),
        "empty": torch.zeros(0, 4),
        "flipped": torch.randn(4, 6).T,
        "é": torch.ones(1),
    }
    write_weights(tmp_path / "ours.safetensors", {name: tensor_to_write(tensor) for name, tensor in tensors.items()})
    again = load_file(tmp_path / "ours.safetensors")
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, tmp_path / "model.safetensors")
    ours = open_weights(tmp_path)
    assert set(again) == set(ours) == set(tensors)
    for name, tensor in tensors.items():
        for read in (again[name], ours.tensor(name)):
            assert read.dtype == tensor.dtype
            assert torch.equal(read, tensor)
        assert ours[name].shape == tuple(tensor.shape)


BROKEN: dict[str, tuple[Any, str]] = {
    "not json": (b"{nonsense", "Expecting property name"),
    "not utf-8": (b'{"\xff\xfe": 1}', "can't decode"),
    "a list": ([1, 2], "header is not an object"),
    "too deep": (b"[" * 100_000 + b"]" * 100_000, "nested too deeply"),
    "twice": (b'{"a": {}, "a": {}}', "the key 'a' occurs twice"),
    "a number too long": (b'{"a": {"dtype":"F32","shape":[' + b"9" * 5000 + b'],"data_offsets":[0,4]}}', "digits"),
    "no dtype": ({"a": {"shape": [1], "data_offsets": [0, 4]}}, "'a' is not dtype, shape and data_offsets"),
    "more keys": ({"a": entry(0, 24, [6]) | {"code": "x"}}, "is not dtype, shape and data_offsets"),
    "unknown dtype": ({"a": entry(0, 24, [6], "F99")}, "dtype 'F99'"),
    "negative shape": ({"a": entry(0, 24, [-6])}, "shape [-6]"),
    "fractional shape": ({"a": entry(0, 24, [6.0])}, "shape [6.0]"),
    "huge shape": ({"a": entry(0, 24, [2**62, 2**62])}, "shape"),
    "true as a shape": ({"a": entry(0, 24, [True])}, "shape [True]"),
    "negative place": ({"a": entry(-4, 20, [6])}, "lies at -4 to 20"),
    "wrong length": ({"a": entry(0, 20, [6])}, "lies at 0 to 20"),
    "overlap": ({"a": entry(0, 16, [4]), "b": entry(8, 24, [4])}, "begins at byte 8, where 16 is expected"),
    "hole": ({"a": entry(0, 8, [2]), "b": entry(16, 24, [2])}, "begins at byte 16, where 8 is expected"),
    "beyond the end": ({"a": entry(0, 32, [8])}, "take 32 bytes, and it holds 24"),
    "tensors without end": (
        {f"t.{i}": entry(0, 0, [0]) for i in range(20_001)},
        "has 20,001 tensors; cutaway reads up",
    ),
    "data left over": ({"a": entry(0, 16, [4])}, "take 16 bytes, and it holds 24"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_headers(name: str, tmp_path: Path) -> None:
    header, message = BROKEN[name]
    path = safetensors(tmp_path / "model.safetensors", header)
    with pytest.raises(CheckpointError) as caught:
        read_header(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_header_larger_than_any_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    with path.open("wb") as stream:
        stream.write(struct.pack("<Q", 200_000_000))
        stream.truncate(300_000_000)  # a hole: takes no room on disk
    with pytest.raises(CheckpointError, match="a header of 200,000,000 bytes"):
        read_header(path)


def sharded(folder: Path, shards: dict[str, dict[str, list[int]]], index: Any = None) -> Path:
    for file, tensors in shards.items():
        save_file({name: torch.zeros(shape) for name, shape in tensors.items()}, folder / file)
    places = {name: file for file, tensors in shards.items() for name in tensors}
    (folder / INDEX).write_text(json.dumps({"weight_map": places} if index is None else index))
    return folder


A, B = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def test_shards(tmp_path: Path) -> None:
    assert set(open_weights(sharded(tmp_path, {A: {"a": [2]}, B: {"b": [3]}}))) == {"a", "b"}


def holding(name: str, content: bytes = b"anything") -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(content)


def indexed(index: Any) -> Callable[[Path], object]:
    return lambda folder: sharded(folder, {A: {"a": [2]}, B: {"b": [3]}}, index)


def half(folder: Path) -> None:
    (sharded(folder, {A: {"a": [2]}, B: {"b": [3]}}) / B).unlink()


def overlapping(folder: Path) -> None:
    sharded(folder, {A: {"a": [2], "c": [1]}, B: {"b": [3], "a": [2]}})


BOTH = {"a": A, "b": B}
NO_HEADERS = [b"", b"\x00" * 7, struct.pack("<Q", 2**63), struct.pack("<Q", 100) + b"{}", b"PK\x03\x04" * 9]
ELSEWHERE = ["../x.safetensors", "/etc/x.safetensors", "a/b.safetensors", "..\\x.safetensors", "x.bin"]
FOLDERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "nothing": (lambda folder: None, "has no model.safetensors"),
    **{f"no header {i}": (holding("model.safetensors", content), "is not a whole safetensors file")
       for i, content in enumerate(NO_HEADERS)},
    **{f"a pickle, {name}": (holding(name), "a pickle, .* cutaway convert --from-pickle")
       for name in ("pytorch_model.bin", "pytorch_model.bin.index.json", "model.pt")},
    "half a set of shards": (half, "lacks 1 of its 2 shards"),
    "shards that overlap": (overlapping, "a is both in .*00001.* and in .*00002.*; shards must not overlap"),
    "an index with a tensor more": (indexed({"weight_map": BOTH | {"c": A}}), "disagree about 1 tensors"),
    "an index with another shard": (indexed({"weight_map": BOTH | {"b": A}}), "disagree about 1 tensors"),
    **{f"an index that points to {file}": (
           indexed({"weight_map": {"a": file}}), "shards are .safetensors files of the same folder")
       for file in ELSEWHERE},
    **{f"no index: {index}": (indexed(index), ".")
       for index in ({}, {"weight_map": []}, {"weight_map": {}}, {"weight_map": {"a": 3}}, [1])},
}  # fmt: skip


@pytest.mark.parametrize("case", FOLDERS)
def test_a_folder_of_other_than_whole_weights(case: str, tmp_path: Path) -> None:
    fill, message = FOLDERS[case]
    fill(tmp_path)
    with pytest.raises(CheckpointError, match=message):
        open_weights(tmp_path)
