"""Does a run survive kill -9? It is killed again and again, at random and while it saves: `python -m bench.chaos`.

A small translator learns a made-up language and writes its state after every step. It is killed at random moments; half
of the kills wait until a state, a model or a file of weights is being written, and come right then. After each kill the
folder must load, once it has a model, and `cutaway resume` goes on. In the end its weights, its optimiser's memory and
its metrics must be those of a run that nobody disturbed, bit for bit; if not, the exit code is 1.
"""

import argparse
import json
import multiprocessing as mp
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

import cutaway
from bench.harness import stop_on_signals
from bench.report import Table, machine_facts
from cutaway.cli import main as cli
from cutaway.errors import CutawayError

WORDS = {a + b: (b + a).upper() for a in "ptkmsl" for b in "aeiou"}
HALF = (".writing-*", "snapshots/.writing-*", "../.model.safetensors.aside", ".latest.aside")
"""What there is in training/ only while something is written."""


@dataclass(frozen=True)
class Kill:
    """What a kill met: the newest state's step, and what was half written."""

    seconds: float
    step: int
    half: tuple[str, ...]
    loads: bool | None  # None: there was no model yet


def corpus(folder: Path) -> list[str]:
    """Sentences, and what they mean: each word another one, in turned order."""
    draw = random.Random(0)
    texts = [draw.choices(list(WORDS), k=draw.randint(1, 6)) for _ in range(400)]
    (folder / "source.txt").write_text("".join(" ".join(text) + "\n" for text in texts))
    (folder / "target.txt").write_text("".join(" ".join(WORDS[w] for w in text[::-1]) + "\n" for text in texts))
    return ["--source", str(folder / "source.txt"), "--target", str(folder / "target.txt")]


def settings(steps: int) -> list[str]:
    given = {
        "model.preset": "transformer-tiny", "model.n_blocks": 2, "model.d_model": 64, "model.n_heads": 4,
        "model.d_ff": 128, "model.dropout": 0.2, "tokenizer.vocabulary": 330, "batches.tokens": 256,
        "batches.micro_batches": 2, "data.max_tokens": 24, "data.held_out": 20, "schedule.steps": steps,
        "validation.every": 2, "averaging.ema": 0.9, "averaging.count": 3, "saving.minutes": 1e-9,
    }  # fmt: skip
    return [part for name, value in given.items() for part in ("--set", f"{name}={value}")]


def start(command: list[str], log: Path) -> BaseProcess:
    """`cutaway …` in a process of its own, forked from one that has loaded torch: it starts at once."""
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(["cutaway.cli.display.training", "matplotlib.figure", "torch._dynamo"])
    process = context.Process(target=_command, args=(command, str(log)))
    process.start()
    return process


def _command(command: list[str], log: str) -> None:
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for number in (1, 2):
        os.dup2(file, number)
    torch.set_num_threads(1)  # many of these are killed, so they should be quick on a busy machine, too
    sys.argv = ["cutaway", *command]
    cli.main()


def finish(command: list[str], log: Path) -> None:
    process = start(command, log)
    process.join()
    if process.exitcode:
        raise SystemExit(log.read_text())


def half_written(out: Path) -> tuple[str, ...]:
    found = []
    for pattern in HALF:
        folder, _, name = pattern.rpartition("/")
        found += [path.name for path in (out / "training" / folder).glob(name)]
    return tuple(found)


def newest_step(out: Path) -> int:
    return max((int(path.name[5:]) for path in (out / "training").glob("step-*")), default=0)


def wait(process: BaseProcess, happened: Callable[[], object], seconds: float) -> bool:
    """False if the process ended, or the time was over, before it happened. Looks often: a save takes some 10 ms."""
    end = time.monotonic() + seconds
    while not happened():
        if not process.is_alive() or time.monotonic() > end:
            return False
        time.sleep(0.001)
    return True


def kill(process: BaseProcess, out: Path, began: float) -> Kill | None:
    """None: it had ended before."""
    process.kill()
    process.join()
    if process.exitcode != -signal.SIGKILL:
        return None
    loads: bool | None = None
    if (out / "model.safetensors").exists():
        try:
            cutaway.load(out).translate(["pa ku to"])
            loads = True
        except CutawayError as error:
            print(f"after the kill {out} does not load: {error}", file=sys.stderr)
            loads = False
    return Kill(time.monotonic() - began, newest_step(out), half_written(out), loads)


def chaos(folder: Path, kills: int, steps: int, seed: int) -> tuple[list[Kill], dict[str, bool]]:
    """All kills, and what was the same in the end."""
    draw, data, log = random.Random(seed), corpus(folder), folder / "log"
    train = ["train", "translate", *data, *settings(steps)]
    whole, out = folder / "whole", folder / "out"
    finish([*train, "--out", str(whole)], log)
    command, found = [*train, "--out", str(out)], list[Kill]()
    while len(found) < kills:
        began = time.monotonic()
        process = start(command, log)
        before = newest_step(out)
        wait(process, (out / "run.toml").exists, 120)
        target = before + draw.randint(0, 6)
        if draw.random() < 0.5:  # as soon as something is being written, after some steps
            wait(process, lambda target=target: newest_step(out) >= target and half_written(out), 120)
            time.sleep(draw.choice((0.0, 0.0005, 0.002, 0.005)))
        else:  # at any moment: while it starts, or within some steps
            wait(process, lambda target=target: newest_step(out) > target, draw.choice((draw.uniform(0, 9), 120)))
            time.sleep(draw.uniform(0, 0.3))
        if (done := kill(process, out, began)) is None:
            if process.exitcode:
                raise SystemExit(log.read_text())
            break  # it was done
        found.append(done)
        say(f"kill {len(found)} of {kills}: step {done.step}, half written: {', '.join(done.half) or 'nothing'}")
        if (out / "run.toml").exists():
            command = ["resume", str(out)]
        else:
            shutil.rmtree(out, ignore_errors=True)  # killed as it began
    finish(command, log)
    say("")
    return found, same(out, whole)


def same(out: Path, whole: Path) -> dict[str, bool]:
    state = (whole / "training" / "latest").read_text().strip()
    files = [
        "model.safetensors",
        *(f"training/{state}/{name}.safetensors" for name in ("weights", "average", "optimizer")),
    ]
    alike = {
        name: (out / name).is_file() and (out / name).read_bytes() == (whole / name).read_bytes() for name in files
    }
    return alike | {"metrics.jsonl but for timings": metrics(out) == metrics(whole)}


def metrics(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: line[key] for key in line if key not in ("seconds", "tokens_per_second")} for line in lines]


def say(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.chaos", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--steps", type=int, help="of the run; five for each kill by default")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--markdown", action="store_true", help="the tables in Markdown")
    options = parser.parse_args()
    stop_on_signals()
    steps = options.steps or max(12, 5 * options.kills)
    with tempfile.TemporaryDirectory(prefix="chaos.") as folder:
        os.environ["CUTAWAY_CACHE"] = str(Path(folder) / "cache")
        kills, alike = chaos(Path(folder), options.kills, steps, options.seed)
    asked = [done for done in kills if done.loads is not None]
    saving = [done for done in kills if done.half]
    rows = [
        ["kills", f"{len(kills)} of {options.kills}"],
        ["while something was being written", f"{len(saving)}"],
        ["of these, a state", f"{sum(any(not name.endswith('.aside') for name in done.half) for done in saving)}"],
        ["before there was a model", f"{len(kills) - len(asked)}"],
        ["the folder loaded and translated", f"{sum(bool(done.loads) for done in asked)} of {len(asked)}"],
        *([f"the same bits: {name}", "yes" if is_same else "NO"] for name, is_same in alike.items()),
    ]
    notes = [f"killed at steps {', '.join(str(done.step) for done in kills)}", machine_facts()["machine"]]
    table = Table(f"a run of {steps} steps, killed and resumed", ["what", "found"], rows, notes=notes)
    print(table.markdown() if options.markdown else table.text())
    if len(kills) < options.kills:
        print("the run ended before all kills were made: give it more --steps", file=sys.stderr)
    if not all(alike.values()) or not all(done.loads for done in asked):
        sys.exit(1)


if __name__ == "__main__":
    main()
