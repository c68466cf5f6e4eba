"""`cutaway evaluate` and `cutaway compare`: how good translators are, as tables and curves."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from cutaway.cli.io import load_model, show_progress
from cutaway.cli.models import short
from cutaway.cli.options import Where
from cutaway.cli.pager import Screen
from cutaway.cli.plot import plot
from cutaway.cli.terminal import show
from cutaway.data.clean import join_neighbours
from cutaway.data.pairs import Pair, PairSpec, read_pairs
from cutaway.errors import CheckpointError, InputError
from cutaway.loading import locate
from cutaway.model import Model
from cutaway.training import state
from cutaway.training.evaluate import Evaluation, draw_by_length, evaluate, new_figure
from cutaway.training.folder import RunFolder, is_numbers


def run(
    name: str,
    sources: list[str],
    references: list[list[str]],
    beams: int | None,
    tokenized: str | None,
    out: Path | None,
    engine: str | None,
    precision: str | None,
    where: Where,
    as_json: bool,
) -> None:
    if out is not None:
        _check_place(out)
    found = _evaluated(load_model(name, where), sources, references, beams, tokenized, engine, precision)
    if out is not None:
        _write(out, "".join(text.replace("\n", " ") + "\n" for text in found.written))
    if as_json:
        show(json.dumps(_facts(found)))
        return
    for metric, score in found.scores.items():
        show(f"{metric} {score.value:.2f}   {score.signature}")
    _print_buckets({name: found})


def compare(
    names: Sequence[str],
    sources: list[str],
    references: list[list[str]],
    beams: int | None,
    png: Path | None,
    engine: str | None,
    precision: str | None,
    where: Where,
    as_json: bool,
) -> None:
    if len(names) < 2:
        raise InputError("compare two models or more; `cutaway evaluate` judges one")
    if png is not None:  # whether it can be drawn is known before hours are spent
        _check_place(png)
        known = new_figure().canvas.get_supported_filetypes()
        if png.suffix.lstrip(".").lower() not in known:
            raise InputError(f"{png} is no picture by its name; end it in .png, .svg or .pdf")
    found: dict[str, Evaluation] = {}
    for name in names:  # one that is not there is told before the others are judged
        locate(name)
    models: dict[str, Model] = {}
    for name in names:
        models[name] = load_model(name, where)
        found[name] = _evaluated(models[name], sources, references, beams, None, engine, precision)
    if as_json:
        show(json.dumps({name: _facts(each) | _trained(name) for name, each in found.items()}))
    else:
        _print_compared(found, models, len(sources))
    if png is not None:
        try:
            draw_by_length(found).savefig(png, dpi=130)
        except (OSError, ValueError) as error:
            raise CheckpointError(f"can't write {png}: {error}") from None


def _print_compared(found: dict[str, Evaluation], models: dict[str, Model], n: int) -> None:
    """A table, one by length, and curves of that."""
    table = Table("", "parameters", "BLEU", "chrF", "sentences/s", "training, s an epoch", box=None)
    for name, each in found.items():
        n_weights = sum(weight.numel() for weight in models[name].network.parameters())
        epoch = _trained(name).get("seconds_an_epoch")
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


def texts_of(
    source: Sequence[str], target: Sequence[str], pairs: Sequence[str], columns: tuple[str, ...], most: int = 1
) -> tuple[list[str], list[list[str]]]:
    """The sentences, and a list of translations for each reference: several --target are several references.

    `most`: neighbours are joined, up to so many."""
    if pairs:
        spec = [PairSpec(pairs=tuple(pairs), columns=columns)]
    else:
        if not source or not target:
            raise InputError("give the sentences and their translations: --source FILE --target FILE, or --pairs FILE")
        if len(source) > 1:
            raise InputError("give one --source; several --target are several references of it")
        spec = [PairSpec(source=tuple(source), target=(each,)) for each in target]
    columns_of: list[list[Pair]] = []
    for each in spec:
        read = []
        for pair in read_pairs(each):
            if not isinstance(pair, Pair):
                raise InputError(f"{pair.where}: {pair.why}")
            read.append(pair)
        columns_of.append(list(join_neighbours(read, most)))
    return [pair.source for pair in columns_of[0]], [[pair.target for pair in read] for read in columns_of]


def _evaluated(
    model: Model,
    sources: list[str],
    references: list[list[str]],
    beams: int | None,
    tokenized: str | None,
    engine: str | None,
    precision: str | None,
) -> Evaluation:
    def seen(texts: Iterator[str], sizes: Sequence[int]) -> Iterator[str]:
        return show_progress(texts, len(sources), scrolling=False, sizes=sizes)

    return evaluate(
        model, sources, references, beams=beams, tokenized=tokenized, engine=engine, precision=precision, seen=seen
    )  # fmt: skip


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


def _facts(found: Evaluation) -> dict[str, Any]:
    return {
        "scores": {name: {"value": score.value, "signature": score.signature} for name, score in found.scores.items()},
        "by_length": [
            {"words": str(b), "n": b.n, "mean_words": b.words, "bleu": b.bleu, "chrf": b.chrf} for b in found.buckets
        ],
        "seconds": found.seconds,
    }


def _trained(name: str) -> dict[str, float]:
    """How long an epoch of its training took, if the folder is that of a run."""
    _, facts = state.facts(RunFolder(Path(name)).training) or ("", {})
    seconds, epochs = facts.get("seconds", 0), facts.get("epochs", 0)
    if not is_numbers([seconds, epochs]) or not epochs > 0:  # what a stranger's state says may be anything
        return {}
    return {"seconds_an_epoch": seconds / epochs}


def _check_place(path: Path) -> None:
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise CheckpointError(f"can't write {path}: {'it is a folder' if path.is_dir() else 'its folder is not there'}")


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CheckpointError(f"can't write {path}: {error.strerror}") from None
