"""The same ids, offsets and texts as transformers, for every family, from the same files."""

import itertools
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cutaway.text.files import load_tokenizer
from cutaway.text.tokenizer import Encoding, Tokenizer
from tests.support.text_samples import SAMPLES
from tests.support.tokenizer_families import Family, keeps_first_blank

FAST = ["bert", "gpt2", "roberta", "t5", "albert", "llama"]
ALL = [*FAST, "marian"]


def load(folder: Path, config: dict[str, Any] | None = None) -> Tokenizer:
    tokenizer = load_tokenizer(folder, config)
    assert tokenizer is not None
    return tokenizer


def same(mine: Encoding, theirs: Any, text: object) -> None:
    assert mine.ids == theirs["input_ids"], text
    if "offset_mapping" in theirs:
        assert mine.offsets == theirs["offset_mapping"], text
        assert mine.segments == theirs["token_type_ids"], text
    assert len(mine.ids) == len(mine.tokens) == len(mine.offsets) == len(mine.segments)


def call(theirs: Any, *texts: str, **options: Any) -> Any:
    if theirs.is_fast:
        options |= {"return_offsets_mapping": True, "return_token_type_ids": True}
    return theirs(*texts, **options)


@pytest.mark.parametrize("name", ALL)
def test_ids_offsets_and_texts(families: dict[str, Family], name: str) -> None:
    mine, theirs = load(families[name].folder), families[name].theirs()
    for text in SAMPLES:
        if not keeps_first_blank(name, text):
            continue
        encoding = mine.encode(text)
        same(encoding, call(theirs, text), text)
        same(mine.encode(text, special=False), call(theirs, text, add_special_tokens=False), text)
        for skip in (True, False):
            expected = theirs.decode(encoding.ids, skip_special_tokens=skip)
            assert mine.decode(encoding.ids, skip_special=skip) == expected, text
        for token, number in zip(encoding.tokens, encoding.ids, strict=True):
            assert number == mine.special.unknown or token == theirs.convert_ids_to_tokens(number), text


@pytest.mark.parametrize("name", ALL)
def test_many_is_one_by_one(families: dict[str, Family], name: str) -> None:
    mine = load(families[name].folder)
    encodings = mine.encode_many(SAMPLES)
    assert encodings == [mine.encode(text) for text in SAMPLES]
    rows = [encoding.ids for encoding in encodings]
    assert mine.encode_ids(SAMPLES) == rows
    assert mine.encode_ids(SAMPLES, special=False) == [mine.encode(text, special=False).ids for text in SAMPLES]
    assert mine.encode_ids(SAMPLES, max_length=5) == [mine.encode(text, max_length=5).ids for text in SAMPLES]
    assert mine.decode_many(rows) == [mine.decode(row) for row in rows]


@pytest.mark.parametrize("name", FAST)
def test_pairs(families: dict[str, Family], name: str) -> None:
    mine, theirs = load(families[name].folder), families[name].theirs()
    pairs = list(itertools.pairwise(text for text in SAMPLES[2:] if keeps_first_blank(name, text)))
    for first, second in pairs:
        same(mine.encode(first, second), call(theirs, first, second), (first, second))
    assert mine.encode_many(pairs[:5]) == [mine.encode(*pair) for pair in pairs[:5]]


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("length", [3, 4, 7, 12])
def test_cutting(families: dict[str, Family], name: str, length: int) -> None:
    mine, theirs = load(families[name].folder), families[name].theirs()
    for text in SAMPLES:
        if not keeps_first_blank(name, text):
            continue
        encoding = mine.encode(text, max_length=length)
        assert encoding.ids == theirs(text, truncation=True, max_length=length)["input_ids"], text
        assert encoding.truncated == (len(mine.encode(text).ids) > length)
    if name != "marian" and length > 4:
        for first, second in [("Hello world", SAMPLES[10]), (SAMPLES[10], "A"), (SAMPLES[10], SAMPLES[11])]:
            expected = theirs(first, second, truncation="longest_first", max_length=length)["input_ids"]
            assert mine.encode(first, second, max_length=length).ids == expected


@pytest.mark.parametrize("name", ALL)
def test_special_tokens(families: dict[str, Family], name: str) -> None:
    mine, theirs = load(families[name].folder), families[name].theirs()
    roles = {
        "pad": "pad", "unknown": "unk", "start": "bos", "end": "eos", "mask": "mask", "separator": "sep",
        "classify": "cls",
    }  # fmt: skip
    for role, word in roles.items():
        assert getattr(mine.special, role) == getattr(theirs, f"{word}_token_id"), role
    assert mine.vocabulary_size == max(theirs.get_vocab().values()) + 1
    for token, number in theirs.get_vocab().items():
        assert mine.id_of(token) == number
        assert mine.token_of(number) == token
    assert mine.id_of("no such token") is None
    assert mine.token_of(10**6) is None
    assert mine.token_of(-1) is None


@pytest.fixture(scope="session")
def pairs_of_tokenizers(families: dict[str, Family]) -> dict[str, tuple[Tokenizer, Any]]:
    return {name: (load(families[name].folder), families[name].theirs()) for name in ALL}


SPICE = st.sampled_from(
    ["</s>", "<s>", "[MASK]", "<mask>", "<extra_id_1>", ">>fra<<", "  ", "▁", "\u0301", "\u200d", "\u1100\u1161\u11a8"]
)


@settings(max_examples=400, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.lists(st.one_of(st.text(max_size=12), SPICE), max_size=4).map("".join))
def test_any_text(pairs_of_tokenizers: dict[str, tuple[Tokenizer, Any]], text: str) -> None:
    for name, (mine, theirs) in pairs_of_tokenizers.items():
        if not keeps_first_blank(name, text):
            continue
        encoding = mine.encode(text)
        same(encoding, call(theirs, text), (name, text))
        assert mine.decode(encoding.ids) == theirs.decode(encoding.ids, skip_special_tokens=True), (name, text)
        if name == "marian":
            assert mine.encode_target(text).ids == theirs(text_target=text)["input_ids"], text


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("model_type", [True, False])
def test_saved_files_are_read_by_auto_tokenizer(
    families: dict[str, Family], name: str, model_type: bool, tmp_path: Path
) -> None:
    mine = load(families[name].folder)
    mine.save(tmp_path / "saved")
    (tmp_path / "saved" / "config.json").write_text(json.dumps({"model_type": name} if model_type else {}))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = transformers.AutoTokenizer.from_pretrained(str(tmp_path / "saved"))
    again = load(tmp_path / "saved", {"model_type": name})
    for text in SAMPLES:
        encoding = mine.encode(text)
        assert theirs(text)["input_ids"] == encoding.ids, text
        assert again.encode(text) == encoding
        for skip in (True, False):
            assert theirs.decode(encoding.ids, skip_special_tokens=skip) == mine.decode(encoding.ids, skip_special=skip)
    assert again.special == mine.special
    assert again.vocabulary_size == mine.vocabulary_size
    assert again.max_length == mine.max_length
    expected = families[name].theirs().model_input_names
    assert theirs.model_input_names == expected


@pytest.mark.parametrize("name", FAST)
def test_files_that_transformers_saved(families: dict[str, Family], name: str, tmp_path: Path) -> None:
    theirs = families[name].theirs()
    theirs.save_pretrained(str(tmp_path))
    assert (tmp_path / "tokenizer.json").exists()
    mine = load(tmp_path)
    for text in SAMPLES:
        same(mine.encode(text), call(theirs, text), text)


def test_marian_files_that_transformers_saved(families: dict[str, Family], tmp_path: Path) -> None:
    theirs = families["marian"].theirs()
    theirs.save_pretrained(str(tmp_path))
    mine = load(tmp_path)
    for text in SAMPLES:
        assert mine.encode(text).ids == theirs(text)["input_ids"], text


def test_kinds(families: dict[str, Family]) -> None:
    kinds = {name: load(families[name].folder).kind for name in ALL}
    assert kinds == {
        "bert": "WordPiece",
        "gpt2": "byte-level BPE",
        "roberta": "byte-level BPE",
        "t5": "unigram",
        "albert": "unigram",
        "llama": "BPE with byte fallback",
        "marian": "Marian",
    }
