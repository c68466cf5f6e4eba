"""Forward, and forward + backward, beside the peers, in real target tokens a second: `python -m bench.forward`.

One table for each model and mode. Forward is an evaluation step (eval mode, no gradients); forward + backward is a
training step without its optimiser (train mode with dropout, gradients dropped after it). Both end in the mean
cross-entropy over the real target tokens. In bf16 the peers run under torch.autocast, as their users do; cutaway in
the precision that it would train this model in: bfloat16 only where that measured faster on this machine.
"""

import argparse
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import product
from typing import Any

import torch
from torch.nn import functional as F

from bench import harness
from bench.data import IGNORED, Batch, text_batches, translation_batches
from bench.harness import Contestant, Result, Work
from bench.peers import build_peer
from bench.report import Report, Table, machine_facts
from cutaway.info.size import size
from cutaway.kernels.choice import default
from cutaway.models.presets import preset
from cutaway.training.precision import computing, fastest_precision

MODELS = ("transformer-tiny", "transformer-base", "gpt2")  # tables of 10,000, 37,000 (the paper's) and 50,257 tokens
MODES = ("forward", "forward+backward")
PRECISIONS = ("fp32", "bf16")
PEER_NAMES = {
    "cutaway": "cutaway",
    "torch": "nn.Transformer",
    "hugging face": "HF Marian",
}
LANGUAGE_MODEL_NAMES = {"torch": "nn.TransformerEncoder", "hugging face": "HF GPT-2"}


SIZES = ("all", "typical", "small")  # batches: short, typical and long ones; the typical one only; small ones


def batches(name: str, which: str) -> list[Batch]:
    vocabulary = preset(name).decoder.vocabulary
    small = which == "small"
    if name == "gpt2":
        return text_batches(vocabulary, n_rows=1 if small else 4, length=256 if small else 512)
    made = translation_batches(vocabulary, n_tokens=512 if small else 4096)
    return made[1:2] if which == "typical" else made


def precision_context(name: str, peer: str, precision: str) -> Callable[[], AbstractContextManager[Any]]:
    if precision == "fp32":
        return nullcontext
    if peer == "cutaway":
        cpu = torch.device("cpu")
        return lambda: computing(cpu, fastest_precision(cpu, preset(name))[0], default())
    return lambda: torch.autocast("cpu", dtype=torch.bfloat16)


def setup(name: str, mode: str, precision: str, peer: str, our_settings: bool, which: str) -> Work:
    """One contestant, in its own process."""
    torch.set_num_threads(harness.cores())
    torch.manual_seed(0)
    model, logits = build_peer(name, peer, our_settings=our_settings)
    n_parameters = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    expected = size(name).parameters
    if abs(n_parameters / expected - 1) > 0.005:
        raise ValueError(f"{n_parameters:,} parameters, but cutaway's {name} has {expected:,}: not the same model")
    training = mode == "forward+backward"
    model.train(training)
    context = precision_context(name, peer, precision)

    def loss_of(batch: Batch) -> torch.Tensor:
        with context():
            return F.cross_entropy(logits(batch).flatten(0, 1), batch.labels.flatten(), ignore_index=IGNORED)

    def step(batch: Batch, n_tokens: int) -> int:
        with torch.set_grad_enabled(training):
            loss = loss_of(batch)
        if training:
            loss.backward()
            model.zero_grad(set_to_none=True)
        return n_tokens

    work = batches(name, which)
    with torch.no_grad():
        first_loss = loss_of(work[0]).item()
    uniform = math.log(int(work[0].labels.max()) + 1)
    if not abs(first_loss - uniform) < 2.0:
        raise ValueError(f"its first loss is {first_loss:.2f}; an untrained model has about ln V = {uniform:.2f}")
    steps = [lambda batch=batch, n=batch.n_tokens: step(batch, n) for batch in work]
    facts = {"parameters": n_parameters, "first_loss": round(first_loss, 3)}
    return Work(steps, lambda: model.zero_grad(set_to_none=True), facts)


def contestants(name: str, mode: str, precisions: Sequence[str], which: str) -> list[Contestant]:
    names = PEER_NAMES | (LANGUAGE_MODEL_NAMES if name == "gpt2" else {})
    found = []
    for precision, (peer, title) in product(precisions, names.items()):
        for ours in (True,) if peer == "cutaway" else (False, True):
            label = title if peer == "cutaway" else f"{title}, {'our settings' if ours else 'as shipped'}"
            found.append(Contestant(f"{precision} {label}", setup, (name, mode, precision, peer, ours, which)))
    return found


def table(name: str, mode: str, results: Sequence[Result], which: str) -> Table:
    """Three ratios: to the best peer as shipped in the same precision, as shipped in either, and with our settings."""
    as_shipped = [result for result in results if result.name.endswith("as shipped")]
    with_ours = harness.best([result for result in results if result.name.endswith("our settings")])

    def ratio(rate: float, other: float | None) -> str:
        return "–" if other is None else f"{rate / other:.2f}"

    rows, failures = [], []
    for result in results:
        precision, label = result.name.split(" ", 1)
        facts = [f"{result.peak_mb:.0f}", f"{result.setup_seconds:.1f}"]
        if result.rate is None:
            rows.append([precision, label, "failed", "–", "–", "–", result.spread, *facts])
            failures.append(f"failed: {result.name}: {result.error}")
            continue
        same = harness.best([other for other in as_shipped if other.name.startswith(precision)])
        ratios = [ratio(result.rate, other) for other in (same, harness.best(as_shipped), with_ours)]
        rows.append([precision, label, f"{result.rate:.0f}", *ratios, result.spread, *facts])

    parameters = sorted({result.facts["parameters"] for result in results if result.facts})
    losses = sorted({result.facts["first_loss"] for result in results if result.facts})
    shapes = [
        " → ".join("×".join(map(str, ids.shape)) for ids in (batch.source, batch.tokens) if ids is not None)
        for batch in batches(name, which)
    ]
    rounds = max((len(result.turns) for result in results), default=0)
    notes = [
        f"batches {', '.join(shapes)}; {rounds} rounds; {harness.disturbance(results)}",
        f"parameters {' or '.join(f'{count:,}' for count in parameters)}; first losses {', '.join(map(str, losses))}",
        *failures,
        *(["small batches: a sanity run, not a measurement"] if which == "small" else []),
    ]
    columns = ["", "contestant", "tok/s", "× shipped", "× shipped any", "× ours any", "min–max", "peak MB", "set-up s"]
    return Table(f"{name}, {mode}", columns, rows, n_words=2, notes=notes, results=results)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.forward", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--model", action="append", choices=MODELS, help="once or more; default: all")
    parser.add_argument("--mode", action="append", choices=MODES, help="once or more; default: both")
    parser.add_argument("--precision", action="append", choices=PRECISIONS, help="once or more; default: both")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each contestant; the rate is their median")
    parser.add_argument("--seconds", type=float, default=5.0, help="a turn lasts so long, and a cycle of all batches")
    parser.add_argument("--limit", type=float, default=900.0, help="seconds after which a turn counts as failed")
    parser.add_argument(
        "--patience", type=float, default=60.0, help="seconds to wait, before a turn, for a quiet machine"
    )
    parser.add_argument("--batches", choices=SIZES, default="all", help="short, typical and long ones, or fewer")
    parser.add_argument("--quick", action="store_true", help="one short round of small batches: does it all run?")
    parser.add_argument("--json", metavar="FILE", help="every single rate, as JSON")
    parser.add_argument("--markdown", action="store_true", help="tables in Markdown")
    options = parser.parse_args()
    harness.stop_on_signals()

    precisions = options.precision or PRECISIONS
    facts = machine_facts()
    if "bf16" in precisions:
        chosen = {name: fastest_precision(torch.device("cpu"), preset(name))[0] for name in options.model or MODELS}
        told = ", ".join(f"{name} in {precision}" for name, precision in chosen.items())
        facts["bf16"] = f"cutaway ran {told}, as measured on this machine; the peers under autocast to bfloat16"
    facts["× shipped"] = "rate as a multiple of the best peer's as shipped, in the same precision; any: in either"
    facts["× ours any"] = "the same of the best peer with our settings, in either precision"
    rounds, seconds, patience = (1, 0.5, 0.0) if options.quick else (options.rounds, options.seconds, options.patience)
    report = Report(facts, markdown=options.markdown, json_file=options.json)
    for name, mode in product(options.model or MODELS, options.mode or MODES):
        which = "small" if options.quick else options.batches
        field = contestants(name, mode, precisions, which)
        results = harness.compete(field, rounds=rounds, seconds=seconds, limit=options.limit, patience=patience)
        report.add(table(name, mode, results, which))


if __name__ == "__main__":
    main()
