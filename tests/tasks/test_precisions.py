"""Every task that reads, by every engine and in every precision: about the same result."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import cutaway
from cutaway.model import Model
from tests.support import hf_models as tiny
from tests.support.images import picture

Call = Callable[..., list[float]]
CONTEXT = "the cat sat on the mat."
TASKS: dict[str, tuple[Callable[[Path], Path], Call]] = {
    "fill": (
        lambda folder: tiny.bert(folder, "BertForMaskedLM"),
        lambda model, **how: [word.probability for word in model.fill("the ___ sat", **how).blanks[0]],
    ),
    "classify": (
        tiny.classifier,
        lambda model, **how: [
            label.probability for labels in model.classify(tiny.TEXTS, **how) for label in sorted_by_number(labels)
        ],
    ),
    "embed": (tiny.sentences, lambda model, **how: model.embed(tiny.TEXTS, **how).flatten().tolist()),
    "answer": (
        lambda folder: tiny.bert(folder, "BertForQuestionAnswering"),
        lambda model, **how: [model.answer("who sat?", CONTEXT, **how).probability],
    ),
    "recognize": (
        tiny.vit,
        lambda model, **how: [label.probability for label in sorted_by_number(model.recognize(picture(), **how))],
    ),
}


def sorted_by_number(labels: list[Any]) -> list[Any]:
    return sorted(labels, key=lambda label: label.number)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Converted models are not left in the user's cache."""
    monkeypatch.setenv("CUTAWAY_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module", params=TASKS)
def task(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Model, Call]:
    make, call = TASKS[request.param]
    return cutaway.load(make(tmp_path_factory.mktemp("model"))), call


@pytest.mark.parametrize(
    ("precision", "close"),
    [
        ("float32", 0.0),
        ("bfloat16", 0.02),  # 8 bits: steps of 0.4 % in each of three blocks
        ("int8", 0.04),  # steps of 0.8 % of the largest weight and value
    ],
)
def test_precisions_give_about_the_same(task: tuple[Model, Call], precision: str, close: float) -> None:
    model, call = task
    assert call(model, precision=precision) == pytest.approx(call(model), abs=close)


def test_ctranslate2_gives_the_same_or_says_why_not(task: tuple[Model, Call]) -> None:
    model, call = task
    if model.tokenizer is None:
        with pytest.raises(cutaway.errors.ConfigError, match="CTranslate2 reads text, not images"):
            call(model, engine="ctranslate2")
    else:
        assert call(model, engine="ctranslate2") == pytest.approx(call(model), abs=1e-5)


def test_an_engine_or_precision_that_is_none(task: tuple[Model, Call]) -> None:
    model, call = task
    with pytest.raises(cutaway.errors.ConfigError, match="no engine 'fast'"):
        call(model, engine="fast")
    with pytest.raises(cutaway.errors.ConfigError, match="no precision 'int3'"):
        call(model, precision="int3")


def test_vectors_may_be_trained_on(tmp_path: Path) -> None:
    model = cutaway.load(tiny.sentences(tmp_path))
    layer = torch.nn.Linear(24, 2)
    for vector in (model.embed("the cat"), model.embed(tiny.TEXTS), next(model.embed(iter(["the cat"])))):
        assert not vector.requires_grad
        layer(vector).sum().backward()
    assert layer.weight.grad is not None
