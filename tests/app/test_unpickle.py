"""Pickles, good and bad: good ones become safetensors with the same numbers, bad ones a sentence and nothing else."""

import io
import json
import os
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from cutaway.checkpoints import unpickle as ours
from cutaway.checkpoints.unpickle import find_pickles, unpickle
from cutaway.checkpoints.weights import open_weights
from cutaway.errors import CheckpointError

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool)


@pytest.fixture(autouse=True)
def any_tensors_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether they fit their config is tested with real models, in test_checkpoint_commands.py."""
    monkeypatch.setattr(ours, "open_folder", open_weights)


def some_tensors() -> dict[str, Tensor]:
    tensors = {f"t.{i}": (torch.arange(15) % 3).view(3, 5).to(dtype) for i, dtype in enumerate(DTYPES)}
    return tensors | {"flipped": torch.randn(4, 6).T, "number": torch.tensor(3.5), "empty": torch.zeros(0, 4)}


def folder_with(place: Path, save: Callable[[Path], object], name: str = "pytorch_model.bin") -> Path:
    folder = place / "in"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text('{"model_type": "gpt2"}')
    save(folder / name)
    return folder


def same(out: Path, expected: dict[str, Any]) -> None:
    found = load_file(out / "model.safetensors")
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor), name


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "before 1.6"])
@pytest.mark.parametrize("within", ["", "state_dict", "model"])
def test_every_number_arrives(zipped: bool, within: str, tmp_path: Path) -> None:
    tensors = some_tensors()
    data = {within: tensors, "epoch": 3} if within else OrderedDict(tensors)
    source = folder_with(tmp_path, lambda path: torch.save(data, path, _use_new_zipfile_serialization=zipped))
    assert unpickle(source, tmp_path / "out") == tmp_path / "out"
    same(tmp_path / "out", tensors)


@pytest.mark.usefixtures("forked")
def test_parameters_and_one_file_by_its_path(tmp_path: Path) -> None:
    weight = torch.nn.Parameter(torch.randn(3, 5))
    source = folder_with(tmp_path, lambda path: torch.save({"w": weight}, path), "other.pth")
    unpickle(source / "other.pth", tmp_path / "out")
    same(tmp_path / "out", {"w": weight.detach()})


@pytest.mark.usefixtures("forked")
def test_tied_weights_are_written_once_under_their_first_name(tmp_path: Path) -> None:
    table = torch.randn(5, 3)
    tensors = {"first": table, "other": torch.randn(3), "second": table, "row": table[1]}
    unpickle(folder_with(tmp_path, lambda path: torch.save(tensors, path)), tmp_path / "out")
    same(tmp_path / "out", {name: tensors[name] for name in ("first", "other", "row")})


@pytest.mark.usefixtures("forked")
def test_views_that_overlap_are_more_than_the_file_can_hold(tmp_path: Path) -> None:
    big = torch.randn(500, 100)
    views = {f"v{i}": big[i:] for i in range(9)}
    refused(folder_with(tmp_path, lambda path: torch.save(views, path)), tmp_path, "claims tensors of 1,7")


@pytest.mark.usefixtures("forked")
def test_config_and_tokenizer_come_along_and_nothing_else(tmp_path: Path) -> None:
    source = folder_with(tmp_path, lambda path: torch.save({"w": torch.ones(2)}, path))
    (source / "1_Pooling").mkdir()
    kept = {"config.json", "tokenizer.json", "vocab.txt", "README.md", "1_Pooling/config.json"}
    for name in kept | {"modeling.py", "other.bin", "notes.txt"}:
        (source / name).write_text(name)
    unpickle(source, tmp_path / "out")
    out = tmp_path / "out"
    found = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    assert found == kept | {"model.safetensors"}
    assert (out / "vocab.txt").read_text() == "vocab.txt"


def sharded(place: Path, places: dict[str, str] | None = None) -> Path:
    shards = {
        "pytorch_model-00001-of-00002.bin": {"a": torch.ones(2)},
        "pytorch_model-00002-of-00002.bin": {"b": torch.zeros(3)},
    }
    names = {name: file for file, tensors in shards.items() for name in tensors}
    index = json.dumps({"weight_map": names if places is None else places})
    source = folder_with(place, lambda path: path.write_text(index), "pytorch_model.bin.index.json")
    for file, tensors in shards.items():
        torch.save(tensors, source / file)
    return source


def test_shards(tmp_path: Path) -> None:
    source = sharded(tmp_path)
    assert find_pickles(source) == find_pickles(source / "pytorch_model.bin.index.json")
    unpickle(source, tmp_path / "out")
    same(tmp_path / "out", {"a": torch.ones(2), "b": torch.zeros(3)})


FIRST, SECOND = "pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"


@pytest.mark.parametrize(
    ("places", "message"),
    [
        ({}, "has no weight_map"),
        ({"a": "../secret.bin"}, "names the file '../secret.bin'; shards are .bin files of the same folder"),
        ({"a": "model.py"}, "names the file 'model.py'"),
        ({"a": FIRST, "b": "absent.bin"}, r"lacks 1 of its 2 shards \(absent.bin\)"),
        ({"a": FIRST, "b": FIRST}, r"disagree about 1 tensors \(b\)"),
        ({"a": FIRST, "b": SECOND, "c": SECOND}, r"disagree about 1 tensors \(c\)"),
    ],
)
def test_an_index_that_does_not_fit(places: dict[str, str], message: str, tmp_path: Path) -> None:
    refused_inside(sharded(tmp_path, places), tmp_path, message)


def refused(source: Path, place: Path, message: str) -> str:
    """One sentence, and nothing written."""
    before = {path for path in place.rglob("*") if source not in path.parents}
    with pytest.raises(CheckpointError, match=message) as caught:
        unpickle(source, place / "out")
    assert "\n" not in str(caught.value)
    assert {path for path in place.rglob("*") if source not in path.parents} == before
    return str(caught.value)


def refused_inside(source: Path, place: Path, message: str) -> None:
    """The same, of what happens in the process of its own, but in this one: starting one takes seconds."""
    before = sorted(place.rglob("*"))
    with pytest.raises(CheckpointError, match=message) as caught:
        ours._convert(*find_pickles(source), place / "out.safetensors")
    assert "\n" not in str(caught.value)
    assert sorted(place.rglob("*")) == before


class Evil:
    """Unpickled by pickle, it runs a command."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.marker}",)


@pytest.mark.parametrize("zipped", [True, False])
def test_code_is_not_run(zipped: bool, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    data = {"w": torch.ones(2), "evil": Evil(marker)}
    source = folder_with(tmp_path, lambda path: torch.save(data, path, _use_new_zipfile_serialization=zipped))
    message = refused(source, tmp_path, "asks for (posix|nt).system, which is code and not a tensor; it was not run")
    assert str(source / "pytorch_model.bin") in message
    assert not marker.exists()
    torch.load(source / "pytorch_model.bin", weights_only=False)
    assert marker.exists(), "the pickle is as evil as it claims"


def test_a_bare_pickle_is_not_run_either(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    source = folder_with(tmp_path, lambda path: path.write_bytes(pickle.dumps(Evil(marker), protocol=2)))
    refused_inside(source, tmp_path, "which is code and not a tensor")
    assert not marker.exists()


def rezipped(path: Path, change: Callable[[str, bytes], bytes], compression: int = zipfile.ZIP_STORED) -> None:
    """torch.save's archive, written anew."""
    stream = io.BytesIO()
    torch.save({"w": torch.zeros(1000)}, stream)
    with zipfile.ZipFile(stream) as old, zipfile.ZipFile(path, "w", compression) as new:
        for item in old.infolist():
            new.writestr(item.filename, change(item.filename, old.read(item)))


def test_a_zip_bomb(tmp_path: Path) -> None:
    def swell(name: str, content: bytes) -> bytes:
        return bytes(200_000_000) if name.endswith("data/0") else content

    source = folder_with(tmp_path, lambda path: rezipped(path, swell, zipfile.ZIP_DEFLATED))
    assert (source / "pytorch_model.bin").stat().st_size < 1_000_000
    refused_inside(source, tmp_path, "is compressed, which torch.save never does; it may be a zip bomb")


HUGE = b"J" + (750_000_000).to_bytes(4, "little")
"""In a pickle: so many numbers, 3 GB of them, instead of 1000 (M, then two bytes)."""


def test_numbers_that_a_tensor_claims_and_does_not_have(tmp_path: Path) -> None:
    def claim(name: str, content: bytes) -> bytes:
        return content.replace(b"M\xe8\x03", HUGE) if name.endswith("data.pkl") else content

    refused(
        folder_with(tmp_path, lambda path: rezipped(path, claim)), tmp_path, "pytorch_model.bin (is damaged|asks for)"
    )


def test_numbers_that_an_old_file_claims(tmp_path: Path) -> None:
    """torch takes the memory before it looks whether the file has the numbers: the bound stops it."""
    source = folder_with(
        tmp_path, lambda path: torch.save({"w": torch.zeros(1000)}, path, _use_new_zipfile_serialization=False)
    )
    file = source / "pytorch_model.bin"
    file.write_bytes(file.read_bytes().replace(b"M\xe8\x03", HUGE))
    refused(source, tmp_path, "asks for more memory than weights of its size need")


def test_one_number_repeated_without_end(tmp_path: Path) -> None:
    data = {"w": torch.zeros(1).expand(10**6, 10**6)}
    refused_inside(
        folder_with(tmp_path, lambda path: torch.save(data, path)), tmp_path, "w claims 4,000,000,000,000 bytes and"
    )


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
def test_a_truncated_file(zipped: bool, share: float, tmp_path: Path) -> None:
    data = {"w": torch.randn(1000), "v": torch.randn(1000)}
    source = folder_with(tmp_path, lambda path: torch.save(data, path, _use_new_zipfile_serialization=zipped))
    file = source / "pytorch_model.bin"
    file.write_bytes(file.read_bytes()[: int(share * file.stat().st_size)])
    check = refused if share == 0.5 else refused_inside
    check(source, tmp_path, r"is damaged or was not written by torch.save \(.+\); copy it again|other than tensors")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"w": torch.ones(2), "step": 3}, "step is int; expected a tensor"),
        ({"layers": {"w": torch.ones(2)}}, "layers is dict; expected a tensor"),
        ({3: torch.ones(2)}, "'3', which is no name of a tensor"),
        ({"a\nb": torch.ones(2)}, "which is no name of a tensor"),
        ({"__metadata__": torch.ones(2)}, "which is no name of a tensor"),
        ({}, "holds an empty dict; expected names with their tensors"),
        ([torch.ones(2)], "holds list; expected names with their tensors"),
        (torch.ones(2), "holds Tensor; expected names with their tensors"),
        ({"w": torch.ones(2, dtype=torch.complex64)}, "w has dtype torch.complex64; cutaway writes float64, float32"),
        ({"w": torch.ones(2, 2).to_sparse()}, "w is not a plain tensor"),
        ({"w": torch.ones(2, device="meta")}, "w is not a plain tensor"),
    ],
)
def test_more_than_tensors(data: Any, message: str, tmp_path: Path) -> None:
    refused_inside(folder_with(tmp_path, lambda path: torch.save(data, path)), tmp_path, message)


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    source = folder_with(tmp_path, lambda path: torch.save({"w": torch.ones(2)}, path))
    (source / "config.json").unlink()
    refused(source, tmp_path, "has no config.json, which says what model the numbers in pytorch_model.bin make")
    (source / "pytorch_model.bin").rename(source / "model.safetensors")
    refused(source, tmp_path, "has no pytorch_model.bin.*; it has model.safetensors, so leave out --from-pickle")


def test_somebodys_own_folder_is_left_alone(tmp_path: Path) -> None:
    source = folder_with(tmp_path, lambda path: torch.save({"w": torch.ones(2)}, path))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "diary.txt").write_text("mine")
    refused(source, tmp_path, "holds something other than a saved model")


PROBE = """
import json, os, resource, sys
sys.path[:] = sys.argv[1:]
from cutaway.checkpoints import unpickle
unpickle._bound(1000)
names = ("AS", "CPU", "FSIZE", "CORE", "NPROC")
limits = {name: resource.getrlimit(getattr(resource, "RLIMIT_" + name))[0] for name in names}
seen = {"environment": sorted(os.environ), "path": sys.path, "isolated": sys.flags.isolated, "limits": limits}
print(json.dumps({"error": json.dumps(seen)}))
"""


def test_the_process_is_bounded_and_knows_nothing_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program in the place of the reader tells what it sees and what it may use."""
    monkeypatch.setenv("SECRET", "x")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(ours, "_PROGRAM", PROBE)
    with pytest.raises(CheckpointError) as caught:
        unpickle(folder_with(tmp_path, lambda path: torch.save({"w": torch.ones(2)}, path)), tmp_path / "out")
    seen = json.loads(str(caught.value))
    own = {"GOMP_SPINCOUNT"}  # set by cutaway itself
    assert set(seen["environment"]) - own <= {"LD_LIBRARY_PATH", "SYSTEMROOT", "LC_CTYPE"}
    assert seen["isolated"] == 1
    assert str(tmp_path) not in seen["path"]
    limits = seen["limits"]
    assert limits["CORE"] == limits["NPROC"] == 0
    assert limits["FSIZE"] == 1000 + 2**24
    assert limits["CPU"] == 60
    assert 0 < limits["AS"] < 2**40


NO_PROC = """
from pathlib import Path
def read_text(path, *given, real=Path.read_text, **options):
    if str(path).startswith("/proc"):
        raise FileNotFoundError
    return real(path, *given, **options)
Path.read_text = read_text
"""


def test_without_proc_memory_is_bounded_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """How much the process has already is not known there, so the bound is wider."""
    monkeypatch.setattr(ours, "_PROGRAM", NO_PROC + PROBE)
    with pytest.raises(CheckpointError) as caught:
        unpickle(folder_with(tmp_path, lambda path: torch.save({"w": torch.ones(2)}, path)), tmp_path / "out")
    assert json.loads(str(caught.value))["limits"]["AS"] == 2**33 + 2 * 1000 + 2**29


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (
            "import os, signal; os.kill(os.getpid(), signal.SIGXCPU)",
            "reading it was stopped by SIGXCPU; it asks for too",
        ),
        ("raise SystemExit('no torch here')", r"the process that read it failed \(no torch here\)"),
        ("print('nonsense')", r"the process that read it failed \(it said nothing\)"),
        ("print('{\"done\": true}')", "has no model.safetensors"),
    ],
)
def test_a_process_that_dies_is_told_in_a_sentence(
    program: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ours, "_PROGRAM", program)
    refused(folder_with(tmp_path, lambda path: torch.save({"w": torch.ones(2)}, path)), tmp_path, message)
