"""Which engine a task takes: the one asked for, or the fastest that writes the same text."""

import logging
from typing import Any

import pytest

from cutaway.errors import InputError
from cutaway.tasks.options import Options
from cutaway.tasks.writer import Writer
from tests.support import small_models as small

pytest.importorskip("ctranslate2", reason="the other engine is an extra")


def engine(options: Options, **more: Any) -> str:
    return Writer(small.model("transformer-tiny"), "translate", options, **more).engine.name


def test_a_small_model_is_run_by_what_is_faster_unless_that_differs() -> None:
    assert engine({}) == "ctranslate2"
    assert engine({"beams": 2, "early_stopping": True}) == "ctranslate2"
    assert engine({"beams": 2}) == "native"
    assert engine({"seed": 1}) == "native"
    assert engine({"force": "hat", "beams": 4}) == "native"
    assert engine({"max_new_tokens": 5000}) == "native"
    assert engine({}, details=True) == "ctranslate2"
    assert engine({"alternatives": 3}) == "native"
    assert engine({"engine": "native"}) == "native"


def test_both_write_the_same() -> None:
    texts = ["The cat sat.", "", "A dog ate the hat.", "the mat"]
    for preset in ("transformer-tiny", "gpt2", "llama-15m"):
        model = small.model(preset)
        task = model.translate if preset == "transformer-tiny" else model.complete
        both = [task(texts, engine=name, max_new_tokens=9) for name in ("native", "ctranslate2")]
        assert both[0] == both[1]
        if preset != "transformer-tiny":
            pieces = model.complete("The cat", stream=True, engine="ctranslate2", max_new_tokens=9)
            assert "".join(pieces) == model.complete("The cat", engine="native", max_new_tokens=9)


def test_the_one_asked_for_says_what_it_lacks() -> None:
    with pytest.raises(InputError, match="CTranslate2 has no force; the native engine can"):
        small.model("transformer-tiny").translate("The cat", engine="ctranslate2", force="hat", beams=4)


def test_it_says_what_it_chose(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "cutaway"):
        small.model("gpt2").complete("The cat", max_new_tokens=2, precision="int8")
    assert caplog.messages == ["gpt2: native, int8"]
