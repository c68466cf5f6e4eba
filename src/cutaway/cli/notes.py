"""`cutaway notes`: the worked examples of the lecture notes, all at a glance or one step by step."""

import json
from typing import Annotated

import typer

from cutaway.cli.options import Json, chosen_number, refuse_option
from cutaway.cli.terminal import show


def notes(
    number: Annotated[
        str | None, typer.Argument(metavar="[NUMBER]", help="One example, with its arithmetic written out.")
    ] = None,
    as_json: Json = False,
) -> None:
    """The examples of five lecture notes on the Transformer, recomputed: what is printed, what is true, and why."""
    refuse_option(number)
    from cutaway.cli.display.notes import print_all, print_one
    from cutaway.seeing.notes import notes

    one = chosen_number(number, len(notes.data()["examples"]), "example")
    chosen = notes.examples() if one is None else [notes.example(one)]
    if as_json:
        records = [notes.to_json(worked) for worked in chosen]
        found = {"examples": records} if one is None else records[0]
        show(json.dumps(found, indent=2, ensure_ascii=False, allow_nan=False))  # -∞ is the string "-inf"
    elif one is None:
        print_all(chosen)
    else:
        print_one(chosen[0])
