"""answer, by a model that writes: T5's question and context, in its own words."""

import math
from pathlib import Path

import pytest

from cutaway.errors import InputError
from tests.support import small_models as small

CONTEXT = "The cat sat on the mat."


def test_it_is_asked_as_it_was_taught(tmp_path: Path) -> None:
    model = small.t5(tmp_path / "t5")
    engine = small.scripted(model, "the mat")
    answer = model.answer("Where is the cat?", CONTEXT)
    assert (answer.text, answer.start, answer.end, answer.no_answer) == ("the mat", None, None, None)
    assert engine.asked[-1][0] == tuple(
        model.tokenizer.encode("question: Where is the cat? context: The cat sat on the mat.").ids
    )
    assert engine.asked[-1][1].max_new_tokens == 30
    many = model.answer(["Where is the cat?", " ", "Who?"], CONTEXT)
    assert [one.text for one in many] == ["the mat", "", "the mat"]
    assert [one.text for one in model.answer(iter([("Who?", CONTEXT)]))] == ["the mat"]


def test_several_answers_with_their_probabilities(tmp_path: Path) -> None:
    model = small.t5(tmp_path / "t5")
    answer = model.answer("Where is the cat?", CONTEXT, top=3, max_tokens=4)
    assert len(answer.others) == 2
    shares = [answer.probability, *(other.probability for other in answer.others)]
    assert all(0 < share < 1 for share in shares)
    assert sum(shares) <= 1
    assert math.isclose(answer.score, max(answer.score, *(other.score for other in answer.others)))


def test_what_it_can_t_do(tmp_path: Path) -> None:
    model = small.t5(tmp_path / "t5")
    model.tokenizer.max_length = 50
    with pytest.raises(InputError, match=r"the question, with its context, has \d+ tokens, and .* takes at most 50"):
        model.answer("Where?", CONTEXT * 30)
    with pytest.raises(InputError, match="leave out no_answer_above=1"):
        model.answer("Where?", CONTEXT, no_answer_above=1.0)
    with pytest.raises(InputError, match="there is no context to answer from"):
        model.answer("Where?")
    with pytest.raises(InputError, match="transformer-tiny is an encoder-decoder .*; answer needs"):
        small.model("transformer-tiny").answer("Where?", CONTEXT)
