"""`cutaway info`: what a model is, without loading its weights."""

import json
from typing import Annotated

import typer

from cutaway.cli.options import Json, ModelArgument, Revision
from cutaway.cli.terminal import show


def info(
    name: ModelArgument,
    tensors: Annotated[
        bool, typer.Option("--tensors", help="Every tensor: their name, ours, shape and dtype.")
    ] = False,
    revision: Revision = None,
    as_json: Json = False,
) -> None:
    """What a model is: family, sizes, tokenizer, licence. Reads the headers of its files, not the weights."""
    from cutaway.checkpoint_info import read_info
    from cutaway.cli.display import checkpoint
    from cutaway.loading import locate

    found = read_info(locate(name, revision=revision))
    if not as_json:
        checkpoint.print_checkpoint(found, tensors=tensors)
        return
    record = checkpoint.record(found)
    if tensors:
        record["tensors"] = [checkpoint.tensor_record(stored) for stored in checkpoint.in_order(found.stored)]
    show(json.dumps(record, indent=2))
