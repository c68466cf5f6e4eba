"""Options that the task commands share. Nothing here imports torch."""

from typing import Annotated, Literal, NamedTuple

import typer

Texts = Annotated[
    list[str] | None, typer.Argument(metavar="TEXT", help="One or more texts; without any, the lines of stdin.")
]
ModelOption = Annotated[
    str, typer.Option("--model", "-m", metavar="MODEL", help="A folder, owner/name on the hub, or a llama2.c file.")
]
SHIPPED_TRANSLATOR = "en-fr"
TranslatorOption = Annotated[
    str,
    typer.Option(
        "--model", "-m", metavar="MODEL",
        help="A folder, or owner/name on the hub; by default the one that comes with cutaway, English to French.",
    ),
]  # fmt: skip
EngineOption = Annotated[
    Literal["native", "ctranslate2"] | None,
    typer.Option("--engine", help="What runs the model; the fastest that keeps the result by default."),
]
PrecisionOption = Annotated[
    Literal["float32", "bfloat16", "float16", "int8"] | None, typer.Option("--precision", help="Of the computation.")
]
PoolingOption = Annotated[
    Literal["mean", "cls", "pooler"] | None,
    typer.Option("--pooling", help="How tokens make a vector: as the model says, or else their mean."),
]
Dtype = Literal["float32", "float16", "bfloat16"]
DeviceOption = Annotated[
    str, typer.Option("--device", help="auto (a GPU if there is one), cpu, cuda, cuda:1 or mps.", show_default=False)
]
DtypeOption = Annotated[
    Dtype | None, typer.Option("--dtype", help="Of the weights as they are loaded; as stored by default.")
]
TopOption = Annotated[
    int | None,
    typer.Option(
        "--top",
        help="How many results, best first; by default 5 for one argument, 1 for each of several or of lines.",
        min=1,
    ),
]
JsonLines = Annotated[bool, typer.Option("--json", help="Print a JSON object a line, for other programs.")]

# of the commands that write
Beams = Annotated[
    int | None, typer.Option("--beams", help="Texts searched side by side, not sampled; 1 is greedy.", min=1)
]
NBest = Annotated[int, typer.Option("--n-best", help="Texts for each input, best first, one a line.", min=1)]
MaxTokens = Annotated[int | None, typer.Option("--max-tokens", help="Tokens to write at most.", min=1)]
Temperature = Annotated[
    float | None, typer.Option("--temperature", help="Sample: below 1 likelier words, above 1 bolder ones; 0: do not.")
]
TopK = Annotated[int | None, typer.Option("--top-k", help="Sample among the K likeliest tokens.", min=1)]
TopP = Annotated[float | None, typer.Option("--top-p", help="Sample among the likeliest tokens of this probability.")]
MinP = Annotated[float | None, typer.Option("--min-p", help="Sample among tokens this likely beside the likeliest.")]
Seed = Annotated[int | None, typer.Option("--seed", help="Sample, and the same text again for the same seed.", min=0)]
Stop = Annotated[list[str] | None, typer.Option("--stop", help="End a text before this string; may be repeated.")]
System = Annotated[str | None, typer.Option("--system", help="What the model is told before the conversation.")]
Source = Annotated[str | None, typer.Option("--source", help="The language of the text, for models that read several.")]
Target = Annotated[str | None, typer.Option("--target", help="The language to write, for models that write several.")]


class Where(NamedTuple):
    """On which device a command computes, and in which dtype it loads the weights."""

    device: str = "auto"
    dtype: Dtype | None = None

    @classmethod
    def of(cls, device: str, dtype: Dtype | None, engine: str | None = None, precision: str | None = None) -> "Where":
        """Where `auto` may choose, what only CPUs can do is done on one."""
        only_cpu = engine == "ctranslate2" or precision == "int8"
        return cls("cpu" if device == "auto" and only_cpu else device, dtype)
