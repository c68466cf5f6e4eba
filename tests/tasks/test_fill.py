"""fill beside transformers' pipeline."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import transformers as hf

import cutaway
from cutaway.errors import InputError
from cutaway.model import Model
from cutaway.tasks.fill import _filled
from tests.support import hf_models as tiny

BLANKS = ["the [MASK] sat.", "a [MASK] on the [MASK]", "[MASK]", "who is [MASK] in the big red house?", "cat[MASK]"]


@pytest.fixture(scope="module", params=["BertForMaskedLM", "DistilBertForMaskedLM"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.bert(tmp_path_factory.mktemp("fill"), request.param)


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return cutaway.load(folder)


def test_the_same_words_with_the_same_probabilities_as_transformers(folder: Path, model: Model) -> None:
    pipeline = hf.pipeline("fill-mask", model=str(folder), top_k=7)
    for text, filled in zip(BLANKS, model.fill(BLANKS, top=7), strict=True):
        expected = pipeline(text)
        expected = expected if isinstance(expected[0], list) else [expected]
        assert len(filled.blanks) == len(expected) == text.count("[MASK]")
        for ours, theirs in zip(filled.blanks, expected, strict=True):
            assert [candidate.id for candidate in ours] == [each["token"] for each in theirs]
            assert [candidate.text for candidate in ours] == [each["token_str"].replace(" ", "") for each in theirs]
            # float32 through three blocks, in batches of other shapes
            assert [candidate.probability for candidate in ours] == pytest.approx(
                [each["score"] for each in theirs], rel=1e-4
            )


def test_one_a_list_and_a_stream_give_the_same(model: Model) -> None:
    many = model.fill(BLANKS)
    assert [blank[0].id for blank in model.fill(BLANKS[1]).blanks] == [blank[0].id for blank in many[1].blanks]
    stream = model.fill(iter(BLANKS))
    assert isinstance(stream, Iterator)
    assert [filled.text for filled in stream] == [filled.text for filled in many]


def test_a_blank_may_be_written_in_three_ways(model: Model) -> None:
    texts = ["the ___ sat.", "the [MASK] sat.", "the <mask> sat.", "the _____ sat."]
    filled = model.fill(texts)
    assert len({each.blanks[0][0].id for each in filled}) == 1
    assert len({each.text for each in filled}) == 1
    assert "___" not in filled[0].text
    assert filled[0].text.startswith("the ")


def test_a_piece_is_joined_to_its_word() -> None:
    assert _filled("the cat _ sat _.", re.compile("_"), ["##s", "here"]) == "the cats sat here."


def test_an_empty_text_stays_empty(model: Model) -> None:
    assert [(filled.text, filled.blanks) for filled in model.fill(["", "  "])] == [("", ()), ("  ", ())]


def test_what_can_not_be_filled_is_told(model: Model) -> None:
    with pytest.raises(InputError, match="'the cat' has no blank; write ___ or"):
        model.fill("the cat")
    with pytest.raises(InputError, match=r"has 43 tokens, and .* reads at most 20; give only the sentences around"):
        model.fill("the ___ " + "cat " * 39)
    with pytest.raises(InputError, match="expected a text"):
        model.fill(["___", 3])
    with pytest.raises(cutaway.errors.ConfigError, match="top=0 must be at least 1"):
        model.fill("___", top=0)


def test_the_texts_before_a_mistake_are_answered(model: Model) -> None:
    stream = model.fill(iter(["a ___", "b ___", "c ___", "none", "d ___"]))
    assert [len(next(stream).blanks) for _ in range(3)] == [1, 1, 1]
    with pytest.raises(InputError, match="'none' has no blank"):
        next(stream)


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (tiny.gpt2, "is a decoder with a language-model head"),
        (tiny.classifier, "is an encoder with a classifier head"),
        (tiny.vit, "is an encoder of images with a classifier head"),
    ],
)
def test_a_model_that_can_not_says_which_can(make: Callable[[Path], Path], what: str, tmp_path: Path) -> None:
    model = cutaway.load(make(tmp_path))
    with pytest.raises(InputError, match=f"{what}; fill needs an encoder with a masked.*, like google-bert/bert"):
        model.fill("the ___")
