"""Tiny models that write, and an engine with a script: what tests of tasks run on."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import cutaway
from cutaway.decoding.plan import Plan
from cutaway.engines.engine import Engine
from cutaway.generation import Generation, Prompt, Token, Written
from cutaway.model import Model
from cutaway.models.config import RecurrentConfig
from cutaway.models.usage import Usage
from cutaway.text.tokenizer import Tokenizer
from cutaway.text.train import train_tokenizer
from tests.support.families import noisy, shrunk, with_stacks

TEXTS = ["The cat sat on the mat.", "Le chat est assis sur le tapis.", "A dog ate the cat's hat.", "naïve 😀 日本"] * 3

T5_TASKS = {
    "summarization": {
        "early_stopping": True, "length_penalty": 2.0, "max_length": 20, "min_length": 6, "no_repeat_ngram_size": 3,
        "num_beams": 4, "prefix": "summarize: ",
    },
    "translation_en_to_de": {"early_stopping": True, "max_length": 30, "num_beams": 4,
                             "prefix": "translate English to German: "},
    "translation_en_to_fr": {"early_stopping": True, "max_length": 30, "num_beams": 4,
                             "prefix": "translate English to French: "},
}  # fmt: skip

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def tokenizer(kind: Any = "bpe", **special: str) -> Tokenizer:
    return train_tokenizer(TEXTS, kind=kind, vocabulary=320, special=special)


def model(
    preset: str,
    words: Tokenizer | None = None,
    *,
    positions: int | None = 64,
    usage: Usage | None = None,
) -> Model:
    """A preset, tiny and with random weights; `positions`: how many tokens it takes."""
    words = words or tokenizer()
    config = shrunk(preset)
    sizes: dict[str, Any] = {"vocabulary": words.vocabulary_size}
    if not isinstance(config, RecurrentConfig):
        sizes["max_positions"] = positions
    torch.manual_seed(0)
    network = noisy(cutaway.build(with_stacks(config, **sizes)), std=0.3).eval()
    return Model(network, words, usage or Usage(start=2, end=(3,), pad=0, never=(0, 1, 2, 4)), preset)


def t5(folder: Path, tasks: dict[str, Any] | None = None) -> Model:
    """A T5 as it is published: its tasks stand in config.json."""
    made = model("t5-small", tokenizer("unigram", mask="<extra_id_0>"), positions=None)
    made.save(folder, format="huggingface")
    path = folder / "config.json"
    keys = json.loads(path.read_text())
    keys["task_specific_params"] = T5_TASKS if tasks is None else tasks
    path.write_text(json.dumps(keys))
    return cutaway.load(folder)


def chatty(positions: int = 200, **usage: Any) -> Model:
    """A Llama with a chat template; <|end|> ends a turn, and only the template says so."""
    words = tokenizer(separator="<|end|>")
    words.chat_template = TEMPLATE
    return model("llama-15m", words, positions=positions, usage=Usage(start=2, end=(3,), **usage))


class Scripted(Engine):
    """Writes what it is told to, one script after the other; remembers what it was asked."""

    name = "native"
    precision = "float32"

    def __init__(self, model: Model, *scripts: list[int]) -> None:
        self.network, self.usage = model.network, model.usage
        self.scripts = list(scripts)
        self.asked: list[tuple[tuple[int, ...], Generation]] = []

    def generate(self, plan: Plan, prompts: Iterable[Prompt | None]) -> Iterator[list[Written]]:
        for prompt in prompts:
            tokens = () if prompt is None else tuple(self.generate_stream(plan, prompt))
            yield [] if prompt is None else [Written(tokens, -0.5, "end")] * plan.options.n_best

    def generate_stream(self, plan: Plan, prompt: Prompt) -> Iterator[Token]:
        room = plan.request(0, prompt).room
        limited = replace(plan.options, max_new_tokens=room) if prompt.room == room else plan.options
        self.asked.append((prompt.ids, limited))
        script = self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]
        for token in script[:room]:
            if token in plan.options.stop_ids:
                return
            yield Token(token, -0.1)

    def read(self, inputs: Tensor, mask: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        raise AssertionError("a scripted engine stands in for writing; no task that writes reads with it")

    hidden = read


def scripted(model: Model, *texts: str) -> Scripted:
    """The model's engine becomes one that writes these texts."""
    assert model.tokenizer is not None
    engine = Scripted(model, *(model.tokenizer.encode_target(text, special=False).ids for text in texts))
    model.engine = lambda name=None, precision=None: engine  # type: ignore[method-assign]
    return engine


def headed(preset: str, words: Tokenizer | None) -> Model:
    """A model of one half, as `shrunk` has it: it can't write."""
    config = shrunk(preset)
    if words is not None:
        assert config.encoder is not None
        config = replace(config, encoder=replace(config.encoder, vocabulary=words.vocabulary_size))
    return Model(cutaway.build(config).eval(), words, name=preset)
