"""Training beside the peers, in real target tokens a second: `python -m bench.train`.

One table for each model: transformer-tiny, transformer-small (10,000 words each), transformer-base (37,000), steps of
about 4096 target tokens of Multi30k (--source, --target) or of random words shaped like it; and GPT-2 (124 M), steps of
4 × 512 tokens. Everybody learns the same texts with AdamW, gradients clipped, in float32, and in bfloat16 where the
machine is fast in it (--precision asks for it elsewhere). Label smoothing is off, which spares those who pay for it;
GPT-2 drops nothing, as nanoGPT has it. What else differs is in bench/learners.py.

The peers: Hugging Face's Seq2SeqTrainer and a plain loop over its Marian or GPT-2, nn.Transformer, JoeyNMT 2.3.0, eole
0.6.4 (OpenNMT-py's successor), nanoGPT's way of training. As shipped, and with our settings. JoeyNMT asks for an old
protobuf, eole for a web server, which neither needs here: `make .venv/.installed-peers` installs them without.
OpenNMT-py is not here: beside this torch pip finds its version 3.0.0 only, and it has been given up for eole.

--startup times something else: `cutaway train`, from the shell to the end of its first step, with a cache that has
nothing (the kernels are compiled, the texts encoded) and with the one that this left behind.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from bench import contest, harness, learners, lessons
from bench.harness import Contestant, Result
from bench.lessons import Lesson
from bench.report import Report, Table
from cutaway.info.size import size
from cutaway.machine.processor import has_bfloat16
from cutaway.models.config import TransformerConfig
from cutaway.models.presets import preset
from cutaway.training.precision import fastest_precision

MODELS = {"tiny": "transformer-tiny", "small": "transformer-small", "base": "transformer-base", "gpt2": "gpt2"}
PRECISIONS = ("float32", "bfloat16")
SHIPPED, OURS = "as shipped", "our settings"
PRODUCTS = "matrix products"


def lesson(model: str, options: argparse.Namespace) -> Lesson:
    """--quick: the same layers, fewer and of fewer words, and little to learn."""
    config = preset(MODELS[model])
    assert isinstance(config, TransformerConfig)
    changes: dict[str, object] = {"n_blocks": 2, "vocabulary": 1000} if options.quick else {}
    if model == "gpt2":
        changes |= {"dropout": 0.0, "attention_dropout": 0.0, "ff_dropout": 0.0}
    stacks = {name: getattr(config, name) for name in ("encoder", "decoder")}
    config = replace(config, **{name: replace(stack, **changes) for name, stack in stacks.items() if stack is not None})
    vocabulary = config.last.vocabulary or 0
    if model == "gpt2":
        n_rows, length = (2, 64) if options.quick else (4, 512)
        return Lesson(config, windows=lessons.text(vocabulary, n_rows, length))
    n_tokens = 256 if options.quick else options.tokens
    if options.source is None:
        steps = lessons.made_up(vocabulary, n_tokens)
    else:
        n = 2 if options.quick else options.batches
        steps = lessons.from_files(options.source, options.target, vocabulary, n_tokens, n)
    return Lesson(config, steps=steps, smoothing=options.smoothing)


def field(asked: Lesson) -> list[Contestant]:
    """In one precision."""

    def both(title: str, setup: object, *arguments: object) -> list[Contestant]:
        return [
            Contestant(f"{asked.precision} {title}, {OURS if ours else SHIPPED}", setup, (asked, *arguments, ours))  # type: ignore[arg-type]
            for ours in (False, True)
        ]

    found = [Contestant(f"{asked.precision} {contest.OURS}", learners.cutaway, (asked,))]
    if asked.windows:
        return [
            *found,
            *both("HF GPT-2", learners.plain, "hugging face"),
            *both("nanoGPT", learners.nanogpt),
        ]
    return [
        *found,
        Contestant(f"{asked.precision} HF Seq2SeqTrainer, {SHIPPED}", learners.seq2seq_trainer, (asked,)),
        *both("HF Marian loop", learners.plain, "hugging face"),
        *both("nn.Transformer", learners.plain, "torch"),
        *both("JoeyNMT", learners.joeynmt),
        *both("eole", learners.eole),
    ]


def table(title: str, asked: Lesson, results: Sequence[Result]) -> Table:
    """× shipped, × ours: the rate as a multiple of the best peer's, in any of the precisions."""
    limits = {result.name.split(" ", 1)[0]: result.rate for result in results if result.name.endswith(PRODUCTS)}
    results = [result for result in results if not result.name.endswith(PRODUCTS)]
    flops = size(asked.config, asked.length).flops_training
    bests = [harness.best([result for result in results if result.name.endswith(kind)]) for kind in (SHIPPED, OURS)]
    rows = []
    for result in results:
        precision, label = result.name.split(" ", 1)
        costs = [f"{result.peak_mb:.0f}", f"{result.setup_seconds:.1f}"]
        if result.rate is None:
            rows.append([precision, label, "failed", "–", "–", result.spread, "–", *costs])
            continue
        ratios = [f"{result.rate / best:.2f}" if best else "–" for best in bests]
        limit = limits.get(precision)
        share = f"{result.rate * flops / limit:.0%}" if limit else "–"
        rows.append([precision, label, f"{result.rate:.0f}", *ratios, result.spread, share, *costs])
    batches = asked.batches
    shapes = [
        " → ".join("×".join(map(str, ids.shape)) for ids in (batch.source, batch.tokens) if ids is not None)
        for batch in batches
    ]
    rounds = max((len(result.turns) for result in results), default=0)
    parameters, losses = (
        sorted({result.facts[name] for result in results if name in result.facts})
        for name in ("parameters", "first_loss")
    )
    measured = ", ".join(f"{rate / 1e9:.0f} GFLOP/s in {name}" for name, rate in limits.items() if rate)
    notes = [
        f"steps {', '.join(shapes)}: {sum(asked.n_tokens):,} target tokens; {rounds} rounds; "
        f"{harness.disturbance(results)}",
        f"parameters {' or '.join(f'{count:,}' for count in parameters)}; first losses {', '.join(map(str, losses))}",
        f"of GEMM: {flops / 1e6:.1f} MFLOP a target token, as a share of the model's matrix products alone: {measured}",
        *(f"failed: {result.name}: {result.error}" for result in results if result.error),
    ]
    columns = ["", "contestant", "tok/s", "× shipped", "× ours", "min–max", "of GEMM", "peak MB", "set-up s"]
    return Table(title, columns, rows, n_words=2, notes=notes, results=results)


def compete(report: Report, options: argparse.Namespace, model: str) -> None:
    asked = lesson(model, options)
    with tempfile.TemporaryDirectory() as place:
        each = [replace(asked, precision=precision, place=Path(place)) for precision in precisions(options)]
        limits = [Contestant(f"{one.precision} {PRODUCTS}", learners.products, (one,)) for one in each]
        results = contest.compete(options, [contestant for one in each for contestant in field(one)], limits)
    what = "random words" if options.source is None or model == "gpt2" else options.source.name
    small = ", small and quick: not a measurement" if options.quick else ""
    chosen, reason = fastest_precision(torch.device("cpu"), asked.config)
    title = f"{MODELS[model]}, {what}{small}; a run takes {chosen} by itself ({reason})"
    report.add(table(title, asked, results))


def precisions(options: argparse.Namespace) -> Sequence[str]:
    return options.precision or (PRECISIONS if has_bfloat16() else PRECISIONS[:1])


# From the shell to the first step


def first_step(options: argparse.Namespace, cache: Path) -> tuple[float, float]:
    """Seconds until `cutaway train` says its first word, and until it has made its first step."""
    command = [
        sys.executable, "-m", "cutaway", "train", "translate", "--source", str(options.source), "--target",
        str(options.target), "--preset", MODELS[options.model[0] if options.model else "tiny"],
        "--out", str(cache / "model"), "--force",
    ]  # fmt: skip
    began, word, said = time.perf_counter(), 0.0, "nothing"
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env=os.environ | {"CUTAWAY_CACHE": str(cache)}
    ) as process:
        assert process.stderr is not None
        try:
            for line in process.stderr:
                word, said = word or time.perf_counter() - began, line.strip()
                if line.startswith("step 1 "):
                    return word, time.perf_counter() - began
        finally:
            process.kill()
    raise SystemExit(f"cutaway train made no step, but said: {said}")


def startup(report: Report, options: argparse.Namespace) -> None:
    if options.source is None:
        raise SystemExit("--startup needs files: --source train.en --target train.de")
    times: dict[str, list[tuple[float, float]]] = {"cold": [], "warm": []}
    for _ in range(1 if options.quick else options.rounds):
        with tempfile.TemporaryDirectory() as cache:
            for found in times.values():
                found.append(first_step(options, Path(cache)))
    rows = []
    for name, found in times.items():
        words, steps = zip(*found, strict=True)
        spread = f"{min(steps):.1f}–{max(steps):.1f}"
        rows.append([name, f"{statistics.median(words):.1f}", f"{statistics.median(steps):.1f}", spread])
    notes = [f"{len(times['cold'])} rounds; Python's and torch's files are in the system's cache in both"]
    report.add(Table("cutaway train, seconds", ["cache", "first word", "first step", "min–max"], rows, notes=notes))


def main() -> None:
    parser = contest.parser("train", __doc__)
    parser.add_argument("--model", action="append", choices=MODELS, help="once or more; default: all")
    parser.add_argument("--precision", action="append", choices=PRECISIONS, help="once or more; default: what is fast")
    parser.add_argument("--source", type=Path, metavar="FILE", help="sentences, one a line; may be .gz")
    parser.add_argument("--target", type=Path, metavar="FILE", help="their translations")
    parser.add_argument("--batches", type=int, default=4, help="of the files, from short to long: one cycle")
    parser.add_argument("--tokens", type=int, default=4096, help="target tokens of a step, padding included")
    parser.add_argument("--smoothing", type=float, default=0.0, help="label smoothing of all translators")
    parser.add_argument("--startup", action="store_true", help="instead: seconds until the first step is made")
    options = parser.parse_args()
    if (options.source is None) != (options.target is None):
        parser.error("--source and --target go together")
    multiples = "rate as a multiple of the best peer's as shipped, and of the best peer's with our settings"
    report = contest.report(options, **({} if options.startup else {"× shipped, × ours": multiples}))
    if options.startup:
        startup(report, options)
        return
    for model in options.model or MODELS:
        compete(report, options, model)


if __name__ == "__main__":
    main()
