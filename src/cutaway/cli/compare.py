"""`cutaway compare`: which of several translators is better, and at which length."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from cutaway.cli.evaluate import EvaluationOptions
from cutaway.cli.io import check_writable, load_model
from cutaway.cli.options import Json, with_options
from cutaway.cli.terminal import show
from cutaway.errors import CheckpointError, InputError


@with_options(EvaluationOptions)
def compare(
    models: Annotated[list[str], typer.Argument(metavar="MODEL", help="Two or more.")],
    *,
    png: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw BLEU against sentence length.")] = None,
    as_json: Json = False,
    **given: Any,
) -> None:
    """Judge several translators on the same sentences: scores, speed, and BLEU against sentence length."""
    options = EvaluationOptions(**given)
    sources, references = options.texts()
    if len(models) < 2:
        raise InputError("compare two models or more; `cutaway evaluate` judges one")
    from cutaway.cli.display.scores import print_compared, record, trained
    from cutaway.loading import locate
    from cutaway.training.evaluate import draw_by_length, new_figure

    if png is not None:
        check_writable(png)
        known = new_figure().canvas.get_supported_filetypes()
        if png.suffix.lstrip(".").lower() not in known:
            raise InputError(f"{png} is not the name of a picture; end it in .png, .svg or .pdf")
    for name in models:  # one that is not there is told before the others are judged
        locate(name)
    loaded, found = {}, {}
    for name in models:
        loaded[name] = load_model(name, options)
        found[name] = options.evaluate(loaded[name], sources, references)
    if as_json:
        show(json.dumps({name: record(each) | trained(name) for name, each in found.items()}))
    else:
        print_compared(found, loaded, len(sources))
    if png is not None:
        try:
            draw_by_length(found).savefig(png, dpi=130)
        except (OSError, ValueError) as error:
            raise CheckpointError(f"can't write {png}: {error}") from None
