"""The models that the documentation names, tiny and on this disk: a cache of the hub as huggingface_hub lays it out."""

import json
from contextlib import chdir
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from safetensors.torch import load_file

import cutaway
from cutaway.model import Model
from cutaway.models.config import (
    AnswerSpan,
    Classifier,
    Head,
    MaskedLanguageModel,
    SentenceVector,
    TransformerConfig,
)
from cutaway.models.usage import Usage
from cutaway.text.train import train_tokenizer
from cutaway.training.config import Data, ModelChoice, ScheduleChoice, TrainConfig, Validation
from cutaway.training.run import train
from tests.support.families import shrunk
from tests.support.hub_server import COMMIT
from tests.support.small_models import TEXTS

TASKS = {
    "summarization": {"prefix": "summarize: ", "num_beams": 4, "max_length": 20},
    "translation_en_to_de": {"prefix": "translate English to German: ", "max_length": 20},
    "translation_en_to_fr": {"prefix": "translate English to French: ", "max_length": 20},
}
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}<assistant>"
LONGER: dict[str, dict[str, object]] = {half: {"max_positions": 64} for half in ("encoder", "decoder")}


def translator() -> Model:
    """As MarianMT has it: sines before cosines, tables shared."""
    positions = {"positions": "sinusoidal_halves", "max_positions": 64}
    return _model("transformer-tiny", {"encoder": positions, "decoder": positions}, max_length=20)


def _model(
    name: str, changes: dict[str, dict[str, object]] | None = None, head: Head | None = None, **usage: Any
) -> Model:
    tokenizer = train_tokenizer(TEXTS, kind="bpe", vocabulary=300, special={"classify": "<cls>"})
    config = shrunk(name)
    assert isinstance(config, TransformerConfig)
    halves = {
        half: replace(stack, vocabulary=tokenizer.vocabulary_size, **(changes or {}).get(half, {}))
        for half in ("encoder", "decoder")
        if (stack := getattr(config, half)) is not None
    }
    config = replace(config, **halves, head=head or config.head)
    return Model(cutaway.build(config), tokenizer, Usage(start=2, end=(3,), pad=0, **usage))


def _chatty() -> Model:
    model = _model("llama-15m", LONGER)
    assert model.tokenizer is not None
    model.tokenizer.chat_template = TEMPLATE
    return model


def lay_out(cache: Path) -> None:
    """models--owner--name/{refs/main, snapshots/<commit>/files}"""
    models = {
        "openai-community/gpt2": _model("gpt2", LONGER),
        "Qwen/Qwen2-0.5B-Instruct": _chatty(),
        "google-t5/t5-small": _model("t5-small"),
        "google-bert/bert-base-uncased": _model("bert-tiny", LONGER, MaskedLanguageModel()),
        "distilbert/distilbert-base-uncased-finetuned-sst-2-english": _model(
            "bert-tiny", LONGER, Classifier(n_classes=2, hidden="tanh"), labels=("NEGATIVE", "POSITIVE")
        ),
        "distilbert/distilbert-base-cased-distilled-squad": _model("bert-tiny", LONGER, AnswerSpan()),
        "sentence-transformers/all-MiniLM-L6-v2": _model("bert-tiny", LONGER, SentenceVector(normalized=True)),
        "Helsinki-NLP/opus-mt-en-fr": translator(),
        "google/vit-base-patch16-224": _recognizer(),
    }
    for name, model in models.items():
        place = cache / f"models--{name.replace('/', '--')}"
        (place / "refs").mkdir(parents=True)
        (place / "refs" / "main").write_text(COMMIT)
        folder = place / "snapshots" / COMMIT
        model.save(folder, format="huggingface")
        if name.startswith("google-t5"):
            keys = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            (folder / "config.json").write_text(json.dumps(keys | {"task_specific_params": TASKS}), encoding="utf-8")


def _recognizer() -> Model:
    labels = tuple(f"animal {number}" for number in range(11))
    usage = Usage(labels=labels, image_mean=(0.5, 0.5, 0.5), image_std=(0.5, 0.5, 0.5))
    return Model(cutaway.build(shrunk("vit-tiny")), None, usage)


def furnish(folder: Path) -> None:
    """The folders and files that the pages' commands name."""
    translator().save(folder / "here")
    translator().save(folder / "there", format="huggingface")
    _model("gpt2").save(folder / "old", format="huggingface")
    tensors = load_file(folder / "old" / "model.safetensors")
    torch.save(tensors, folder / "old" / "pytorch_model.bin")
    (folder / "old" / "model.safetensors").unlink()
    write_files(folder)


def trained(out: Path) -> None:
    """A run that was stopped after one step of two, so that there is something to go on with."""
    data = Data(source=("train.en",), target=("train.fr",))
    short, often = ScheduleChoice(steps=2), Validation(every=1, tune=False)
    config = TrainConfig(data=data, model=ModelChoice(n_blocks=1), schedule=short, validation=often)
    with chdir(out.parent):
        train(config, out, stop=lambda: "SIGINT")


def write_files(folder: Path) -> None:
    """What the pages read."""
    for name in ("lines.txt", "english.txt"):
        (folder / name).write_text("".join(f"{text}\n" for text in TEXTS[:3]), encoding="utf-8")
    for name in ("train.en", "train.fr"):
        words = ("the cat sat on a mat" if name == "train.en" else "le chat était sur un tapis").split()
        lines = [" ".join(words[i // 6**j % 6] for j in range(4)) for i in range(24)]
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    (folder / "pairs.tsv").write_text("".join(f"a cat {i}\tun chat {i}\n" for i in range(60)), encoding="utf-8")
    (folder / "labels.tsv").write_text("".join(f"cats {i} are good\t{i % 2}\n" for i in range(60)), encoding="utf-8")
    (folder / "run.toml").write_text('[data]\nsource = "train.en"\ntarget = "train.fr"\n', encoding="utf-8")
    Image.new("RGB", (20, 30), (200, 100, 50)).save(folder / "photo.png")
