"""`cutaway resume`: a training that was stopped or killed goes on."""

from pathlib import Path
from typing import Annotated

import typer

from cutaway.cli.options import Json
from cutaway.cli.train import DeviceKey, Plot, stopping


def resume(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder that `train --out` named.")],
    device: DeviceKey = None,
    plot: Plot = False,
    force: Annotated[bool, typer.Option("--force", help="Go on even if settings or data have changed.")] = False,
    as_json: Json = False,
) -> None:
    """Go on with a training that was stopped or killed, to the same model as if it had not been."""
    from cutaway.cli.display.training import report, watching
    from cutaway.training import run

    with stopping() as stop, watching(plot) as watch:
        outcome = run.resume(folder, watch=watch, force=force, stop=stop, device=device)
    report(outcome, folder, as_json)
