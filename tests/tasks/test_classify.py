"""classify beside transformers' pipeline; windows; pairs."""

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf

import cutaway
from cutaway.errors import InputError
from cutaway.model import Model
from cutaway.tasks.reader import spans
from tests.support import hf_models as tiny

PAIRS = [("the cat sat.", "where is the dog?"), ("a", "the big red bird ran in the house"), ("dog", "dog")]
MAKERS: dict[str, Callable[[Path], Path]] = {
    "bert": tiny.classifier,
    "distilbert": lambda folder: tiny.bert(folder, "DistilBertForSequenceClassification", num_labels=3),
    "gpt2": lambda folder: tiny.gpt2(folder, "GPT2ForSequenceClassification", num_labels=4),
    "many labels": lambda folder: tiny.classifier(folder, problem_type="multi_label_classification"),
    "one label": lambda folder: tiny.bert(folder, "BertForSequenceClassification", num_labels=1),
}


@pytest.fixture(scope="module", params=MAKERS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return MAKERS[request.param](tmp_path_factory.mktemp("classify"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return cutaway.load(tiny.classifier(tmp_path_factory.mktemp("classify")))


def as_numbers(labels: list[Any]) -> dict[int, float]:
    return {label.number: label.probability for label in labels}


def test_the_same_probabilities_as_transformers(folder: Path) -> None:
    model = cutaway.load(folder)
    pipeline = hf.pipeline("text-classification", model=str(folder), top_k=None)
    for text, ours in zip(tiny.TEXTS, model.classify(tiny.TEXTS), strict=True):
        (theirs,) = pipeline([text])
        probabilities = [label.probability for label in ours]
        assert probabilities == sorted(probabilities, reverse=True)
        assert probabilities == pytest.approx([each["score"] for each in theirs], rel=1e-4)  # float32, other batches
        if model.usage.labels:
            assert [label.label for label in ours] == [each["label"] for each in theirs]
        else:
            assert [f"LABEL_{label.number}" for label in ours] == [each["label"] for each in theirs]
            assert [label.label for label in ours] == [str(label.number) for label in ours]


def test_pairs_as_transformers_reads_them(tmp_path: Path) -> None:
    model = cutaway.load(tiny.classifier(tmp_path))
    pipeline = hf.pipeline("text-classification", model=str(tmp_path), top_k=None)
    for (text, pair), ours in zip(PAIRS, model.classify(PAIRS), strict=True):
        theirs = {each["label"]: each["score"] for each in pipeline({"text": text, "text_pair": pair})}
        assert {label.label: label.probability for label in ours} == pytest.approx(theirs, rel=1e-4)
    assert as_numbers(model.classify(PAIRS[0])) == pytest.approx(as_numbers(model.classify(PAIRS)[0]), rel=1e-4)


def test_texts_and_pairs_may_be_mixed(model: Model) -> None:
    alone = [model.classify(each) for each in (tiny.TEXTS[0], PAIRS[1], tiny.TEXTS[1])]
    mixed = list(model.classify(iter([tiny.TEXTS[0], PAIRS[1], tiny.TEXTS[1]])))
    for a, b in zip(alone, mixed, strict=True):
        assert as_numbers(a) == pytest.approx(as_numbers(b), rel=1e-4)


def test_one_a_list_and_a_stream_and_top(model: Model) -> None:
    many = model.classify(tiny.TEXTS, top=2)
    assert [len(labels) for labels in many] == [2] * len(tiny.TEXTS)
    stream = model.classify(iter(tiny.TEXTS), top=2)
    assert isinstance(stream, Iterator)
    for one, other in zip(stream, many, strict=True):
        assert as_numbers(one) == pytest.approx(as_numbers(other), rel=1e-4)
    assert as_numbers(model.classify(tiny.TEXTS[3], top=1)) == pytest.approx(as_numbers(many[3][:1]), rel=1e-4)


def test_an_empty_text_has_no_class_and_keeps_its_place(model: Model) -> None:
    found = model.classify(["the cat", "", " \t", "the cat"])
    assert [len(labels) for labels in found] == [3, 0, 0, 3]
    assert model.classify(("", "")) == []


def test_a_long_text_is_the_mean_of_its_windows(model: Model) -> None:
    text = " ".join((tiny.WORDS * 4)[:61])
    room = tiny.POSITIONS - 2
    places = spans(61, room, int(0.125 * room))
    assert len(places) > 3
    windows = [" ".join(text.split()[start:end]) for start, end in places]
    each = [as_numbers(labels) for labels in model.classify(windows)]
    mean = {number: sum(labels[number] for labels in each) / len(each) for number in range(3)}
    assert as_numbers(model.classify(text)) == pytest.approx(mean, rel=1e-4)
    assert as_numbers(model.classify(text)) != pytest.approx(each[0], rel=1e-2), "it is not just cut"


def test_a_long_pair_has_windows_over_its_longer_text(model: Model) -> None:
    short, long = "the cat", " ".join((tiny.WORDS * 2)[:40])
    room = tiny.POSITIONS - 3 - 2
    windows = [" ".join(long.split()[start:end]) for start, end in spans(40, room, int(0.125 * room))]
    for pair, parts in (((short, long), [(short, w) for w in windows]), ((long, short), [(w, short) for w in windows])):
        each = [as_numbers(labels) for labels in model.classify(parts)]
        mean = {number: sum(labels[number] for labels in each) / len(each) for number in range(3)}
        assert as_numbers(model.classify(pair)) == pytest.approx(mean, rel=1e-4)
    with pytest.raises(InputError, match=r"the shorter text of a pair has 40 tokens; .* reads 20 at once"):
        model.classify((long, long))


def test_a_megabyte_is_read_in_windows(model: Model) -> None:
    text = "the cat sat on the mat. " * 42_000
    assert len(text) > 1_000_000
    assert sum(as_numbers(model.classify(text)).values()) == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("length", [1, 5, 18, 19, 36, 37, 100])
@pytest.mark.parametrize("overlap", [0, 2, 9])
def test_windows_cover_everything_evenly(length: int, overlap: int) -> None:
    found = spans(length, 18, overlap)
    assert found[0][0] == 0
    assert found[-1][1] == length
    assert len({end - start for start, end in found}) == 1
    assert max(end - start for start, end in found) <= 18
    for (_, end), (start, _) in pairwise(found):
        assert end - start >= overlap
    assert len(found) == max(1, -(-(length - overlap) // (18 - overlap))), "no more than needed"


def test_what_is_no_text_is_told(model: Model, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected a text, a list or an iterator of them, found 3"):
        model.classify(3)  # type: ignore[call-overload]
    with pytest.raises(InputError, match=r"expected a text or a pair \(text, text\), found \('a', 'b', 'c'\)"):
        model.classify([("a", "b", "c")])
    image = cutaway.load(tiny.vit(tmp_path))
    with pytest.raises(InputError, match="is a classifier of images: recognize says what it sees"):
        image.classify("the cat")
    model = cutaway.load(tiny.bert(tmp_path / "other", "BertForMaskedLM"))
    with pytest.raises(InputError, match="classify needs a model with a classifier's head, like distilbert"):
        model.classify("the cat")
    model = cutaway.load(tiny.classifier(tmp_path / "third"))
    model.tokenizer = None
    with pytest.raises(InputError, match="has no tokenizer, and classify reads text"):
        model.classify("the cat")


def test_looking_changes_nothing(model: Model) -> None:
    alone = model.classify(tiny.TEXTS)
    heard: list[torch.Tensor] = []
    with cutaway.listening(model.network, {"*.weights": lambda weights, name: heard.append(weights)}):
        seen = model.classify(tiny.TEXTS)
    assert heard
    for a, b in zip(alone, seen, strict=True):
        assert as_numbers(a) == pytest.approx(as_numbers(b), rel=1e-4)
