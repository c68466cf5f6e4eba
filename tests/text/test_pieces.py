"""Text shown while it is written: the pieces join to the whole, and none is taken back."""

import time
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cutaway.text.files import load_tokenizer
from cutaway.text.streaming import StopStrings, StreamingDecoder, text_after
from cutaway.text.tokenizer import Tokenizer
from cutaway.text.train import train_tokenizer
from tests.support.text_samples import CORPUS, SAMPLES, asked
from tests.support.tokenizer_families import Family

FAMILIES = ["bert", "gpt2", "roberta", "t5", "albert", "llama", "marian"]
KINDS = ["bpe", "elisions", "wordpiece", "unigram", "byte", "character"]


@pytest.fixture(scope="session")
def tokenizers(families: dict[str, Family]) -> dict[str, Tokenizer]:
    found = {name: load_tokenizer(families[name].folder) for name in FAMILIES}
    trained = {kind: train_tokenizer(CORPUS, vocabulary=600, **asked(kind)) for kind in KINDS}
    made = {name: tokenizer for name, tokenizer in found.items() if tokenizer is not None}
    assert len(made) == len(FAMILIES)
    return made | trained


def joined(tokenizer: Tokenizer, ids: list[int], after: list[int]) -> str:
    pieces = StreamingDecoder(tokenizer, after)
    return "".join([*map(pieces.add, ids), pieces.finish()])


@pytest.mark.parametrize("name", FAMILIES + KINDS)
def test_pieces_of_any_tokens_join_to_the_whole_text(tokenizers: dict[str, Tokenizer], name: str) -> None:
    """Random tokens, so bytes that are no characters, special tokens in the middle, spaces anywhere."""
    tokenizer = tokenizers[name]
    a_token = st.integers(0, tokenizer.vocabulary_size - 1)
    low = st.integers(0, min(300, tokenizer.vocabulary_size - 1))  # special tokens and bytes, more often than by chance

    @given(st.lists(a_token | low, max_size=80), st.lists(a_token | low, max_size=12))
    @settings(max_examples=80, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    def holds(ids: list[int], after: list[int]) -> None:
        whole = tokenizer.decode([*after, *ids])
        assert joined(tokenizer, ids, []) == tokenizer.decode(ids)
        if not tokenizer.unsettled and "\ufffd" not in whole:
            assert joined(tokenizer, ids, after) == text_after(tokenizer, after, ids)
            assert tokenizer.decode(after) + text_after(tokenizer, after, ids) == whole

    holds()


@pytest.mark.parametrize("name", FAMILIES + KINDS)
def test_pieces_of_texts_join_to_the_whole_text(tokenizers: dict[str, Tokenizer], name: str) -> None:
    tokenizer = tokenizers[name]
    for text in [*SAMPLES, *CORPUS[:20]]:
        ids = tokenizer.encode(text, special=False).ids
        for place in (0, 1, len(ids) // 2):
            after, rest = ids[:place], ids[place:]
            assert joined(tokenizer, rest, after) == text_after(tokenizer, after, rest), (text, place)


@pytest.mark.parametrize("name", ["gpt2", "llama", "byte", "character"])
def test_a_character_comes_whole(tokenizers: dict[str, Tokenizer], name: str) -> None:
    tokenizer = tokenizers[name]
    text = "naïve 😀 日本 👩‍👩‍👧 end"
    pieces = StreamingDecoder(tokenizer)
    given = [pieces.add(token) for token in tokenizer.encode(text, special=False).ids]
    assert all("\ufffd" not in piece for piece in given)
    assert "".join(given) + pieces.finish() == text


def test_a_continuation_keeps_its_space(tokenizers: dict[str, Tokenizer]) -> None:
    for name in ("t5", "llama", "gpt2", "unigram"):
        tokenizer = tokenizers[name]
        before = tokenizer.encode("the cat", special=False).ids
        both = tokenizer.encode("the cat sat", special=False).ids
        assert both[: len(before)] == before, name
        assert joined(tokenizer, both[len(before) :], before) == " sat", name


def test_tidied_spaces_are_waited_for(copy: Callable[..., Family]) -> None:
    tokenizer = load_tokenizer(copy("bert", {"clean_up_tokenization_spaces": True}).folder)
    assert tokenizer is not None
    assert tokenizer.unsettled
    for text in ["do n't you 've , he 's . a ' b ' c n 't !", "we ' re ' ' ' m . . ."]:
        ids = tokenizer.encode(text, special=False).ids
        assert joined(tokenizer, ids, []) == tokenizer.decode(ids)


def test_the_work_for_a_token_does_not_grow(tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizers["gpt2"]
    ids = tokenizer.encode(" ".join(CORPUS), special=False).ids * 3
    assert len(ids) > 3000
    ids[99:99] = [tokenizer.vocabulary_size - 1] * 500  # <|endoftext|>, which says nothing
    pieces, longest = StreamingDecoder(tokenizer), 0
    started = time.perf_counter()
    for token in ids:
        pieces.add(token)
        longest = max(longest, len(pieces._ids))
    assert longest <= 64
    assert time.perf_counter() - started < 20


def test_text_until_a_stop() -> None:
    until = StopStrings(["\n\n", "END"])
    given = [until.add(piece) for piece in ["a\n", "b E", "N", "x\nE", "ND of", "more"]]
    assert given == ["a", "\nb ", "", "ENx\n", "", ""]
    assert until.ended
    assert until.finish() == ""
    until = StopStrings(["END"])
    assert until.add("the EN") + until.finish() == "the EN"
    assert StopStrings([]).add("as it is") == "as it is"


@given(st.text("ab", max_size=30), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3), st.data())
@settings(max_examples=200, deadline=None, derandomize=True)
def test_until_finds_the_first_stop_however_the_text_is_cut(text: str, stops: list[str], data: st.DataObject) -> None:
    until, at, given_text = StopStrings(stops), 0, ""
    while at < len(text) and not until.ended:
        size = data.draw(st.integers(1, 5))
        given_text += until.add(text[at : at + size])
        at += size
    given_text += until.finish()
    found = [(place + len(stop), place) for stop in stops if (place := text.find(stop)) != -1]
    assert given_text == text[: min(found)[1] if found else None]
