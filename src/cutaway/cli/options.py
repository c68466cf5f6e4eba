"""Options that the task commands share. Nothing here imports torch."""

from typing import Annotated, Literal

import typer

Texts = Annotated[
    list[str] | None, typer.Argument(metavar="TEXT", help="One or more texts; without any, the lines of stdin.")
]
ModelOption = Annotated[
    str, typer.Option("--model", "-m", metavar="MODEL", help="A folder, owner/name on the hub, or a llama2.c file.")
]
EngineOption = Annotated[
    Literal["native", "ctranslate2"] | None,
    typer.Option("--engine", help="What runs the model; the fastest that keeps the result by default."),
]
PrecisionOption = Annotated[
    Literal["float32", "bfloat16", "int8"] | None, typer.Option("--precision", help="Of the computation.")
]
TopOption = Annotated[
    int | None,
    typer.Option("--top", help="How many results, best first; by default 5 for an argument, 1 for a line.", min=1),
]
JsonLines = Annotated[bool, typer.Option("--json", help="Print a JSON object a line, for other programs.")]
