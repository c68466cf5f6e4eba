"""Models by name: from a hub that runs on this machine, and from a cache that is laid out here. No internet."""

import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub.constants as constants
import pytest

import cutaway
from cutaway.checkpoints import hub as ours
from cutaway.checkpoints.hub import fetch, wanted
from cutaway.errors import CheckpointError
from tests.support import commands
from tests.support.hub_server import COMMIT, Hub, serving

SMALL = {
    "config.json": b"{}", "tokenizer.json": b"{1}", "tokenizer_config.json": b"{2}", "README.md": b"# read me",
    "LICENSE": b"MIT", "1_Pooling/config.json": b"{3}",
}  # fmt: skip
UNWANTED = {
    "pytorch_model.bin": b"pickle", "modeling_custom.py": b"code", "tf_model.h5": b"h5", "flax_model.msgpack": b"flax",
    "model.fp16.safetensors": b"another", "onnx/model.onnx": b"onnx", "LICENSE.py": b"code", ".gitattributes": b"git",
    "x/y_Pooling/config.json": b"{}", "training_args.bin": b"pickle",
}  # fmt: skip
WEIGHTS = {"model.safetensors": b"weights"}
SHARDS = {
    "model.safetensors.index.json": json.dumps(
        {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    ).encode(),
    "model-00001-of-00002.safetensors": b"first",
    "model-00002-of-00002.safetensors": b"second",
}
MODELS = {
    "owner/whole": SMALL | UNWANTED | WEIGHTS,
    "owner/both": SMALL | WEIGHTS | SHARDS,
    "owner/shards": SMALL | UNWANTED | SHARDS,
    "owner/pickle": SMALL | UNWANTED,
    "owner/nothing": SMALL,
    "owner/no-config": WEIGHTS,
    "single": SMALL | WEIGHTS,
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a hub that nobody runs."""
    cache = tmp_path / "cache"
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    _point_to(monkeypatch, "http://127.0.0.1:9")
    return cache


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serving(MODELS) as served:
        _point_to(monkeypatch, served.endpoint)
        yield served


def _point_to(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", endpoint + "/{repo_id}/resolve/{revision}/{filename}")


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }


def lay_out(cache: Path, name: str, files: dict[str, bytes], ref: str | None = "main", commit: str = COMMIT) -> Path:
    """As huggingface_hub does: contents in blobs/, links to them in snapshots/, and which commit a branch is."""
    home = cache / f"models--{name.replace('/', '--')}"
    for i, (file, content) in enumerate(files.items()):
        blob, link = home / "blobs" / f"{i:040}", home / "snapshots" / commit / file
        for path in (blob, link):
            path.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(content)
        link.symlink_to(blob)
    if ref is not None:
        (home / "refs").mkdir()
        (home / "refs" / ref).write_text(commit)
    return home / "snapshots" / commit


@pytest.mark.parametrize(
    ("name", "weights"), [("owner/whole", WEIGHTS), ("owner/both", WEIGHTS), ("owner/shards", SHARDS)]
)
def test_only_what_makes_the_model_is_asked_for(hub: Hub, name: str, weights: dict[str, bytes]) -> None:
    folder = fetch(name)
    assert contents(folder) == SMALL | weights
    assert hub.files_asked == set(SMALL | weights)
    assert [path for path in hub.asked if "/resolve/" not in path] == [f"api/models/{name}"]


@pytest.mark.usefixtures("hub")
def test_a_name_without_an_owner() -> None:
    assert contents(fetch("single")) == SMALL | WEIGHTS


def test_the_second_time_no_file_is_asked_for_again(hub: Hub) -> None:
    folder = fetch("owner/whole")
    hub.asked.clear()
    assert fetch("owner/whole") == folder
    assert hub.files_asked <= {"config.json"}, "to note which commit the branch is"


def test_a_branch_that_moved_is_fetched_anew(hub: Hub) -> None:
    old = fetch("owner/whole")
    newer = "f" * 40
    hub.revisions = {"main": newer, newer: newer}
    assert fetch("owner/whole").name == newer != old.name


def test_a_branch_that_moves_while_it_is_read(hub: Hub) -> None:
    hub.listed = "f" * 40
    with pytest.raises(CheckpointError, match="owner/whole on the hub has just been changed; try again"):
        fetch("owner/whole")
    assert hub.files_asked == {"config.json"}


@pytest.mark.usefixtures("hub")
def test_pickles_only_on_request() -> None:
    folder = fetch("owner/pickle", pickles=True)
    assert contents(folder) == SMALL | {"pytorch_model.bin": b"pickle"}
    with pytest.raises(CheckpointError, match=r"owner/nothing on the hub has no pytorch_model.bin"):
        fetch("owner/nothing", pickles=True)


def test_shards_of_pickles() -> None:
    files = ["pytorch_model.bin.index.json", "pytorch_model-00001-of-00001.bin", "config.json", "other.bin"]
    assert wanted(files, pickles=True) == ["config.json", *files[:2]]
    assert wanted(files) == ["config.json"]


def test_no_safetensors_is_refused_before_anything_is_downloaded(hub: Hub, cache: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        fetch("owner/pickle")
    assert str(caught.value) == (
        "owner/pickle on the hub has no safetensors; it has pickles, to be converted once: "
        "cutaway convert --from-pickle owner/pickle NEW-FOLDER"
    )
    with pytest.raises(CheckpointError, match=r"owner/nothing on the hub has no safetensors$"):
        fetch("owner/nothing")
    with pytest.raises(CheckpointError, match=r"owner/no-config on the hub has no config.json"):
        fetch("owner/no-config")
    assert hub.files_asked == set()
    assert not cache.exists()


def test_a_revision(hub: Hub) -> None:
    commit = "a" * 40
    hub.revisions |= {"v1.0": commit, commit: commit, "refs/pr/4": commit}
    folder = fetch("owner/whole", revision="v1.0")
    assert folder.name == commit
    assert "api/models/owner/whole/revision/v1.0" in hub.asked
    assert fetch("owner/whole", revision="refs/pr/4") == folder
    assert fetch("owner/whole", revision="v1.0", offline=True) == folder
    hub.asked.clear()
    assert fetch("owner/whole", revision=commit) == folder
    assert hub.asked == [], "a commit never changes"
    with pytest.raises(CheckpointError, match="is not"):
        fetch("owner/whole", offline=True)  # main was never fetched


def test_the_hub_says_no(hub: Hub) -> None:
    with pytest.raises(CheckpointError) as caught:
        fetch("owner/absent")
    assert str(caught.value) == (
        "there is no folder 'owner/absent' and no such model on the hub (or it is private: `hf auth login`)"
    )
    with pytest.raises(CheckpointError) as caught:
        fetch("owner/whole", revision="v9")
    assert str(caught.value) == "owner/whole on the hub has no revision 'v9'"
    hub.gated = True
    with pytest.raises(CheckpointError) as caught:
        fetch("owner/whole")
    assert str(caught.value) == "owner/whole is gated: accept its terms on the hub, then log in with `hf auth login`"


def test_no_connection() -> None:
    """One sentence, without what the resolver said."""
    with pytest.raises(CheckpointError) as caught:
        fetch("owner/whole")
    assert str(caught.value) == (
        "there is no folder 'owner/whole', and the hub can't be reached to fetch owner/whole; name a folder, or "
        "connect, and fetch it: cutaway get owner/whole"
    )


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("llama-15m", "train one with `cutaway train complete --text FILE --preset llama-15m --out FOLDER`"),
        ("transformer-tiny", "train one with `cutaway train translate --source FILE --target FILE --preset"),
        ("bert-base", "train one with `cutaway train classify --pairs FILE --preset bert-base --out FOLDER`"),
        ("awd-lstm", "train one with `cutaway train complete --text FILE --preset awd-lstm --out FOLDER`"),
        ("vit-tiny", 'build it in Python with cutaway.build("vit-tiny")'),
    ],
)
@pytest.mark.parametrize("offline", [False, True])
def test_a_preset_is_no_model(hub: Hub, name: str, way: str, offline: bool) -> None:
    """The hub has no model without an owner, but for the oldest: it need not be asked."""
    with pytest.raises(CheckpointError) as caught:
        fetch(name, offline=offline)
    said = str(caught.value)
    assert said.startswith(f"{name} is a preset here, an architecture without weights: {way}")
    assert said.endswith(f"or see its sizes with `cutaway models {name}`")
    assert hub.asked == []


def test_a_preset_that_the_hub_knows_by_that_name(hub: Hub, cache: Path) -> None:
    """gpt2 is both. What is there is taken; else both are told of."""
    told = (
        "gpt2 is a preset here, an architecture without weights: train one with `cutaway train complete --text FILE "
        "--preset gpt2 --out FOLDER`, or see its sizes with `cutaway models gpt2`; trained weights of that size are "
        "openai-community/gpt2 on the hub"
    )
    for options in ({"offline": True}, {}):
        with pytest.raises(CheckpointError) as caught:
            fetch("gpt2", **options)
        assert str(caught.value) == told
    assert hub.asked == ["api/models/gpt2"]
    hub.models["gpt2"] = SMALL | WEIGHTS
    folder = fetch("gpt2")
    assert folder.is_relative_to(cache)
    assert fetch("gpt2", offline=True) == folder


def test_a_preset_that_the_hub_knows_without_a_hub() -> None:
    with pytest.raises(CheckpointError, match=r"^the hub can't be reached, and t5-small is a preset here, .*; trained "
                                              r"weights of that size are google-t5/t5-small on the hub$"):  # fmt: skip
        fetch("t5-small")


def test_a_model_in_the_cache_goes_before_a_preset(cache: Path) -> None:
    folder = lay_out(cache, "bert-base", SMALL | WEIGHTS)
    assert fetch("bert-base") == folder


def test_a_preset_s_name_in_python_and_in_commands() -> None:
    said = "bert-base is a preset here, an architecture without weights"
    with pytest.raises(CheckpointError, match=said):
        cutaway.load("bert-base")
    for command in (["info", "bert-base"], ["get", "bert-base"], ["classify", "a cat", "--model", "bert-base"]):
        assert said in commands.one_sentence(commands.run(command))


def test_a_model_that_comes_with_cutaway_need_not_be_fetched() -> None:
    done = commands.run(["get", "en-fr"])
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[0].endswith("en-fr")


def test_no_answer_in_time(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_ETAG_TIMEOUT", 0.2)
    hub.delay = 1.0
    with pytest.raises(CheckpointError, match=r"can't be fetched: the hub did not answer in time$"):
        fetch("owner/whole")


def test_an_error_of_the_hub(hub: Hub) -> None:
    hub.status = 500
    with pytest.raises(CheckpointError, match=r"can't be fetched: the hub answered with error 500$"):
        fetch("owner/whole")


@pytest.mark.usefixtures("hub")
def test_an_answer_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a hotel's login page gives."""
    monkeypatch.setattr("tests.support.hub_server._Handler._model", lambda self, *_: self._answer(200, b"<html>"))
    with pytest.raises(CheckpointError, match=r"can't be fetched: the hub's answer can't be used \(JSONDecodeError"):
        fetch("owner/whole")


@pytest.mark.usefixtures("hub")
def test_a_cache_that_can_not_be_written(cache: Path) -> None:
    cache.write_text("a file")
    with pytest.raises(CheckpointError, match=r"it can't be written to the cache \(.+\)$"):
        fetch("owner/whole")


@pytest.mark.parametrize("trouble", ["no connection", "status", "delay"])
def test_when_the_hub_is_down_the_cache_is_used_and_that_is_said(
    trouble: str, hub: Hub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = fetch("owner/whole")
    if trouble == "no connection":
        _point_to(monkeypatch, "http://127.0.0.1:9")
    hub.status = 503 if trouble == "status" else 200
    hub.delay = 1.0 if trouble == "delay" else 0.0
    monkeypatch.setattr(constants, "HF_HUB_ETAG_TIMEOUT", 0.2)
    with caplog.at_level(logging.WARNING, "cutaway"):
        assert fetch("owner/whole") == folder
    assert [record.message for record in caplog.records][-1].endswith("; using the copy of owner/whole in the cache")


@pytest.mark.parametrize("by", ["argument", "environment"])
def test_offline_asks_nobody(by: str, hub: Hub, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = lay_out(cache, "owner/whole", SMALL | WEIGHTS)
    if by == "environment":
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert fetch("owner/whole", offline=by == "argument") == folder
    with pytest.raises(CheckpointError) as caught:
        fetch("owner/shards", offline=by == "argument")
    assert str(caught.value) == (
        "there is no folder 'owner/shards', and owner/shards is not (or not wholly) in the cache; "
        "connect, and fetch it: cutaway get owner/shards"
    )
    assert hub.asked == []


@pytest.mark.parametrize(
    "files",
    [SMALL, SMALL | {"pytorch_model.bin": b""}, SMALL | dict(list(SHARDS.items())[:2]), WEIGHTS],
    ids=["no weights", "only a pickle", "a shard is missing", "no config"],
)
def test_half_a_model_in_the_cache_is_none(files: dict[str, bytes], cache: Path) -> None:
    lay_out(cache, "owner/half", files)
    with pytest.raises(CheckpointError, match=r"owner/half is not \(or not wholly\) in the cache"):
        fetch("owner/half", offline=True)


def test_what_was_laid_out_whole_is_found(cache: Path) -> None:
    folder = lay_out(cache, "owner/shards", SMALL | SHARDS)
    assert fetch("owner/shards", offline=True) == folder
    pickled = lay_out(cache, "owner/pickle", SMALL | {"pytorch_model.bin": b""})
    assert fetch("owner/pickle", offline=True, pickles=True) == pickled


def test_a_download_that_breaks_off_leaves_no_model(hub: Hub) -> None:
    hub.forbidden = "model.safetensors"
    with pytest.raises(CheckpointError, match="the hub answered with error 403"):
        fetch("owner/whole")
    with pytest.raises(CheckpointError, match="not wholly"):
        fetch("owner/whole", offline=True)
    hub.forbidden = ""
    assert contents(fetch("owner/whole")) == SMALL | WEIGHTS


@pytest.mark.parametrize(
    "name",
    [
        "../x", "..", "../../etc/passwd", "/etc/passwd", "owner/../x", "owner/..", "a\\b", "..\\x", "C:\\x", "owner//x",
        "owner/x/y", "~/x", "./x", "owner/.x", "owner/x.git", "a--b", "a..b", "owner/x\n", "", " ", "owner/xéx",
        "a" * 97,
    ],
)  # fmt: skip
def test_a_name_can_not_leave_the_cache(name: str, hub: Hub, cache: Path) -> None:
    with pytest.raises(CheckpointError, match=r"and names on the hub look like owner/name$"):
        fetch(name)
    with pytest.raises(CheckpointError, match=r"and names on the hub look like owner/name$"):
        fetch(name, offline=True)
    assert hub.asked == []
    assert not cache.exists()


@pytest.mark.parametrize("revision", ["../../../outside", "/outside", "..", "a/../b", "a\\b", "", "a//b", "-x", "a b"])
def test_a_revision_can_not_leave_the_cache(revision: str, hub: Hub, cache: Path) -> None:
    lay_out(cache, "owner/whole", SMALL | WEIGHTS)
    (cache.parent / "outside").write_text(COMMIT)  # read as a branch, it would lead to the model
    for offline in (False, True):
        with pytest.raises(CheckpointError, match="can't be a revision; it is a branch, a tag or a commit"):
            fetch("owner/whole", revision=revision, offline=offline)
    assert hub.asked == []


def test_huggingface_hub_is_imported_only_when_a_model_is_fetched() -> None:
    code = f"import sys, {ours.__name__}; sys.exit('huggingface_hub' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
