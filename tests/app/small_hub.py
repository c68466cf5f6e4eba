"""The models that the documentation names, tiny and on this disk: a cache of the hub as huggingface_hub lays it out."""

from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file

import cutaway
from cutaway.model import Model
from cutaway.models.config import MaskedLanguageModel, TransformerConfig
from cutaway.models.usage import Usage
from cutaway.text.train import train_tokenizer
from tests.families import shrunk

TEXTS = ["The cat sat on the mat.", "Le chat est assis sur le tapis.", "A dog ate the cat's hat."] * 3
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def translator() -> Model:
    """As MarianMT has it: sines before cosines, tables shared."""
    positions = {"positions": "sinusoidal_halves", "max_positions": 64}
    return _model("transformer-tiny", {"encoder": positions, "decoder": positions})


def _model(name: str, changes: dict[str, dict[str, object]] | None = None) -> Model:
    tokenizer = train_tokenizer(TEXTS, kind="bpe", vocabulary=300)
    config = shrunk(name)
    assert isinstance(config, TransformerConfig)
    halves = {
        half: replace(stack, vocabulary=tokenizer.vocabulary_size, **(changes or {}).get(half, {}))
        for half in ("encoder", "decoder")
        if (stack := getattr(config, half)) is not None
    }
    config = replace(config, **halves, head=MaskedLanguageModel() if name.startswith("bert") else config.head)
    return Model(cutaway.build(config), tokenizer, Usage(start=2, end=(3,), pad=0))


def lay_out(cache: Path) -> None:
    """models--owner--name/{refs/main, snapshots/<commit>/files}"""
    models = {
        "openai-community/gpt2": _model("gpt2"),
        "google-bert/bert-base-uncased": _model("bert-tiny"),
        "Helsinki-NLP/opus-mt-en-fr": translator(),
    }
    for name, model in models.items():
        place = cache / f"models--{name.replace('/', '--')}"
        (place / "refs").mkdir(parents=True)
        (place / "refs" / "main").write_text(COMMIT)
        model.save(place / "snapshots" / COMMIT, format="huggingface")


def furnish(folder: Path) -> None:
    """The folders that the pages' commands name."""
    translator().save(folder / "here")
    translator().save(folder / "there", format="huggingface")
    _model("gpt2").save(folder / "old", format="huggingface")
    tensors = load_file(folder / "old" / "model.safetensors")
    torch.save(tensors, folder / "old" / "pytorch_model.bin")
    (folder / "old" / "model.safetensors").unlink()
