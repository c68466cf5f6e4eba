"""answer beside transformers' model and a search of all spans."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import transformers as hf

import cutaway
from cutaway.errors import ConfigError, InputError
from cutaway.model import Model
from cutaway.tasks.spans import Window, best_answer
from tests.support import hf_models as tiny

QUESTION, CONTEXT = "who sat?", "The  big cat sat on the Red mat."


@pytest.fixture(scope="module", params=["BertForQuestionAnswering", "DistilBertForQuestionAnswering"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return cutaway.load(tiny.bert(tmp_path_factory.mktemp("answer"), request.param))


def all_spans(model: Model, question: str, context: str, longest: int) -> tuple[list[tuple[float, str]], float]:
    """By transformers' network and tokenizer: every span's score and text, best first; and the score of [CLS]."""
    network = hf.AutoModelForQuestionAnswering.from_pretrained(model.folder).eval()
    tokenizer = hf.AutoTokenizer.from_pretrained(model.folder)
    encoded = tokenizer(question, context, return_tensors="pt", return_offsets_mapping=True)
    offsets = encoded.pop("offset_mapping")[0].tolist()
    with torch.no_grad():
        out = network(**encoded)
    start, end = out.start_logits[0].tolist(), out.end_logits[0].tolist()
    inside = [i for i, sequence in enumerate(encoded.sequence_ids(0)) if sequence == 1]
    found = [
        (start[i] + end[j], context[offsets[i][0] : offsets[j][1]])
        for i in inside
        for j in inside
        if i <= j < i + longest
    ]
    return sorted(found, reverse=True), start[0] + end[0]


@pytest.mark.parametrize("longest", [30, 3, 1])
def test_the_best_spans_of_all(model: Model, longest: int) -> None:
    expected, null = all_spans(model, QUESTION, CONTEXT, longest)
    answer = model.answer(QUESTION, CONTEXT, top=5, max_tokens=longest)
    spans = [answer, *answer.others]
    assert [span.text for span in spans] == [text for _, text in expected[:5]]
    # sums of two float32 scores, computed in another order
    assert [span.score for span in spans] == pytest.approx([score for score, _ in expected[:5]], abs=1e-4)
    assert all(CONTEXT[span.start : span.end] == span.text for span in spans)
    assert answer.no_answer == pytest.approx(null - expected[0][0], abs=1e-4)
    shares = torch.tensor([*(score for score, _ in expected[:20]), null]).softmax(0).tolist()
    assert [span.probability for span in spans] == pytest.approx(shares[:5], rel=1e-3)


def test_one_a_list_a_stream_and_pairs(model: Model) -> None:
    questions = [QUESTION, "where is the mat?", "", "what?"]
    many = model.answer(questions, CONTEXT)
    assert [answer.text for answer in many] == [model.answer(question, CONTEXT).text for question in questions]
    assert (many[2].text, many[2].probability) == ("", 0.0)
    stream = model.answer(iter(questions), CONTEXT)
    assert isinstance(stream, Iterator)
    assert [answer.text for answer in stream] == [answer.text for answer in many]
    pairs = model.answer([(QUESTION, CONTEXT), (QUESTION, "a small dog"), (QUESTION, CONTEXT)])
    assert [pairs[0].text, pairs[2].text] == [many[0].text] * 2
    assert pairs[1].text in "a small dog"
    assert model.answer((QUESTION, CONTEXT)).start == many[0].start


def test_a_long_context_is_read_in_overlapping_windows(model: Model) -> None:
    """Whichever window it is read in, the answer's place is that in the whole; and every place is read."""
    words = [f"{word}{i}" for i, word in enumerate(tiny.WORDS)]  # each is several tokens
    context = "  ".join(words)
    answer = model.answer("who", context, top=20, max_tokens=4)
    for span in (answer, *answer.others):
        assert context[span.start : span.end] == span.text
    assert len({(span.start, span.end) for span in (answer, *answer.others)}) == 20
    ends = {span.end for span in (answer, *answer.others)}
    assert max(ends) > 60, "not only the first window is looked at"


def test_windows_are_put_together() -> None:
    offsets = [(i, i + 1) for i in range(10)]
    windows = [Window([(1.0, 0, 1), (0.5, 4, 5)], null=5.0), Window([(0.9, 4, 5), (3.0, 7, 9)], null=2.0)]
    answer = best_answer("abcdefghij", offsets, windows, 3, None)
    assert (answer.text, answer.start, answer.end, answer.score) == ("hij", 7, 10, 3.0)
    assert [(span.text, span.score) for span in answer.others] == [("ab", 1.0), ("ef", 0.9)]
    assert answer.no_answer == -1.0, "by the window that believes in it least"
    shares = torch.tensor([3.0, 1.0, 0.9, 2.0]).softmax(0).tolist()
    assert answer.probability == pytest.approx(shares[0])
    none = best_answer("abcdefghij", offsets, windows, 2, no_answer_above=-1.5)
    assert (none.text, none.start, none.end) == ("", 0, 0)
    assert none.probability == pytest.approx(shares[3])
    assert [span.text for span in none.others] == ["hij"]
    assert best_answer("abcdefghij", offsets, windows, 2, no_answer_above=-0.5).text == "hij"
    assert best_answer("abcdefghij", offsets, [Window([(1.0, 0, 1)], None)], 1, 0.0).no_answer is None


def test_what_can_not_be_answered_is_told(model: Model, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no context to answer from"):
        model.answer(QUESTION)
    for empty in ("", " \n"):
        with pytest.raises(InputError, match="give the text that holds the answer"):
            model.answer(QUESTION, empty)
    with pytest.raises(InputError, match=r"the question has 30 tokens; .* reads 20 at once, and it may have half"):
        model.answer("cat " * 30, CONTEXT)
    with pytest.raises(InputError, match="or a pair"):
        model.answer((QUESTION, CONTEXT), CONTEXT)
    with pytest.raises(ConfigError, match="max_tokens=0 must be at least 1"):
        model.answer(QUESTION, CONTEXT, max_tokens=0)
    with pytest.raises(
        InputError, match=r"answer needs an encoder with an answer-span head \(or a T5\), like distilbert"
    ):
        cutaway.load(tiny.classifier(tmp_path)).answer(QUESTION, CONTEXT)


def test_a_megabyte_of_context(model: Model) -> None:
    context = "the cat sat on the mat. " * 6000 + "a bird! " + "the cat sat on the mat. " * 200
    answer = model.answer("who", context, top=3)
    assert context[answer.start : answer.end] == answer.text
