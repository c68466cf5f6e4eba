"""int8 on a real model: SmolLM2-135M-Instruct, whose activations have outliers of a thousand times the mean."""

from pathlib import Path

import pytest
import torch

import cutaway
from bench import divergence


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> cutaway.Model:
    folder: Path = divergence.smollm2(tmp_path_factory.mktemp("smollm2"))
    return cutaway.load(folder)


def test_int8_is_as_good_as_it_says(model: cutaway.Model) -> None:
    """docs/engines.md has the same for WikiText-2. llama.cpp's Q8_0 is 0.0033 nats a token from its own float16."""
    assert model.tokenizer is not None
    tokens = torch.tensor(model.tokenizer.encode(divergence.sample_text()).ids)
    found = divergence.language_model(model.network.eval(), tokens, n_windows=30)
    print(found)
    assert found.n >= 15_000
    assert found.kl is not None
    assert found.ratio is not None
    assert found.same is not None
    assert found.kl <= 0.004
    assert found.ratio <= 1.005
    assert found.same >= 0.95


def test_a_real_llama_in_int8_writes_as_in_float32(model: cutaway.Model) -> None:
    """For as many tokens as the two are likely to agree; one scale for a row changed 9 of 10 such texts."""
    prompts = ["The capital of France is", "Water boils at", "The largest planet is", "A cat is an animal that"]
    exact, coarse = (
        model.complete(prompts, beams=1, sample=False, max_new_tokens=8, engine="native", precision=precision)
        for precision in ("float32", "int8")
    )
    assert sum(one == other for one, other in zip(exact, coarse, strict=True)) >= 3
