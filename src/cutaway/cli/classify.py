"""`cutaway classify`: the classes of texts."""

from typing import Annotated, Any

import typer

from cutaway.cli.io import inputs_of, load_model
from cutaway.cli.options import EngineOptions, JsonLines, ModelOption, Texts, TopOption, with_options
from cutaway.cli.output import n_results, print_labels
from cutaway.errors import InputError


@with_options(EngineOptions)
def classify(
    model: ModelOption,
    texts: Texts = None,
    pairs: Annotated[bool, typer.Option("--pairs", help="An input is two texts with a tab between them.")] = False,
    top: TopOption = None,
    *,
    as_json: JsonLines = False,
    **given: Any,
) -> None:
    """Name the class of each text. An empty line has none."""
    options = EngineOptions(**given)
    classifier = load_model(model, options)
    inputs = map(_pair, inputs_of(texts)) if pairs else inputs_of(texts)
    results = classifier.classify(inputs, top=n_results(texts, top), **options.keywords)
    print_labels(results, texts, as_json)


def _pair(line: str) -> tuple[str, str]:
    first, tab, second = line.partition("\t")
    if line and (not tab or "\t" in second):
        raise InputError(f"{line[:60]!r} is not two texts with a tab between them")
    return first, second
