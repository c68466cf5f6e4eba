"""Marian: SentencePiece's own segmentation, ids from vocab.json, language codes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cutaway.errors import CheckpointError
from cutaway.text.files import load_tokenizer
from cutaway.text.marian import MarianTokenizer
from cutaway.text.segment import Segmenter
from cutaway.text.sentencepiece import parse
from tests.support.text_samples import CORPUS, SAMPLES
from tests.support.tokenizer_families import Family, pieces

Copy = Callable[..., Family]


def load(folder: Path) -> MarianTokenizer:
    tokenizer = load_tokenizer(folder)
    assert isinstance(tokenizer, MarianTokenizer)
    return tokenizer


def test_unknown_pieces_end_and_pad(families: dict[str, Family]) -> None:
    mine = load(families["marian"].folder)
    encoding = mine.encode("the cat")
    assert encoding.tokens[0] == "▁the"  # a piece of source.spm that vocab.json lacks
    assert encoding.ids[0] == mine.special.unknown == 1
    assert encoding.ids[-1] == mine.special.end == 0
    assert mine.special.pad == mine.vocabulary_size - 1
    assert mine.special.start is None
    assert mine.max_length == 512


def test_language_codes(families: dict[str, Family]) -> None:
    mine = load(families["marian"].folder)
    plain = mine.encode(" Good morning.").ids
    assert mine.encode(">>fra<< Good morning.").ids == [mine.id_of(">>fra<<"), *plain]
    assert mine.encode(">>eng<< Good morning.").ids == [mine.special.unknown, *plain]
    assert mine.id_of(">>fra<<") not in mine.encode("Say >>fra<<").ids


def test_the_target_has_its_own_segmentation(families: dict[str, Family]) -> None:
    mine, theirs = load(families["marian"].folder), families["marian"].theirs()
    differing = 0
    for text in [*SAMPLES, *CORPUS]:
        target = mine.encode_target(text)
        assert target.ids == theirs(text_target=text)["input_ids"], text
        differing += target.ids != mine.encode(text).ids
    assert differing > 20
    assert mine.encode_many(SAMPLES, target=True) == [mine.encode_target(text) for text in SAMPLES]


def test_offsets_cover_the_text(families: dict[str, Family]) -> None:
    mine = load(families["marian"].folder)
    text = "Hello  world, cafe\u0301"
    encoding = mine.encode(text)
    assert encoding.offsets[-1] == (0, 0)
    words = [text[start:end] for start, end in encoding.offsets[:-1]]
    assert "".join(words).replace(" ", "") == text.replace(" ", "")
    tokens, offsets = _tokens(mine, "x\x01y \x01 the end")  # the rules drop \x01, and that shifts nothing
    assert offsets[tokens.index("▁the")] == (3, 9)  # its space is the first of the two


def _tokens(mine: MarianTokenizer, text: str) -> tuple[list[str], list[tuple[int, int]]]:
    encoding = mine.encode(text, special=False)
    return encoding.tokens, encoding.offsets


def test_decoding_generated_ids(families: dict[str, Family]) -> None:
    mine, theirs = load(families["marian"].folder), families["marian"].theirs()
    size = mine.vocabulary_size
    for seed in range(40):
        ids = [(seed * 7919 + i * i * 31) % size for i in range(12)]
        for skip in (True, False):
            assert mine.decode(ids, skip_special=skip) == theirs.decode(ids, skip_special_tokens=skip), ids


def test_pair_is_one_text(families: dict[str, Family]) -> None:
    mine, theirs = load(families["marian"].folder), families["marian"].theirs()
    assert mine.encode("the cat", "a dog").ids == theirs("the cat", "a dog")["input_ids"]


def test_two_vocabularies(copy: Copy) -> None:
    family = copy("marian", {"separate_vocabs": True})
    mine = load(_with_target_vocabulary(family))
    theirs = family.theirs()
    for text in SAMPLES:
        assert mine.encode(text).ids == theirs(text)["input_ids"], text
        target = theirs(text_target=text)["input_ids"]
        assert mine.encode_target(text).ids == target, text
        assert mine.decode(target) == theirs.decode(target, skip_special_tokens=True), text


def _with_target_vocabulary(family: Family) -> Path:
    """The folder, with a target vocabulary of its own: the same tokens in another order."""
    vocabulary = json.loads((family.folder / "vocab.json").read_text())
    fixed = {token: vocabulary[token] for token in ("</s>", "<unk>", "<pad>")}
    free = sorted(set(vocabulary.values()) - set(fixed.values()), reverse=True)
    rest = dict(zip((token for token in vocabulary if token not in fixed), free, strict=True))
    (family.folder / "target_vocab.json").write_text(json.dumps(fixed | rest))
    return family.folder


@pytest.mark.parametrize("missing", ["target.spm", "vocab.json"])
def test_missing_files(copy: Copy, missing: str) -> None:
    family = copy("marian")
    (family.folder / missing).unlink()
    with pytest.raises(CheckpointError, match=r"lacks one of Marian's files: source\.spm, target\.spm, vocab\.json"):
        load_tokenizer(family.folder)


@pytest.fixture(scope="session")
def segmenters() -> list[tuple[dict[str, Any], Segmenter, Any]]:
    made = []
    for options in (
        {"model_type": "unigram", "normalization_rule_name": "nmt_nfkc"},
        {"model_type": "unigram", "normalization_rule_name": "nfkc_cf", "remove_extra_whitespaces": False},
        {"model_type": "unigram", "add_dummy_prefix": False, "byte_fallback": True},
        {"model_type": "unigram", "treat_whitespace_as_suffix": True},
        {"model_type": "unigram", "user_defined_symbols": ["cat", "<x>"]},
        {"model_type": "bpe", "normalization_rule_name": "nmt_nfkc"},
        {"model_type": "bpe", "normalization_rule_name": "identity", "byte_fallback": True},
    ):
        data = pieces(vocab_size=560 if "byte_fallback" in options else 300, **options)
        reference = sentencepiece.SentencePieceProcessor(model_proto=data)
        made.append((options, Segmenter(parse(data, Path("x.model"))), reference))
    return made


@settings(max_examples=400, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    st.one_of(
        st.sampled_from([*SAMPLES, *CORPUS]),
        st.text(max_size=30),
        st.text("e\u0301\u1100\u1161\u11a8 ﬁ▁a", max_size=12),
    )
)
def test_segments_equal_sentencepiece(segmenters: list[tuple[dict[str, Any], Segmenter, Any]], text: str) -> None:
    for options, mine, theirs in segmenters:
        found = [piece for piece, _ in mine.split(text)]
        assert found == theirs.encode(text, out_type=str), (options, text)
        assert mine.join(found) == theirs.decode_pieces(found), (options, text)
