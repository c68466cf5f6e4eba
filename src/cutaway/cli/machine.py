"""`cutaway machine`: this machine as cutaway sees it."""

import json
from typing import Annotated

import typer

from cutaway.cli.options import Json
from cutaway.cli.terminal import show


def machine(
    again: Annotated[bool, typer.Option("--again", help="Measure again, whatever the cache holds.")] = False,
    as_json: Json = False,
) -> None:
    """This machine: cores, speed in each precision, kernels, and what cutaway chooses by them. For bug reports."""
    from cutaway.cli.display.machine import print_report, report
    from cutaway.machine import measurements

    if again:
        measurements.forget()
    found = report()
    if as_json:
        show(json.dumps(found, indent=2))
    else:
        print_report(found)
