"""How good translators are, as tables and curves: `cutaway evaluate` and `cutaway compare`."""

from pathlib import Path
from typing import Any

from rich.table import Table

from cutaway.cli.display.sizes import short
from cutaway.cli.pager import Screen
from cutaway.cli.plot import plot
from cutaway.cli.terminal import show
from cutaway.model import Model
from cutaway.training import state
from cutaway.training.evaluate import Evaluation
from cutaway.training.folder import RunFolder, is_numbers


def print_scores(name: str, found: Evaluation) -> None:
    """The scores of one model, then by length."""
    for metric, score in found.scores.items():
        show(f"{metric} {score.value:.2f}   {score.signature}")
    _print_buckets({name: found})


def print_compared(found: dict[str, Evaluation], models: dict[str, Model], n: int) -> None:
    """A table, one by length, and curves of that."""
    table = Table("", "parameters", "BLEU", "chrF", "sentences/s", "training, s an epoch", box=None)
    for name, each in found.items():
        n_weights = sum(weight.numel() for weight in models[name].network.parameters())
        epoch = trained(name).get("seconds_an_epoch")
        table.add_row(
            name, short(n_weights), f"{each.scores['bleu'].value:.2f}", f"{each.scores['chrf'].value:.2f}",
            f"{n / each.seconds:,.1f}", "" if epoch is None else f"{epoch:,.0f}",
        )  # fmt: skip
    Screen().print(table)
    for name, score in next(iter(found.values())).scores.items():
        show(f"{name}: {score.signature}")
    _print_buckets(found)
    curves = [each.curve for each in found.values()]
    if all(len(curve) > 1 for curve in curves):
        for name, curve in zip(found, curves, strict=True):
            show(f"\nBLEU of {name} against words of the source")
            show("\n".join(plot([curve], 60, 6, low=0.0, high=max(y for each in curves for _, y in each))))


def _print_buckets(found: dict[str, Evaluation]) -> None:
    first = next(iter(found.values()))
    if len(found) == 1:
        scores, rows = ["BLEU", "chrF"], [[bucket.bleu, bucket.chrf] for bucket in first.buckets]
    else:
        scores = [f"BLEU of {name}" for name in found]
        rows = [[each.buckets[i].bleu for each in found.values()] for i in range(len(first.buckets))]
    table = Table("words", "sentences", *scores, box=None)
    for bucket, row in zip(first.buckets, rows, strict=True):
        table.add_row(str(bucket), f"{bucket.n:,}", *(f"{score:.2f}" for score in row))
    Screen().print(table)


def record(found: Evaluation) -> dict[str, Any]:
    return {
        "scores": {name: {"value": score.value, "signature": score.signature} for name, score in found.scores.items()},
        "by_length": [
            {"words": str(b), "n": b.n, "mean_words": b.words, "bleu": b.bleu, "chrf": b.chrf} for b in found.buckets
        ],
        "seconds": found.seconds,
    }


def trained(name: str) -> dict[str, float]:
    """How long an epoch of its training took, if the folder is that of a run."""
    _, facts = state.facts(RunFolder(Path(name)).training) or ("", {})
    seconds, epochs = facts.get("seconds", 0), facts.get("epochs", 0)
    if not is_numbers([seconds, epochs]) or not epochs > 0:  # what a stranger's state says may be anything
        return {}
    return {"seconds_an_epoch": seconds / epochs}
