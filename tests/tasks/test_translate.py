"""translate: one, many or a stream; its languages, its words, its records."""

import itertools
from pathlib import Path

import pytest

from cutaway.errors import ConfigError, InputError
from cutaway.generation import Generation
from cutaway.models.usage import Usage
from cutaway.tasks.writer import Text
from tests.support import small_models as small

SENTENCES = ["The cat sat.", "A dog ate the hat.", "", "The mat", "the cat's hat on the mat"]
FAMILIES = ["transformer-tiny", "t5-small", "bahdanau-gru", "lstm-seq2seq"]


@pytest.mark.parametrize("preset", FAMILIES)
def test_one_text_a_list_and_a_stream(preset: str) -> None:
    model = small.model(preset)
    many = model.translate(SENTENCES, max_new_tokens=9)
    assert many == [model.translate(text, max_new_tokens=9) for text in SENTENCES]
    assert many == list(model.translate(iter(SENTENCES), max_new_tokens=9))
    assert many[2] == ""
    assert any(many)


def test_a_stream_is_taken_as_it_is_needed() -> None:
    taken = []

    def endless():
        for number in itertools.count():
            taken.append(number)
            yield "The cat sat."

    results = small.model("transformer-tiny").translate(endless(), max_new_tokens=3)
    first = [next(results) for _ in range(5)]
    assert len(set(first)) == 1
    assert len(taken) < 20


def test_blank_texts_are_not_asked() -> None:
    model = small.model("transformer-tiny")
    engine = small.scripted(model, "Le chat")
    assert model.translate(["", "  ", "\t\n", "cat"]) == ["", "", "", "Le chat"]
    assert len(engine.asked) == 1
    assert model.translate("", details=True) == Text("")
    assert list(itertools.islice(model.translate(itertools.repeat("")), 9)) == [""] * 9


def test_records_have_scores_and_tokens() -> None:
    model = small.model("transformer-tiny", usage=Usage(start=2, end=(3,)))  # any token may be written
    found = model.translate("The cat sat.", details=True, max_new_tokens=6, alternatives=2)
    assert found.text == model.translate("The cat sat.", max_new_tokens=6)
    assert found.score < 0
    assert len(found.tokens) <= 6
    for token in found.tokens:
        assert model.tokenizer.token_of(token.id) == token.token
        assert token.alternatives[0] == (token.token, pytest.approx(token.logprob))  # greedy takes the likeliest
        assert len(token.alternatives) == 2


def test_n_best_gives_lists_best_first() -> None:
    model = small.model("transformer-tiny")
    one = model.translate("The cat sat.", n_best=3, max_new_tokens=6)
    assert len(one) == 3
    many = model.translate(["The cat sat.", "A dog"], n_best=3, max_new_tokens=6, details=True)
    assert [text.text for text in many[0]] == one
    assert len({text.tokens for text in many[0]}) == 3
    scores = [text.score for text in many[0]]
    assert scores == sorted(scores, reverse=True)


def test_a_long_text_is_an_error_and_never_cut() -> None:
    model = small.model("transformer-tiny", positions=20)
    with pytest.raises(InputError, match=r"the text has \d+ tokens, and transformer-tiny takes at most 20; shorten it"):
        model.translate("the cat " * 40)
    model.tokenizer.max_length = 12
    with pytest.raises(InputError, match="takes at most 12"):
        model.translate("the cat " * 15)
    unbounded = small.model("gru-seq2seq")
    with pytest.raises(InputError, match="takes at most 2,048"):
        unbounded.translate("x y " * 20_000)


def test_what_came_before_a_bad_text_is_answered_first() -> None:
    model = small.model("transformer-tiny", positions=20)
    texts = ["cat", "hat", "the cat " * 40, "mat"]
    results = model.translate(iter(texts), max_new_tokens=3)
    assert [next(results), next(results)] == model.translate(texts[:2], max_new_tokens=3)
    with pytest.raises(InputError, match="at most 20"):
        next(results)


def test_a_prefix_asks_t5_for_a_language(tmp_path: Path) -> None:
    model = small.t5(tmp_path / "t5")
    engine = small.scripted(model, "le chat")
    for target in ("fr", "French", "FR"):
        assert model.translate("the cat", target=target) == "le chat"
        ids, generation = engine.asked[-1]
        assert ids == tuple(model.tokenizer.encode("translate English to French: the cat").ids)
        assert (generation.beams, generation.max_new_tokens, generation.early_stopping) == (4, 29, True)
    model.translate("the cat", target="de", source="English", beams=2, max_new_tokens=5)
    assert (engine.asked[-1][1].beams, engine.asked[-1][1].max_new_tokens) == (2, 5)
    with pytest.raises(InputError, match=r"translates several ways \(en to de, en to fr\); say which with source and"):
        model.translate("the cat")
    with pytest.raises(InputError, match="was not taught to translate to ro; it was taught en to de, en to fr"):
        model.translate("the cat", target="ro")


def test_a_mark_asks_marian_for_a_language() -> None:
    model = small.model("transformer-tiny", small.tokenizer(separator=">>fra<<", classify=">>deu<<"))
    engine = small.scripted(model, "le chat")
    model.translate("the cat", target="fra")
    assert engine.asked[-1][0] == tuple(model.tokenizer.encode(">>fra<< the cat").ids)
    model.translate(">>deu<< the cat")
    assert engine.asked[-1][0] == tuple(model.tokenizer.encode(">>deu<< the cat").ids)
    with pytest.raises(InputError, match="does not write 'spa'; it writes deu, fra"):
        model.translate("the cat", target="spa")
    with pytest.raises(InputError, match=r"writes several languages: say which with target \(deu, fra\)"):
        model.translate("the cat")
    with pytest.raises(InputError, match="leave out source='en'"):
        model.translate("the cat", source="en", target="fra")
    with pytest.raises(InputError, match="writes one language and does not say which: leave out target='fr'"):
        small.model("transformer-tiny").translate("the cat", target="fr")


@pytest.mark.parametrize("kind", ["bpe", "unigram", "wordpiece"])
def test_words_are_given_as_text(kind: str) -> None:
    model = small.model("transformer-tiny", small.tokenizer(kind))
    assert model.translate("The cat sat.", prefix="Le chat", max_new_tokens=12).startswith("Le chat")
    assert "hat" in model.translate("The cat sat.", force=["hat"], beams=4, max_new_tokens=12)


def test_a_banned_word_is_not_written() -> None:
    model = small.model("transformer-tiny")
    free = model.translate("The cat sat.", max_new_tokens=12, details=True)
    first = free.tokens[0].id
    word = model.tokenizer.decode([first])
    assert model.tokenizer.encode(word, special=False).ids == [first]
    other = model.translate("The cat sat.", ban=word, max_new_tokens=12, details=True)
    assert first not in [token.id for token in other.tokens]


def test_both_forms_of_a_word_are_banned() -> None:
    """A byte-level vocabulary has two tokens for a word: at the beginning, and after a space."""
    model = small.model("transformer-tiny")
    engine = small.scripted(model, "Le chat")
    model.translate("cat", ban=["cat", "the mat"], force="hat", beams=2)
    generation = engine.asked[-1][1]
    texts = [model.tokenizer.decode(word) for word in generation.ban]
    assert texts == ["cat", " cat", "the mat", " the mat"]
    assert [model.tokenizer.decode(word) for word in generation.force] == [" hat"]


def test_a_text_ends_before_a_stop() -> None:
    model = small.model("transformer-tiny")
    whole = model.translate("The cat sat.", max_new_tokens=12)
    stop = whole[5:8]
    assert model.translate("The cat sat.", max_new_tokens=12, stop=stop) == whole[: whole.index(stop)]
    assert model.translate("The cat sat.", max_new_tokens=12, stop=["never there", stop]) == whole[: whole.index(stop)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beam": 3}, "no option 'beam'; did you mean 'beam_groups' or 'beams'?"),
        ({"temperature": 0.5, "sample": False}, "temperature is an option of sampling, and sample=False"),
        ({"temperature": 0.5, "beams": 3}, "sample=True draws texts, beams=3 searches"),
        ({"beams": 2, "n_best": 3}, "n_best=3 texts are more than beams=2 keep"),
        ({"beams": 1000}, "beams=1000 is too wide for a vocabulary of"),
        ({"min_new_tokens": 9, "max_new_tokens": 3}, "min_new_tokens=9 is above max_new_tokens=3"),
        ({"stop": [""]}, "stop has an empty text"),
        ({"ban": [3]}, r"ban=\[3\] \(list\): expected a text, or a list of texts"),
        ({"prefix": ["a", "b"]}, "expected one text"),
        ({"force": ["cat"], "beams": 1}, "force needs beam search"),
        ({"temperature": -1.0}, "temperature=-1.0 must be above 0"),
        ({"temperature": 0.0, "sample": True}, "temperature=0.0 must be above 0"),
        ({"max_new_tokens": 0}, "max_new_tokens=0 must be at least 1"),
    ],
)  # fmt: skip
def test_options_that_contradict_or_do_not_exist(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        small.model("transformer-tiny").translate("The cat sat.", **options)


def test_sampling_is_switched_on_by_its_options() -> None:
    model = small.model("transformer-tiny", usage=Usage(start=2, end=(3,), generation=Generation(beams=4)))
    engine = small.scripted(model, "Le chat")
    model.translate("cat", seed=3, top_k=5)
    assert (engine.asked[-1][1].sample, engine.asked[-1][1].beams) == (True, 1)
    model.translate("cat")
    assert (engine.asked[-1][1].sample, engine.asked[-1][1].beams) == (False, 4)
    real = small.model("transformer-tiny")
    assert real.translate("cat", seed=3, max_new_tokens=8) == real.translate("cat", seed=3, max_new_tokens=8)


def test_the_search_its_makers_recommend() -> None:
    model = small.model(
        "transformer-tiny", usage=Usage(start=2, end=(3,), generation=Generation(beams=4, length_penalty=1.4))
    )
    engine = small.scripted(model, "Le chat")
    for options, expected in (({}, (4, 1.4)), ({"beams": 2}, (2, 1.4)), ({"length_penalty": 0.5}, (4, 0.5))):
        model.translate("cat", **options)
        assert (engine.asked[-1][1].beams, engine.asked[-1][1].length_penalty) == expected


@pytest.mark.parametrize("preset", ["gpt2", "bert-tiny", "vit-tiny"])
def test_a_model_that_can_t_says_what_it_is(preset: str) -> None:
    words = None if preset == "vit-tiny" else small.tokenizer()
    model = small.model("gpt2", words) if preset == "gpt2" else small.headed(preset, words)
    with pytest.raises(InputError, match=r"is an? .*; translate needs an encoder-decoder that was taught to"):
        model.translate("The cat sat.")


@pytest.mark.parametrize("given", [None, 3, b"bytes", {"a": 1}, ["a", 3]])
def test_what_is_no_text(given: object) -> None:
    with pytest.raises(InputError, match="expected a text"):
        small.model("transformer-tiny").translate(given)
