"""`cutaway search`: the lines of a file that mean what a query means."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from cutaway.cli.io import count_of, inputs_of, load_model, show_progress
from cutaway.cli.options import EngineOptions, JsonLines, ModelOption, PoolingOption, with_options
from cutaway.cli.output import print_each, separator

if TYPE_CHECKING:
    from torch import Tensor

    from cutaway.tasks.search import Hit


@with_options(EngineOptions)
def search(
    query: Annotated[str, typer.Argument(help="What to look for; - for the lines of stdin.")],
    file: Annotated[Path, typer.Argument(help="A text whose lines are searched.")],
    model: ModelOption,
    index: Annotated[
        Literal["exact", "ann"], typer.Option(help="Look at every line, or through an index, for millions.")
    ] = "exact",
    cache: Annotated[bool, typer.Option(help="Keep the vectors of the lines in your cache.")] = True,
    top: Annotated[int | None, typer.Option(help="How many lines, best first; 10, or 1 for stdin.", min=1)] = None,
    pooling: PoolingOption = None,
    *,
    as_json: JsonLines = False,
    **given: Any,
) -> None:
    """Find the lines of a file that mean what a query means: score, line number, text. Empty lines are never found."""
    options = EngineOptions(**given)
    queries = None if query == "-" else [query]
    n = top if top is not None else 1 if queries is None else 10
    encoder = load_model(model, options)

    def watch(vectors: Iterator["Tensor"], total: int) -> Iterator["Tensor"]:
        return show_progress(vectors, total, scrolling=False)

    def line(hits: list["Hit"]) -> str:
        return separator(queries).join(f"{hit.score:.4f}\t{hit.line}\t{hit.text}" for hit in hits)

    def record(hits: list["Hit"]) -> dict[str, Any]:
        return {"hits": list(map(asdict, hits))}

    results = encoder.search(
        inputs_of(queries), file, top=n, index=index, cache=cache, watch=watch, pooling=pooling, **options.keywords
    )
    print_each(results, record if as_json else line, count_of(queries))
