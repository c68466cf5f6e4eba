"""A made-up language that a small model learns in seconds, and runs that learn it.

A word means another word, always the same one, and a sentence is said backwards: `pa ku to` is `Ti Uk Ap` turned round.
"""

import contextlib
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cutaway.files import parse_json
from cutaway.training.config import TrainConfig
from cutaway.training.toml import with_settings

WORDS = {first + second: (second + first).upper() for first in "ptkmsl" for second in "aeiou"}


def translate(text: str) -> str:
    """What a sentence of this language means."""
    return " ".join(WORDS[word] for word in reversed(text.split()))


def sentences(n: int, seed: int = 0, longest: int = 6) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(list(WORDS), k=draw.randint(1, longest))) for _ in range(n)]


@dataclass(frozen=True)
class Corpus:
    source: Path
    target: Path

    def options(self) -> list[str]:
        return ["--source", str(self.source), "--target", str(self.target)]


def corpus(folder: Path, n: int = 400, seed: int = 0, longest: int = 6) -> Corpus:
    """Two aligned files."""
    folder.mkdir(parents=True, exist_ok=True)
    found = Corpus(folder / "train.toy", folder / "train.real")
    texts = sentences(n, seed, longest)
    found.source.write_text("".join(f"{text}\n" for text in texts))
    found.target.write_text("".join(f"{translate(text)}\n" for text in texts))
    return found


SMALL = [
    "model.preset=transformer-tiny", "model.n_blocks=1", "model.d_model=16", "model.n_heads=2", "model.d_ff=32",
    "model.dropout=0.1", "tokenizer.vocabulary=330", "tokenizer.kind=bpe", "batches.tokens=128",
    "batches.micro_batches=2", "schedule.steps=12", "schedule.warmup=3", "optimizer.kind=adamw", "optimizer.rate=0.005",
    "validation.every=3", "data.held_out=20", "data.max_tokens=24", "averaging.count=2", "machine.device=cpu",
    "machine.precision=float32", "validation.tune=false",
]  # fmt: skip
"""A run of a second."""
EVERY_STEP = "saving.minutes=1e-9"


def config(data: Corpus, *settings: str) -> TrainConfig:
    plain = TrainConfig()
    given = replace(plain, data=replace(plain.data, source=(str(data.source),), target=(str(data.target),)))
    return with_settings(given, [*SMALL, *settings])


def arguments(data: Corpus, out: Path, *settings: str) -> list[str]:
    """`cutaway train …` of the same run."""
    command = ["train", "translate", *data.options(), "--out", str(out)]
    for setting in (*SMALL, *settings):
        command += ["--set", setting]
    return command


# ------------------------------------------------------------------------------------------- what a run leaves


def metrics(folder: Path) -> list[dict[str, Any]]:
    """metrics.jsonl but for timings."""
    lines = [parse_json(line.encode()) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: line[key] for key in line if key not in ("seconds", "tokens_per_second")} for line in lines]


def newest(folder: Path) -> Path:
    return folder / "training" / (folder / "training" / "latest").read_text().strip()


def left_behind(folder: Path) -> dict[str, Any]:
    """All that a run has learnt: bytes of the model and of the newest state, and its facts but for timings."""
    state = newest(folder)
    facts = json.loads((state / "facts.json").read_text())
    del facts["seconds"], facts["validation_seconds"]
    facts["validations"] = [{key: each[key] for key in each if key != "seconds"} for each in facts["validations"]]
    bytes_of = {f"{state.name}/{path.name}": path.read_bytes() for path in sorted(state.glob("*.safetensors"))}
    return {"model.safetensors": (folder / "model.safetensors").read_bytes(), "facts": facts} | bytes_of


def same_run(folder: Path, other: Path) -> None:
    """Two runs ended alike, bit for bit."""
    one, two = left_behind(folder), left_behind(other)
    assert one.keys() == two.keys()
    assert {name: one[name] == two[name] for name in one} == dict.fromkeys(one, True)
    assert metrics(folder) == metrics(other)


@contextlib.contextmanager
def read_back(path: Path) -> Iterator[bytearray]:
    """The bytes of a file, to be changed and written back."""
    data = bytearray(path.read_bytes())
    yield data
    path.write_bytes(data)
