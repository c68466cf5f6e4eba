"""Broken, hostile and missing files: one sentence that names the file, never a traceback from inside."""

import contextlib
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cutaway.errors import CheckpointError
from cutaway.text import settings as settings_module
from cutaway.text.files import load_tokenizer
from cutaway.text.sentencepiece import parse
from tests.support.tokenizer_families import Family

Copy = Callable[..., Family]


def test_no_tokenizer(tmp_path: Path) -> None:
    assert load_tokenizer(tmp_path) is None
    (tmp_path / "tokenizer_config.json").write_text("{}")
    assert load_tokenizer(tmp_path) is None


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer_config.json", b"[1]", "tokenizer_config.json holds a list; expected an object"),
        ("tokenizer_config.json", b"{", "tokenizer_config.json is no valid JSON"),
        ("tokenizer_config.json", b"[" * 100000, "tokenizer_config.json is no valid JSON"),
        ("tokenizer_config.json", b'{"x": "\xff"}', "tokenizer_config.json is no UTF-8 text: byte 7"),
        ("tokenizer_config.json", b'{"do_lower_case": "no"}', "do_lower_case is 'no'; expected true or false"),
        ("tokenizer_config.json", b'{"model_max_length": -3}', "model_max_length is -3; expected a positive number"),
        ("tokenizer_config.json", b'{"unk_token": 3}', "unk_token is 3; expected a text"),
        ("tokenizer_config.json", b'{"cls_token": null}', "there is no cls_token, but this tokenizer needs one"),
        (
            "tokenizer_config.json",
            b'{"mask_token": {"content": "x", "lstrip": 1}}',
            "lstrip is 1; expected true or false",
        ),
        ("tokenizer_config.json", b'{"added_tokens_decoder": []}', r"added_tokens_decoder is \[\]; expected an object"),
        ("tokenizer_config.json", b'{"added_tokens_decoder": {"x": {}}}', "has the key 'x'; expected a token id"),
        ("tokenizer_config.json", b'{"added_tokens_decoder": {"1": {}}}', "token 1 is {}; expected a text"),
        ("tokenizer_config.json", b'{"extra_special_tokens": 1}', "extra_special_tokens is 1; expected a list"),
        ("tokenizer_config.json", b'{"chat_template": 1}', "chat_template is int; expected a text"),
        ("tokenizer_config.json", b'{"tokenizer_class": "XLNetTokenizer"}', "no recipe 'XLNetTokenizer'"),
        (
            "tokenizer_config.json",
            b'{"unk_token": "%s"}' % (b"x" * 2000),
            "unk_token has 2,000 characters; expected 1,0",
        ),
        (
            "tokenizer_config.json",
            b'{"extra_special_tokens": [%s]}' % b",".join(b'"%d"' % i for i in range(200_001)),
            "adds 200,001 tokens; expected 200,000 at most",
        ),
        ("added_tokens.json", b'{"%s": 1}' % (b"x" * 2000), "adds 1 tokens; expected 200,000 at most, of 1,000 char"),
        ("added_tokens.json", b'{"x": "y"}', "added_tokens.json: 'x' has the id 'y'; expected a number from 0"),
        ("vocab.txt", b"a\nb\n", r"vocab.txt has no '\[UNK\]'"),
        ("vocab.txt", b"\xff", "vocab.txt is no UTF-8 text"),
        ("tokenizer.json", b"{}", "tokenizer.json is no tokenizer that the tokenizers library can read"),
        ("tokenizer.json", b"\xff\x00", "tokenizer.json is no tokenizer"),
        ("vocab.json", b'{"a": true}', "vocab.json: 'a' has the id True; expected a number from 0"),
        ("vocab.json", b'{"a": -1}', "vocab.json: 'a' has the id -1"),
        ("vocab.json", b'{"a": 1, "b": 1}', "vocab.json gives one id to several tokens"),
        ("vocab.json", b'{"a": 0}', "which vocab.json does not hold"),
        ("merges.txt", b"#version\na b c\n", "merges.txt, line 2: 'a b c' is no pair of tokens"),
    ],
)
def test_broken_files(copy: Copy, name: str, content: bytes, message: str) -> None:
    family = copy("gpt2" if name in ("vocab.json", "merges.txt") else "bert")
    (family.folder / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        load_tokenizer(family.folder)


def test_too_large(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings_module, "LIMIT", 100)
    with pytest.raises(CheckpointError, match=r"vocab\.txt has \d+ bytes; no tokenizer needs more than 100"):
        load_tokenizer(copy("bert").folder)


def test_links_as_in_the_hubs_cache(families: dict[str, Family], tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "main"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    (blobs / "abc").write_bytes((families["bert"].folder / "vocab.txt").read_bytes())
    (snapshot / "vocab.txt").symlink_to("../../blobs/abc")
    assert load_tokenizer(snapshot) is not None


def test_nothing_is_run_and_no_name_is_a_path(copy: Copy, tmp_path: Path) -> None:
    (tmp_path / "evil.py").write_text("raise SystemExit")
    (tmp_path / "other.txt").write_text("[UNK]\nsecret\n")
    family = copy("bert", {"auto_map": {"AutoTokenizer": ["evil.X", None]}, "vocab_file": "../other.txt"})
    plain = load_tokenizer(copy("bert").folder)
    found = load_tokenizer(family.folder)
    assert found is not None
    assert plain is not None
    assert found.encode("secret") == plain.encode("secret")


def test_the_config_tells_families_apart(families: dict[str, Family]) -> None:
    for name, config in (
        ("gpt2", {"model_type": "gpt2"}),
        ("roberta", {"model_type": "roberta"}),
        ("roberta", {"tokenizer_class": "RobertaTokenizerFast"}),
        ("t5", {"model_type": "t5"}),
        ("t5", {"model_type": "vit"}),
    ):
        expected, found = load_tokenizer(families[name].folder), load_tokenizer(families[name].folder, config)
        assert expected is not None
        assert found is not None
        assert found.encode("the cat") == expected.encode("the cat")
    with pytest.raises(CheckpointError, match="vocabulary files fit no recipe 't5'"):
        load_tokenizer(families["bert"].folder, {"model_type": "t5"})
    with pytest.raises(CheckpointError, match="is a unigram model, which llama models don't use"):
        load_tokenizer(families["t5"].folder, {"model_type": "llama"})


def test_chat_template_files(copy: Copy) -> None:
    several = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    for given_settings, expected in (({"chat_template": "one"}, "one"), ({"chat_template": several}, "d"), ({}, None)):
        tokenizer = load_tokenizer(copy("bert", given_settings).folder)
        assert tokenizer is not None
        assert tokenizer.chat_template == expected
    family = copy("bert", {"chat_template": "one"})
    (family.folder / "chat_template.jinja").write_text("two")
    tokenizer = load_tokenizer(family.folder)
    assert tokenizer is not None
    assert tokenizer.chat_template == "two"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "holds no pieces"),
        (b"\x0a", "ends inside a number"),
        (b"\x0a\x7fabc", "a field of 127 bytes begins at byte 2 of 5"),
        (b"\xff" * 20, "has no end"),
        (b"\x0b", "begins a field of unknown kind 3"),
        (b"\x08\x01", "piece is a number"),
        (b"\x0a\x03\x0a\x01\xff", "is no UTF-8"),
        (b"\x0a\x00", "has a piece '' with score"),
        (b"\x0a\x08\x0a\x01a\x15" + struct.pack("<f", float("nan")), "has a piece 'a' with score nan"),
        (b"\x0a\x03\x0a\x01a", "has 0 unknown pieces; expected one"),
        (b"\x0a\x05\x0a\x01a\x18\x02\x12\x02\x18\x04", "its model_type is 4"),
        (b"\x0a\x05\x0a\x01a\x18\x02\x1a\x06\x12\x04\x08\x00\x00\x00", "promises 8 bytes of rules"),
        (b"\x0a\x05\x0a\x01a\x18\x02\x1a\x0a\x12\x08\x04\x00\x00\x00\x00\x04\x00\x00", "leads outside"),
    ],
)
def test_broken_sentencepiece(data: bytes, message: str) -> None:
    with pytest.raises(CheckpointError, match=f"x.model is no SentencePiece model: .*{message}"):
        parse(data, Path("x.model"))


@settings(max_examples=200, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_damaged_sentencepiece(families: dict[str, Family], data: Any) -> None:
    whole = (families["t5"].folder / "spiece.model").read_bytes()
    place = data.draw(st.integers(0, len(whole) - 1))
    broken = whole[:place] + data.draw(st.binary(max_size=3)) + whole[place + data.draw(st.integers(0, 3)) :]
    with contextlib.suppress(CheckpointError):
        parse(broken, Path("x.model"))


def test_saving_where_nothing_can_be_written(families: dict[str, Family], tmp_path: Path) -> None:
    tokenizer = load_tokenizer(families["bert"].folder)
    assert tokenizer is not None
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="can't write the tokenizer to"):
        tokenizer.save(tmp_path / "file")
    tokenizer.save(tmp_path / "new" / "folder")
    assert sorted(path.name for path in (tmp_path / "new" / "folder").iterdir()) == [
        "tokenizer.json", "tokenizer_config.json",
    ]  # fmt: skip
    assert json.loads((tmp_path / "new" / "folder" / "tokenizer_config.json").read_text())["mask_token"] == "[MASK]"
