"""Options that commands share, and sets of them that are declared once. Nothing here imports torch."""

from collections.abc import Callable
from dataclasses import Field, dataclass, fields
from inspect import Parameter, get_annotations, signature
from typing import Annotated, Any, Literal, TypeVar

import typer

from cutaway.checks import parse_int
from cutaway.errors import InputError

Texts = Annotated[
    list[str] | None, typer.Argument(metavar="TEXT", help="One or more texts; without any, the lines of stdin.")
]
ModelOption = Annotated[
    str, typer.Option("--model", "-m", metavar="MODEL", help="A folder, owner/name on the hub, or a llama2.c file.")
]
ModelArgument = Annotated[
    str, typer.Argument(metavar="MODEL", help="A folder, owner/name on the hub, or a llama2.c file.")
]
SHIPPED_TRANSLATOR = "en-fr"
TranslatorOption = Annotated[
    str,
    typer.Option(
        "--model", "-m", metavar="MODEL",
        help="A folder, or owner/name on the hub; by default the one that comes with cutaway, English to French.",
    ),
]  # fmt: skip
Revision = Annotated[str | None, typer.Option(help="A branch, tag or commit on the hub; the newest by default.")]
PoolingOption = Annotated[
    Literal["mean", "cls", "pooler"] | None,
    typer.Option("--pooling", help="How tokens make a vector; by default as the model says, else their mean."),
]
TopOption = Annotated[
    int | None,
    typer.Option(
        "--top",
        help="How many results, best first; by default 5 for one argument, 1 for each of several or of lines.",
        min=1,
    ),
]
Beams = Annotated[
    int | None, typer.Option("--beams", help="Beam search over so many texts, without sampling; 1 is greedy.", min=1)
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for other programs.")]
JsonLines = Annotated[bool, typer.Option("--json", help="Print a JSON object a line, for other programs.")]
Dtype = Literal["float32", "float16", "bfloat16"]


@dataclass(frozen=True)
class DeviceOptions:
    """Where a command computes, and in which dtype it loads the weights."""

    device: Annotated[
        str,
        typer.Option("--device", help="auto (a GPU if there is one), cpu, cuda, cuda:1 or mps.", show_default=False),
    ] = "auto"
    dtype: Annotated[
        Dtype | None, typer.Option("--dtype", help="Dtype to load the weights in; as stored by default.")
    ] = None

    @property
    def chosen_device(self) -> str:
        """What `load` gets as its device: the option as given, `auto` too. Subclasses may decide `auto`."""
        return self.device


@dataclass(frozen=True)
class EngineOptions(DeviceOptions):
    """What runs the model."""

    engine: Annotated[
        Literal["native", "ctranslate2"] | None,
        typer.Option("--engine", help="What runs the model; by default the fastest that gives the same result."),
    ] = None
    precision: Annotated[
        Literal["float32", "bfloat16", "float16", "int8"] | None,
        typer.Option("--precision", help="Precision of the computation."),
    ] = None

    @property
    def chosen_device(self) -> str:
        """Where `auto` may choose, what only CPUs can do is done on one."""
        only_cpu = self.engine == "ctranslate2" or self.precision == "int8"
        return "cpu" if self.device == "auto" and only_cpu else self.device

    @property
    def keywords(self) -> dict[str, Any]:
        """The options that were given, as keyword arguments of a task."""
        given = {name: value for name, value in vars(self).items() if value not in (None, [])}
        return {_IN_PYTHON.get(name, name): value for name, value in given.items() if name not in ("device", "dtype")}


_IN_PYTHON = {"max_tokens": "max_new_tokens"}


@dataclass(frozen=True)
class SamplingOptions(EngineOptions):
    """How one text is written."""

    max_tokens: Annotated[int | None, typer.Option("--max-tokens", help="Tokens to write at most.", min=1)] = None
    temperature: Annotated[
        float | None,
        typer.Option("--temperature", help="Sample; below 1 favours likely words, above 1 bold ones; 0: no sampling."),
    ] = None
    top_k: Annotated[int | None, typer.Option("--top-k", help="Sample among the K likeliest tokens.", min=1)] = None
    top_p: Annotated[
        float | None, typer.Option("--top-p", help="Sample among the likeliest tokens that add up to this probability.")
    ] = None
    min_p: Annotated[
        float | None,
        typer.Option("--min-p", help="Sample among tokens at least this likely, relative to the likeliest."),
    ] = None
    seed: Annotated[
        int | None, typer.Option("--seed", help="Sample; the same seed gives the same text again.", min=0)
    ] = None
    stop: Annotated[
        list[str] | None, typer.Option("--stop", help="End a text before this string; may be repeated.")
    ] = None


@dataclass(frozen=True)
class WritingOptions(SamplingOptions):
    """How texts are searched for and written."""

    beams: Beams = None
    n_best: Annotated[int, typer.Option("--n-best", help="Texts for each input, best first, one a line.", min=1)] = 1


Command = TypeVar("Command", bound=Callable[..., None])


def with_options(options: type[Any]) -> Callable[[Command], Command]:
    """Adds the fields of `options` to a command's signature, before its keyword-only parameters; the command is called
    with them as `**given`, and makes its options of them: `WritingOptions(**given)`."""

    def add(command: Command) -> Command:
        own = [each for each in signature(command).parameters.values() if each.kind is not Parameter.VAR_KEYWORD]
        first = [each for each in own if each.kind is not Parameter.KEYWORD_ONLY]
        added = [
            Parameter(each.name, Parameter.KEYWORD_ONLY, default=each.default, annotation=each.type)
            for each in _in_order(options)
        ]
        parameters = [*first, *added, *own[len(first) :]]
        command.__signature__ = signature(command).replace(parameters=parameters)  # type: ignore[attr-defined]
        return command

    return add


def _in_order(options: type[Any]) -> list[Field[Any]]:
    """The fields of a class, then those that it inherits."""
    known = {each.name: each for each in fields(options)}
    return [known[name] for each in options.__mro__ for name in get_annotations(each) if name in known]


def refuse_option(number: str | None) -> None:
    """-1 is a number that does not exist, and is told so; --jsn is an option that does not."""
    if number is not None and number.startswith("-") and not number[1:].isdecimal():
        raise typer.TyperException(f"No such option: {number}")


def chosen_number(text: str | None, last: int, what: str) -> int | None:
    """The number of an example or a question, as it was typed."""
    if text is None:
        return None
    number = parse_int(text)
    if number is None or not 1 <= number <= last:
        raise InputError(f"there is no {what} {text} in the notes; expected a number from 1 to {last}")
    return number
