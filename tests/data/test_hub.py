"""hf: data sets, from folders as `datasets` reads them; the hub itself is never asked."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import huggingface_hub.constants as constants
import pytest

from cutaway.data.hub import DataSet
from cutaway.data.pairs import Pair, PairSpec, digest, read_pairs
from cutaway.data.rows import BadRow
from cutaway.errors import InputError
from tests.support.data_files import PAIRS, jsonl, nested, write, write_parquet


@pytest.fixture(autouse=True)
def _alone(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No network, and nothing is written into the user's cache."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("hf-cache"))
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)


def texts(found: Iterator[Pair | BadRow]) -> list[tuple[str, str]]:
    return [(pair.source, pair.target) for pair in found if isinstance(pair, Pair)]


def hub(name: object, *columns: str) -> PairSpec:
    return PairSpec(pairs=(f"hf:{name}",), columns=columns)


def test_names() -> None:
    assert DataSet.parse("hf:wmt/wmt14") == DataSet("wmt/wmt14", None, "train")
    assert DataSet.parse("hf:wmt/wmt14:fr-en:test") == DataSet("wmt/wmt14", "fr-en", "test")
    assert DataSet.parse("hf:..::dev") == DataSet("..", None, "dev")
    for text in ("hf:", "hf:wmt/wmt14:fr-en", "hf:a:b:c:d"):
        with pytest.raises(
            InputError, match=f"'{text}' names no data set: write hf:owner/name, hf:owner/name:config:split"
        ):
            DataSet.parse(text)


def test_a_folder_of_parquet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_parquet(tmp_path / "train-0.parquet", PAIRS[:2])
    write_parquet(tmp_path / "train-1.parquet", PAIRS[2:])
    write_parquet(tmp_path / "test-0.parquet", PAIRS[:1])
    assert texts(read_pairs(hub(tmp_path))) == PAIRS
    assert texts(read_pairs(hub(tmp_path, "fr", "en"))) == [(b, a) for a, b in PAIRS]
    assert texts(read_pairs(hub(f"{tmp_path}::test"))) == PAIRS[:1]
    first = next(read_pairs(hub(f"{tmp_path}:default:train")))
    assert first == Pair(*PAIRS[0], f"hf:{tmp_path}:default:train:1")
    monkeypatch.chdir(tmp_path.parent)
    assert texts(read_pairs(hub(f"./{tmp_path.name}"))) == PAIRS


def test_translations(tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", nested(PAIRS))
    assert texts(read_pairs(hub(tmp_path))) == PAIRS
    assert texts(read_pairs(hub(tmp_path, "translation.fr", "translation.en"))) == [(b, a) for a, b in PAIRS]


def test_saved_to_disk(tmp_path: Path) -> None:
    records = {"id": ["x"] * 5, "translation": [{"en": a, "fr": b} for a, b in PAIRS]}
    features = datasets.Features(id=datasets.Value("string"), translation=datasets.Translation(("en", "fr")))
    datasets.Dataset.from_dict(records, features=features).save_to_disk(tmp_path / "one")
    assert texts(read_pairs(hub(tmp_path / "one"))) == PAIRS
    with pytest.raises(InputError, match="one is one data set without configs and splits; write hf:.*one"):
        read_pairs(hub(f"{tmp_path / 'one'}::test"))


@pytest.mark.parametrize("ranks", [1, 3])
def test_ranks_share_all_rows(tmp_path: Path, ranks: int) -> None:
    pairs = [(f"en {i}", f"fr {i}") for i in range(1100)]
    write_parquet(tmp_path / "train.parquet", pairs, group=200)
    for rank in range(ranks):
        assert texts(read_pairs(hub(tmp_path), rank, ranks)) == pairs[rank::ranks]


def test_columns_that_are_not_there(tmp_path: Path) -> None:
    write_parquet(tmp_path / "train.parquet", PAIRS)
    with pytest.raises(InputError, match=r"hf:.*: no column 'de' \(known: en, fr, n\)"):
        read_pairs(hub(tmp_path, "en", "de"))
    write(tmp_path / "train.jsonl", b'{"en": "a", "n": 1}\n')
    (tmp_path / "train.parquet").unlink()
    with pytest.raises(InputError, match=r"hf:.* has 1 column of text, expected 2 \(columns found: en, n\); name the"):
        read_pairs(hub(tmp_path))


def test_cells_that_are_no_text_are_bad_rows(tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", jsonl(PAIRS) + b'{"id": 9, "en": "a", "fr": null}\n')
    found = list(read_pairs(hub(tmp_path)))
    assert found[-1] == BadRow("not text", f"hf:{tmp_path}:6", "a cell holds NoneType, expected a text")
    assert texts(iter(found)) == PAIRS


def test_the_library_s_errors_are_one_sentence(tmp_path: Path) -> None:
    write_parquet(tmp_path / "train.parquet", PAIRS)
    way_out = "; write it as hf:owner/name or hf:owner/name:config:split"
    with pytest.raises(InputError, match=rf"hf:.*::dev can't be read \(Bad split: dev. .*'train'.*\){way_out}"):
        read_pairs(hub(f"{tmp_path}::dev"))
    with pytest.raises(InputError, match=rf"can't be read \(BuilderConfig 'fr-en' not found. .*\){way_out}"):
        read_pairs(hub(f"{tmp_path}:fr-en:train"))
    with pytest.raises(InputError, match=r"there is no folder './nothing', and names on the hub look like owner/name"):
        read_pairs(hub("./nothing"))
    with pytest.raises(
        InputError, match="^hf:nobody/nothing can't be read: the hub can't be reached; connect, or give files of it"
    ):
        read_pairs(hub("nobody/nothing"))
    (tmp_path / "train.parquet").write_bytes(b"PAR1")
    with pytest.raises(InputError, match=rf"can't be read \(.*\){way_out}"):
        read_pairs(hub(tmp_path))


def test_without_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: Any, **__: Any) -> Any:
        raise ConnectionError("Couldn't reach 'wmt/wmt14' on the Hub (LocalEntryNotFoundError)")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    monkeypatch.setattr(datasets, "load_dataset_builder", unreachable)
    for use in (read_pairs, digest):
        with pytest.raises(
            InputError, match=r"^hf:wmt/wmt14 can't be read: the hub can't be reached; connect, or give"
        ):
            use(hub("wmt/wmt14"))


def test_without_a_network_the_hub_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library would ask six times, and log each."""
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    for name in ("load_dataset", "load_dataset_builder"):
        monkeypatch.setattr(datasets, name, lambda *_, **__: pytest.fail("asked again"))
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    for use in (read_pairs, digest):
        with pytest.raises(InputError, match=r"^hf:wmt/wmt14 can't be read: the hub can't be reached; connect"):
            use(hub("wmt/wmt14"))


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError, match=r"hf:a/b is read with the datasets library: pip install 'cutaway\[data\]'"):
        read_pairs(hub("a/b"))


def test_the_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "train.jsonl", jsonl(PAIRS))
    first = digest(hub(tmp_path))
    assert digest(hub(tmp_path)) == first
    assert digest(hub(f"{tmp_path}::test")) != first
    write(tmp_path / "train.jsonl", jsonl(PAIRS[:2]))
    assert digest(hub(tmp_path)) != first

    class Builder:
        hash = "commit 1"

    monkeypatch.setattr(datasets, "load_dataset_builder", lambda *_: Builder)
    before = digest(hub("a/b"))
    assert digest(hub("a/c")) != before
    Builder.hash = "commit 2"
    assert digest(hub("a/b")) != before
