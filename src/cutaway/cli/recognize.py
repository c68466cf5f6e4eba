"""`cutaway recognize`: the classes of images."""

from typing import Annotated, Any

import typer

from cutaway.cli.io import inputs_of, load_model
from cutaway.cli.options import EngineOptions, JsonLines, ModelOption, TopOption, with_options
from cutaway.cli.output import n_results, print_labels


@with_options(EngineOptions)
def recognize(
    model: ModelOption,
    images: Annotated[
        list[str] | None, typer.Argument(metavar="IMAGE", help="Files; without any, their names from stdin.")
    ] = None,
    top: TopOption = None,
    *,
    as_json: JsonLines = False,
    **given: Any,
) -> None:
    """Name what images show. With a classifier of images, like ViT."""
    options = EngineOptions(**given)
    classifier = load_model(model, options)
    results = classifier.recognize(inputs_of(images), top=n_results(images, top), **options.keywords)
    print_labels(results, images, as_json)
