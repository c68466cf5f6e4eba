"""Loading and saving a checkpoint beside Hugging Face's transformers: `python -m bench.load`.

The checkpoint is GPT-2's size (124 M parameters, float32), with random weights, written by transformers. Every figure
is of a fresh process that has imported what it needs: seconds, and the most memory it had above the import, mapped
pages of the file included. Contestants take turns. The file is in the system's cache for all of them.

A mapped file is read when it is used, so "load" alone may read little of it; "load, then read" goes through every
weight once. Both save into a new folder and leave it to the system when the files reach the disk (cutaway waits for
that, by fsync, only where it replaces a model).
"""

import argparse
import gc
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from bench import harness

JOBS = ("load", "load, then read", "load, then save")
PEERS = ("cutaway", "transformers")
TARGETS = {"load, then save": (1.5, 1.2)}  # × transformers' time, × the file's size


# In the contestant's process


def _memory(field: str) -> int:
    """Bytes: VmRSS now, or VmHWM at most since the last reset."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"no {field} in /proc/self/status")


def _loader(peer: str) -> tuple[Callable[[str], Any], Callable[[Any, str], object], Callable[[Any], Any]]:
    """Load a folder, save to another, and the torch module; everything is imported already."""
    if peer == "cutaway":
        from cutaway.loading import load

        return load, lambda model, out: model.save(out, format="huggingface"), lambda model: model.network
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    kind = transformers.GPT2LMHeadModel
    return kind.from_pretrained, lambda model, out: model.save_pretrained(out), lambda model: model


def work(peer: str, job: str, folder: str, out: str) -> dict[str, float]:
    load, save, network = _loader(peer)
    gc.collect()
    before = _memory("VmRSS")
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # begin the peak anew
    start = time.perf_counter()
    model = load(folder)
    if job == "load, then read":
        sum(float(weight.detach().sum()) for weight in network(model).parameters())
    elif job == "load, then save":
        save(model, out)
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "bytes": max(_memory("VmHWM") - before, 0)}


def make(folder: str) -> None:
    import torch
    import transformers

    torch.manual_seed(0)
    transformers.logging.disable_progress_bar()
    transformers.GPT2LMHeadModel(transformers.GPT2Config()).save_pretrained(folder)


# In the parent


def _run(*arguments: str) -> str:
    done = subprocess.run([sys.executable, "-m", "bench.load", *arguments], capture_output=True, encoding="utf-8")
    if done.returncode:
        raise SystemExit(
            f"{' '.join(arguments)} failed: {(done.stderr.strip().splitlines() or ['no reason given'])[-1]}"
        )
    return done.stdout


def measure(folder: Path, rounds: int) -> dict[tuple[str, str], list[dict[str, float]]]:
    found: dict[tuple[str, str], list[dict[str, float]]] = {(job, peer): [] for job in JOBS for peer in PEERS}
    for i in range(rounds):
        for job in JOBS:
            for peer in PEERS if i % 2 == 0 else PEERS[::-1]:
                out = folder.parent / "out"
                shutil.rmtree(out, ignore_errors=True)
                found[job, peer].append(json.loads(_run("--work", peer, job, str(folder), str(out))))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.load", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=5, help="fresh processes for each figure, which is their median")
    parser.add_argument("--json", metavar="FILE", help="the table, as JSON")
    parser.add_argument("--markdown", action="store_true", help="the table in Markdown")
    parser.add_argument("--work", nargs=4, metavar=("PEER", "JOB", "FOLDER", "OUT"), help=argparse.SUPPRESS)
    parser.add_argument("--make", metavar="FOLDER", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        print(json.dumps(work(*options.work)))
        return
    if options.make:
        make(options.make)
        return
    harness.stop_on_signals()
    from bench.report import Report, Table, machine_facts

    report = Report(machine_facts(), markdown=options.markdown, json_file=options.json)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "model"
        _run("--make", str(folder))
        n_file = (folder / "model.safetensors").stat().st_size
        found = measure(folder, options.rounds)
    rows, notes = [], []
    for (job, peer), turns in found.items():
        seconds, most = [statistics.median(turn[key] for turn in turns) for key in ("seconds", "bytes")]
        theirs = statistics.median(turn["seconds"] for turn in found[job, "transformers"])
        times = [turn["seconds"] for turn in turns]
        spread = f"{min(times):.2f}–{max(times):.2f}"
        rows.append(
            [
                job,
                peer,
                f"{seconds:.2f}",
                f"{seconds / theirs:.2f}",
                spread,
                f"{most / 1e6:.0f}",
                f"{most / n_file:.2f}",
            ]
        )
        if peer == "cutaway" and job in TARGETS:
            slow, large = TARGETS[job]
            met = seconds / theirs <= slow and most / n_file <= large
            notes.append(f"{job}: at most {slow} × the time and {large} × the file: {'met' if met else 'missed'}")
    title = f"GPT-2's size: a file of {n_file / 1e6:.0f} MB, {options.rounds} rounds"
    columns = ["", "contestant", "s", "× transformers", "min–max", "peak MB", "× file"]
    report.add(Table(title, columns, rows, n_words=2, notes=notes))


if __name__ == "__main__":
    main()
