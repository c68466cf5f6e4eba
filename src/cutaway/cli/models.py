"""`cutaway models`: what each preset weighs and costs."""

from typing import Annotated

import typer

from cutaway.cli.options import Json


def models(
    names: Annotated[list[str] | None, typer.Argument(help="Presets to show; all by default.")] = None,
    context: Annotated[int, typer.Option(help="Tokens that attention looks at, for the FLOPs.", min=1)] = 512,
    as_json: Json = False,
) -> None:
    """The models cutaway can build: parameters by part, FLOPs, bytes of weights and of the key/value cache."""
    from cutaway.cli.display.sizes import print_presets

    print_presets(names or [], context, as_json)
