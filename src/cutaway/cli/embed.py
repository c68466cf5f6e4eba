"""`cutaway embed`: texts as vectors."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cutaway.cli.io import count_of, inputs_of, load_model, show_progress
from cutaway.cli.options import EngineOptions, JsonLines, ModelOption, PoolingOption, Texts, with_options
from cutaway.cli.output import print_each
from cutaway.cli.terminal import show
from cutaway.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor


@with_options(EngineOptions)
def embed(
    model: ModelOption,
    texts: Texts = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write them all into a safetensors file instead.")
    ] = None,
    pooling: PoolingOption = None,
    *,
    as_json: JsonLines = False,
    **given: Any,
) -> None:
    """Turn texts into vectors, a line of numbers each. An empty line has one too: that of an empty sentence."""
    options = EngineOptions(**given)
    if out is not None and ((out.exists() and not out.is_file()) or not out.absolute().parent.is_dir()):
        raise InputError(f"can't write {out}: give the name of a file, in a folder that exists")
    encoder = load_model(model, options)
    results = encoder.embed(inputs_of(texts), pooling=pooling, **options.keywords)
    if out is None:
        print_each(results, _record if as_json else _numbers, count_of(texts))
        return
    from cutaway.tasks.vectors import write_vectors

    n, width = write_vectors(out, show_progress(results, count_of(texts), scrolling=False))
    written = {"file": str(out), "n": n, "width": width}
    show(json.dumps(written) if as_json else f"{out}: {n:,} vectors of {width} numbers")


def _numbers(vector: "Tensor") -> str:
    """Nine digits say all that is in a float32."""
    return f"[{', '.join(f'{number:.9g}' for number in vector.tolist())}]"


def _record(vector: "Tensor") -> str:
    return f'{{"vector": {_numbers(vector)}}}'
