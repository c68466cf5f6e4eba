"""summarize: T5's prefix, lengths and beams, and no text cut."""

from dataclasses import replace
from pathlib import Path

import pytest

import cutaway
from cutaway.errors import CheckpointError, InputError
from cutaway.models.usage import Usage
from tests.support import small_models as small
from tests.support.hub_models import translator


def test_the_checkpoint_says_how(tmp_path: Path) -> None:
    model = small.t5(tmp_path / "t5")
    engine = small.scripted(model, "the cat")
    assert model.summarize(["the cat sat", ""]) == ["the cat", ""]
    ids, asked = engine.asked[-1]
    assert ids == tuple(model.tokenizer.encode("summarize: the cat sat").ids)
    assert (asked.max_new_tokens, asked.min_new_tokens, asked.beams) == (19, 5, 4)
    assert (asked.length_penalty, asked.no_repeat_ngram, asked.early_stopping) == (2.0, 3, True)
    model.summarize("the cat sat", max_new_tokens=3, beams=1)
    asked = engine.asked[-1][1]
    assert (asked.max_new_tokens, asked.min_new_tokens, asked.beams) == (3, 3, 1)


def test_it_is_so_after_saving_in_our_format(tmp_path: Path) -> None:
    small.t5(tmp_path / "t5").save(tmp_path / "ours")
    model = cutaway.load(tmp_path / "ours")
    engine = small.scripted(model, "the cat")
    model.summarize("the cat sat")
    assert engine.asked[-1][1].beams == 4


def test_it_writes(tmp_path: Path) -> None:
    model = small.t5(tmp_path / "t5")
    text = model.summarize("the cat sat on the mat", details=True)
    assert text.text
    assert 5 <= len(text.tokens) <= 19


def test_a_model_of_its_own_needs_no_prefix() -> None:
    model = small.model("transformer-tiny")
    engine = small.scripted(model, "the cat")
    model.summarize("the cat sat")
    assert engine.asked[-1][0] == tuple(model.tokenizer.encode("the cat sat").ids)


def test_long_texts_and_other_models_are_told(tmp_path: Path) -> None:
    model = small.t5(tmp_path / "t5")
    model.tokenizer.max_length = 64
    with pytest.raises(InputError, match=r"the text has [\d,]+ tokens, and .* takes at most 64; shorten it"):
        model.summarize("the cat sat on the mat. " * 50)
    translator = small.t5(tmp_path / "other", {"translation_en_to_fr": {"prefix": "translate English to French: "}})
    with pytest.raises(InputError, match="summarize needs an encoder-decoder that was taught to"):
        translator.summarize("the cat")
    with pytest.raises(InputError, match="gpt2 is a decoder with a language-model head; summarize needs"):
        small.model("gpt2").summarize("the cat")


def test_a_translator_is_no_summariser(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        cutaway.load("en-fr").summarize("The cat sat on the mat.")
    assert str(caught.value) == (
        "en-fr was trained to translate, not to summarize: run it with translate; summarize needs an encoder-decoder "
        "that was taught to, like google-t5/t5-small"
    )
    marian = cutaway.load(translator().save(tmp_path / "marian", format="huggingface"))
    with pytest.raises(InputError, match="marian was trained to translate, not to summarize"):
        marian.summarize("the cat")
    again = cutaway.load(marian.save(tmp_path / "ours"))
    assert again.usage.task == "translate"


def test_a_model_that_was_taught_both_does_both(tmp_path: Path) -> None:
    """T5's config.json says more than one word for what it was last trained for."""
    model = small.t5(tmp_path / "t5")
    model.usage = replace(model.usage, task="translate")
    small.scripted(model, "the cat")
    assert model.summarize("the cat sat") == "the cat"


def test_a_classifier_or_writer_is_no_translator() -> None:
    model = small.model("gpt2", usage=Usage(task="complete", start=2, pad=0))
    with pytest.raises(InputError, match="gpt2 was trained to complete, not to translate: run it with complete"):
        model.translate("the cat")


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ({"summarization": 3}, "summarization is '3'; expected an object"),
        ({"summarization": {"prefix": 3}}, "prefix is '3'; expected a text"),
        ({"summarization": {"num_beams": 0}}, "num_beams is '0'; expected a whole number from 1 on"),
        ({"summarization": {"max_length": "x"}}, "max_length is 'x'; expected a whole number"),
        ([], "task_specific_params is '\\[\\]'; expected an object"),
    ],
)  # fmt: skip
def test_broken_tasks_are_one_sentence(tmp_path: Path, tasks: object, message: str) -> None:
    model = small.t5(tmp_path / "t5", tasks)  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match=message):
        model.summarize("the cat")
