"""A made-up language that a small model learns in seconds, runs that learn it, and commands in processes of their own.

A word means another word, always the same one, and a sentence is said backwards: `pa ku to` is `Ti Uk Ap` turned round.
"""

import contextlib
import json
import multiprocessing as mp
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import matplotlib.backends.backend_agg  # all these once, by the server that commands are forked from
import matplotlib.figure  # noqa: F401
import sacrebleu  # noqa: F401
import tensorboardX.event_file_writer  # noqa: F401
import torch
import torch._dynamo  # optimisers ask for it when they are made

import cutaway.cli.train
import cutaway.training.run  # noqa: F401
from cutaway.cli.main import main
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
    "model.dropout=0.1", "tokenizer.vocabulary=330", "tokenizer.kind=bpe", "batches.tokens=128", "batches.shares=2",
    "schedule.steps=12", "schedule.warmup=3", "optimizer.kind=adamw", "optimizer.rate=0.005", "validation.every=3",
    "data.held_out=20", "data.max_tokens=24", "averaging.count=2", "machine.device=cpu", "machine.precision=float32",
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


# ---------------------------------------------------------------------------------------------------- commands


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


class Command:
    """`cutaway …` in a process of its own, which may be killed. Forked from a server that has torch: starts at once."""

    def __init__(self, command: list[str], log: Path, file_limit: int | None = None) -> None:
        self.log = log
        context = mp.get_context("forkserver")
        context.set_forkserver_preload(["tests.training.toy"])
        self.process: BaseProcess = context.Process(target=_command, args=(command, str(log), file_limit))
        self.process.start()

    def wait(self, seconds: float = 600.0) -> Done:
        self.process.join(seconds)
        assert self.process.exitcode is not None, f"still running after {seconds} s: {self.read('.err')}"
        return Done(self.process.exitcode, self.read(".out"), self.read(".err"))

    def read(self, suffix: str) -> str:
        path = self.log.with_suffix(suffix)
        return path.read_text() if path.is_file() else ""

    def wait_until(self, happened: Callable[[], bool], seconds: float = 300.0) -> bool:
        """Whether something happened before the command ended."""
        end = time.monotonic() + seconds
        while not happened():
            assert time.monotonic() < end, f"nothing happened: {self.read('.err')}"
            if not self.process.is_alive():
                return happened()
            time.sleep(0.002)
        return True

    def kill(self) -> None:
        self.process.kill()
        self.process.join()

    def signal(self, number: signal.Signals) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)


def _command(command: list[str], log: str, file_limit: int | None) -> None:
    """In the child."""
    for number, suffix in ((1, ".out"), (2, ".err")):
        file = os.open(Path(log).with_suffix(suffix), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, number)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if file_limit is not None:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))
    sys.argv = ["cutaway", *command]
    main()


def run(command: list[str], log: Path, file_limit: int | None = None) -> Done:
    return Command(command, log, file_limit).wait()


def one_sentence(done: Done) -> str:
    """The error that a command ended with: exit code 2, one line that says so, no traceback."""
    assert done.code == 2, (done.code, done.err)
    assert "Traceback" not in done.err, done.err
    last = done.err.splitlines()[-1]
    assert last.startswith("Error: "), done.err
    assert done.err.count("Error: ") == 1, done.err
    return last.removeprefix("Error: ")


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
    facts.pop("seconds")
    facts["looks"] = [{key: look[key] for key in look if key != "seconds"} for look in facts["looks"]]
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
