"""`cutaway get`: a model of the hub into the cache."""

import json
from typing import Annotated

import typer

from cutaway.cli.options import Json, Revision
from cutaway.cli.terminal import show


def get(
    name: Annotated[str, typer.Argument(help="owner/name on the Hugging Face hub.")],
    revision: Revision = None,
    as_json: Json = False,
) -> None:
    """Fetch a model from the Hugging Face hub: its safetensors, config and tokenizer, never a pickle or code."""
    from cutaway.checkpoint_info import read_info
    from cutaway.checkpoints.hub import fetch
    from cutaway.cli.display.checkpoint import headline, record
    from cutaway.loading import SHIPPED, shipped

    found = read_info(SHIPPED / name if name in shipped() else fetch(name, revision=revision))
    if as_json:
        show(json.dumps({"name": name} | record(found), indent=2))
        return
    show(found.path)
    show(headline(found))
