"""Safetensors as they should not be: each is one clear sentence, and a good one is read and written exactly."""

import json
import struct
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


@pytest.mark.parametrize(
    "content", [b"", b"\x00" * 7, struct.pack("<Q", 2**63), struct.pack("<Q", 100) + b"{}", b"PK\x03\x04" * 9]
)
def test_files_without_a_header(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match="is not a whole safetensors file"):
        open_weights(tmp_path)


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


def test_half_a_shard_set(tmp_path: Path) -> None:
    sharded(tmp_path, {A: {"a": [2]}, B: {"b": [3]}})
    (tmp_path / B).unlink()
    with pytest.raises(CheckpointError, match="lacks 1 of its 2 shards"):
        open_weights(tmp_path)


def test_shards_that_overlap(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="a is both in .*00001.* and in .*00002.*; shards must not overlap"):
        open_weights(sharded(tmp_path, {A: {"a": [2], "c": [1]}, B: {"b": [3], "a": [2]}}))


@pytest.mark.parametrize("extra", [{"c": A}, {"b": A}])
def test_an_index_that_disagrees(extra: dict[str, str], tmp_path: Path) -> None:
    sharded(tmp_path, {A: {"a": [2]}, B: {"b": [3]}}, {"weight_map": {"a": A, "b": B} | extra})
    with pytest.raises(CheckpointError, match="disagree about 1 tensors"):
        open_weights(tmp_path)


@pytest.mark.parametrize(
    "file", ["../x.safetensors", "/etc/x.safetensors", "a/b.safetensors", "..\\x.safetensors", "x.bin"]
)
def test_an_index_that_points_elsewhere(file: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="shards are .safetensors files of the same folder"):
        open_weights(sharded(tmp_path, {A: {"a": [2]}}, {"weight_map": {"a": file}}))


@pytest.mark.parametrize("index", [{}, {"weight_map": []}, {"weight_map": {}}, {"weight_map": {"a": 3}}, [1]])
def test_an_index_that_is_none(index: Any, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError):
        open_weights(sharded(tmp_path, {A: {"a": [2]}}, index))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "pytorch_model.bin.index.json", "model.pt"])
def test_pickles_are_refused_with_the_way_out(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"anything")
    with pytest.raises(CheckpointError, match="a pickle, .* cutaway convert --from-pickle"):
        open_weights(tmp_path)


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="has no model.safetensors"):
        open_weights(tmp_path)
