"""A tokenizer.json that asks for all memory or for hours is refused in one sentence, before anything is encoded."""

import base64
import json
import resource
import time
from pathlib import Path
from typing import Any

import pytest

from cutaway.errors import CheckpointError, InputError
from cutaway.text.files import load_tokenizer
from cutaway.text.tokenizer import Tokenizer

LETTERS = {letter: i for i, letter in enumerate("abcdefghijklmnopqrstuvwxyz ▁")}
BPE: dict[str, Any] = {"type": "BPE", "vocab": LETTERS, "merges": []}
REPLACE = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 20}
PADDING = {"direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0, "pad_token": "a"}
TRUNCATION = {"direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 0}
A, B = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
X = {"SpecialToken": {"id": "x", "type_id": 0}}


def sequence(kind: str, *steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", kind: list(steps)}


def template(single: list[Any], n_ids: int = 1) -> dict[str, Any]:
    special = {"x": {"id": "x", "ids": [0] * n_ids, "tokens": ["a"] * n_ids}}
    return {"type": "TemplateProcessing", "single": single, "pair": [A, B], "special_tokens": special}


def added(content: str, normalized: bool = False, number: int = len(LETTERS)) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "special"), False)
    return {"id": number, "content": content, "normalized": normalized} | flags


def split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def charsmap(replacement: bytes) -> str:
    """One rule: the letter a becomes `replacement`."""
    units = [1 << 10] + [0] * 255
    units[1 ^ ord("a")] = ord("a") | 1 << 8 | 1 << 10
    units[1 ^ ord("a") ^ 1] = 1 << 31
    trie = b"".join(unit.to_bytes(4, "little") for unit in units)
    return base64.b64encode(len(trie).to_bytes(4, "little") + trie + replacement + b"\0").decode()


@pytest.mark.parametrize("blob", [b"\xfc\xff\xff\xff", b"\x08\0\0\0" + b"\xff" * 8, b"\1\0", b""])
def test_a_charsmap_is_checked_before_the_library_reads_it(
    blob: bytes, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Of 4 bytes it took 8 GB, or ended the process where there were none; the others panicked on stderr."""
    charsmap = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(blob).decode()}
    with pytest.raises(CheckpointError, match=r"tokenizer.json is no tokenizer .*charsmap"):
        load(tmp_path, normalizer=sequence("normalizers", charsmap))
    assert capfd.readouterr().err == ""


def written(folder: Path, **parts: Any) -> Path:
    empty = dict.fromkeys(("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder"))
    whole = {"version": "1.0", "added_tokens": [], **empty, "model": BPE, **parts}
    (folder / "tokenizer.json").write_text(json.dumps(whole))
    return folder


def load(folder: Path, **parts: Any) -> Tokenizer:
    found = load_tokenizer(written(folder, **parts))
    assert found is not None
    return found


@pytest.mark.parametrize(
    "parts",
    [
        {"padding": PADDING | {"strategy": {"Fixed": 10**9}}},
        {"padding": PADDING | {"strategy": "BatchLongest", "pad_to_multiple_of": 10**9}},
        {"truncation": TRUNCATION},
    ],
)
def test_padding_and_truncation_of_the_file_are_not_used(parts: dict[str, Any], tmp_path: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert load(tmp_path, **parts).encode("abc").ids == [0, 1, 2]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # kilobytes; padding took 4.5 GB


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (
            {"normalizer": sequence("normalizers", *[REPLACE] * 5)},
            "its normalizer can make a text 8,000 times as long; expected 1,000 times at most",
        ),
        ({"normalizer": REPLACE | {"pattern": {"String": ""}, "content": "a" * 2000}}, "2,001 times as long"),
        ({"normalizer": REPLACE | {"pattern": {"Regex": "."}, "content": "a" * 2000}}, "2,000 times as long"),
        ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": charsmap(b"a" * 3000)}}, "3,000 times as long"),
        ({"normalizer": {"type": "Prepend", "prepend": "a" * 2000}}, "has a Prepend of more than 1,000 characters"),
        ({"normalizer": sequence("normalizers", *[{"type": "NFC"}] * 200)}, "its normalizer has 200 steps"),
        ({"pre_tokenizer": {"type": "FixedLength", "length": 0}}, "cuts text into pieces of no length"),
        ({"post_processor": template([X] * 50 + [A], n_ids=50)}, "puts 2,500 tokens around a text"),
        ({"post_processor": template([A] * 3)}, "takes 3 texts; expected 1,000 at most, and each text once"),
        ({"decoder": sequence("decoders", *[REPLACE] * 5)}, "its decoder can make a text 8,000 times as long"),
        ({"decoder": {"type": "Strip", "content": "a", "start": 10**9, "stop": 0}}, "a Strip of more than 1,000"),
        ({"model": BPE | {"continuing_subword_prefix": "a" * 2000}}, "its continuing_subword_prefix is longer than"),
        (
            {"model": {"type": "WordPiece", "unk_token": "a", "continuing_subword_prefix": "##",
                       "max_input_chars_per_word": 10**9, "vocab": LETTERS}},
            "its max_input_chars_per_word is 1000000000; expected 1,000 at most",
        ),
        (
            {"model": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["a" * 2000, -1.0]]}},
            "it has a piece of 2,000 characters",
        ),
        ({"added_tokens": [added("a" * 2000)]}, "it adds 1 tokens; expected 200,000 at most, of 1,000 characters"),
        (
            {"added_tokens": [added("a" * 900_000, normalized=True)], "normalizer": REPLACE | {"content": "a" * 900}},
            "its normalizer makes too much of its 1 added tokens",
        ),
        (
            {"added_tokens": [added("a" * 40, normalized=True)],
             "normalizer": REPLACE | {"pattern": {"Regex": "(a+)+$"}}},
            r"its normalizer changes added tokens by the regular expression '\(a\+\)\+\$'",
        ),
    ],
)  # fmt: skip
def test_what_asks_for_too_much_is_refused(parts: dict[str, Any], message: str, tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(CheckpointError, match=message) as caught:
        load(tmp_path, **parts)
    assert str(caught.value).startswith(f"{tmp_path / 'tokenizer.json'} asks for too much: ")
    assert time.monotonic() - began < 2


def test_small_files_of_many_values_are_refused_unread(tmp_path: Path) -> None:
    folder = written(tmp_path)
    text = (folder / "tokenizer.json").read_text()
    (folder / "tokenizer.json").write_text(text[:-1] + ', "more": [' + "[]," * 3_000_000 + "0]}")
    with pytest.raises(CheckpointError, match="up to 6,000,0.. values, of 4,000,000 at most"):
        load_tokenizer(folder)


def test_what_published_tokenizers_have_is_read(tmp_path: Path) -> None:
    steps = [
        {"type": "Replace", "pattern": {"String": "``"}, "content": '"'},
        {"type": "NFKD"},
        {"type": "Precompiled", "precompiled_charsmap": charsmap(b"b" * 33)},
        {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
    ]
    found = load(
        tmp_path,
        normalizer=sequence("normalizers", *steps),
        added_tokens=[added("zzz", normalized=True)],
        post_processor=template([X, A, X]),
    )
    assert found.encode("c  c").ids == [0, 2, LETTERS["▁"], 2, 0]


def test_patterns_of_the_file_do_not_run_while_it_is_loaded(tmp_path: Path) -> None:
    found = load(tmp_path, pre_tokenizer=split("(?:[a-z ]+)+$|x"))
    assert found.encode("ab").ids == [0, 1]


def test_a_pattern_that_gives_up_is_one_sentence(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    found = load(tmp_path, pre_tokenizer=split("(a+)+$"))
    for encode in (found.encode, lambda text: found.encode_many([text]), lambda text: found.encode_ids([text])):
        with pytest.raises(InputError, match="the model's tokenizer fails on this input: Onig: Regex search error"):
            encode("a" * 40 + "!")
    capfd.readouterr()  # the library writes of its panics on stderr
