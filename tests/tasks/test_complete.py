"""complete: what follows a text, whole or in pieces."""

import itertools

import pytest

from cutaway.errors import ConfigError, InputError
from cutaway.generation import Generation
from cutaway.models.usage import Usage
from tests.support import small_models as small

DECODERS = ["gpt2", "llama-15m", "llama-3.2-1b", "awd-lstm"]


@pytest.mark.parametrize("preset", DECODERS)
@pytest.mark.parametrize("kind", ["bpe", "unigram", "character"])
def test_pieces_join_to_the_whole(preset: str, kind: str) -> None:
    model = small.model(preset, small.tokenizer(kind), usage=Usage(start=2, end=(3,)))
    for prompt in ("The cat", "The cat ", "", "日本 😀"):
        whole = model.complete(prompt, max_new_tokens=24)
        pieces = list(model.complete(prompt, stream=True, max_new_tokens=24))
        assert "".join(pieces) == whole
        assert "" not in pieces
    many = ["The cat", "", "A dog ate the hat", "The"]
    assert model.complete(many, max_new_tokens=9) == [model.complete(one, max_new_tokens=9) for one in many]
    assert list(model.complete(iter(many), max_new_tokens=9)) == model.complete(many, max_new_tokens=9)


def test_what_is_put_after_texts_does_not_end_the_prompt() -> None:
    model = small.model("gpt2")
    assert model.tokenizer.encode("The cat").ids[-1] == 3
    engine = small.scripted(model, " sat")
    assert model.complete("The cat") == " sat"
    assert engine.asked[-1][0] == (2, *model.tokenizer.encode("The cat", special=False).ids)


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_a_continuation_keeps_its_space(kind: str) -> None:
    model = small.model("gpt2", small.tokenizer(kind))
    before = model.tokenizer.encode("The cat", special=False).ids
    both = model.tokenizer.encode("The cat sat on", special=False).ids
    assert both[: len(before)] == before
    engine = small.scripted(model, "")
    engine.scripts = [both[len(before) :]]
    assert model.complete("The cat") == " sat on"
    assert "".join(model.complete("The cat", stream=True)) == " sat on"


def test_characters_come_whole() -> None:
    model = small.model("gpt2", small.tokenizer("byte"))
    small.scripted(model, "naïve 😀 日本")
    pieces = list(model.complete("a", stream=True))
    assert pieces == list("naïve 😀 日本")


def test_a_stop_that_spans_tokens_is_not_shown() -> None:
    model = small.model("gpt2", small.tokenizer("byte"))
    small.scripted(model, "one END\ntwo ENDING three")
    assert "".join(model.complete("a", stream=True, stop="ENDING")) == "one END\ntwo "
    assert list(model.complete("a", stream=True, stop=["\n"])) == list("one END")


@pytest.mark.parametrize("kind", ["bpe", "unigram", "character"])
def test_a_stop_cuts_a_stream_and_a_whole_text_alike(kind: str) -> None:
    model = small.model("llama-15m", small.tokenizer(kind), usage=Usage(start=2))
    whole = model.complete("The cat", max_new_tokens=24, seed=4)
    for start, end in ((6, 8), (9, 10), (11, 15)):
        stop = whole[start:end]
        before = whole[: whole.index(stop)]
        assert model.complete("The cat", max_new_tokens=24, seed=4, stop=["no such words", stop]) == before
        assert "".join(model.complete("The cat", max_new_tokens=24, seed=4, stop=stop, stream=True)) == before


@pytest.mark.parametrize("preset", ["gpt2", "llama-15m"])
def test_a_text_ends_where_the_context_does(preset: str) -> None:
    model = small.model(preset, positions=16, usage=Usage(start=2))
    prompt = "The cat sat on the mat."
    n = len(model.tokenizer.encode(prompt, special=False).ids) + 1
    assert n < 16
    for options in ({}, {"max_new_tokens": 1000}):
        alone = model.complete(prompt, details=True, **options)
        assert (len(alone.tokens), alone.ended) == (16 - n + 1, "length")
        assert model.complete([prompt, "The", prompt], **options)[2] == alone.text
        assert "".join(model.complete(prompt, stream=True, **options)) == alone.text
    with pytest.raises(InputError, match=r"the prompt has \d+ tokens, and .* takes at most 16; shorten it"):
        model.complete("The cat sat " * 20)


def test_without_a_beginning_a_start_token_is_needed() -> None:
    words = small.tokenizer()
    model = small.model("gpt2", words, usage=Usage())
    assert isinstance(model.complete("", max_new_tokens=3), str)  # its tokenizer begins texts with <s>
    words.encode = lambda text, pair=None, special=True, max_length=None: type(words).encode(  # type: ignore[method-assign]
        words, text, special=False
    )
    with pytest.raises(InputError, match="gpt2 has no token that begins a text; give it a beginning"):
        model.complete("")
    model.usage = Usage(start=2)
    assert isinstance(model.complete("", max_new_tokens=3), str)


def test_a_stream_is_lazy_and_can_be_left() -> None:
    model = small.model("llama-15m", positions=5000, usage=Usage(start=2))
    pieces = model.complete("The", stream=True, max_new_tokens=4000)
    assert len(list(itertools.islice(pieces, 3))) == 3
    pieces.close()


def test_options_of_a_stream() -> None:
    model = small.model("gpt2", usage=Usage(start=2, end=(3,), generation=Generation(beams=4)))
    assert "".join(model.complete("The", stream=True, max_new_tokens=4)) == model.complete(
        "The", beams=1, max_new_tokens=4
    )
    with pytest.raises(ConfigError, match="a stream writes one text as it goes: beams and n_best must be 1"):
        model.complete("The", stream=True, beams=2)
    with pytest.raises(ConfigError, match="beams and n_best must be 1"):
        model.complete("The", stream=True, n_best=2)
    with pytest.raises(InputError, match="stream=True writes one text"):
        model.complete(["The"], stream=True)
    with pytest.raises(InputError, match="details are known at its end"):
        model.complete("The", stream=True, details=True)
    sampled = [model.complete("The", seed=seed, max_new_tokens=12) for seed in (1, 1, 2)]
    assert sampled[0] == sampled[1] != sampled[2]
    assert "".join(model.complete("The", stream=True, seed=1, max_new_tokens=12)) == sampled[0]


@pytest.mark.parametrize("preset", ["transformer-tiny", "t5-small", "gru-seq2seq"])
def test_an_encoder_decoder_does_not_complete(preset: str) -> None:
    with pytest.raises(InputError, match="is an encoder-decoder with .*; complete needs a decoder-only language model"):
        small.model(preset).complete("The cat")


def test_a_model_without_a_tokenizer() -> None:
    model = small.model("gpt2")
    model.tokenizer = None
    with pytest.raises(InputError, match="gpt2 has no tokenizer"):
        model.complete("The cat")
