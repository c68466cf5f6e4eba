"""`cutaway answer`: questions, answered from a text."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cutaway.cli.io import count_of, inputs_of, load_model
from cutaway.cli.options import EngineOptions, JsonLines, ModelOption, TopOption, with_options
from cutaway.cli.output import is_alone, n_results, print_each, separator
from cutaway.errors import InputError
from cutaway.text.lines import LONGEST, text_of

if TYPE_CHECKING:
    from cutaway.tasks.spans import Answer, Span


@with_options(EngineOptions)
def answer(
    model: ModelOption,
    context: Annotated[
        str, typer.Option("--context", "-c", metavar="FILE|TEXT", help="The text that holds the answer, or its file.")
    ],
    questions: Annotated[
        list[str] | None, typer.Argument(metavar="QUESTION", help="Without any, the lines of stdin.")
    ] = None,
    no_answer_above: Annotated[
        float | None, typer.Option(help="Say nothing where 'no answer' scores so much higher (SQuAD 2.0).")
    ] = None,
    top: TopOption = None,
    *,
    as_json: JsonLines = False,
    **given: Any,
) -> None:
    """Answer questions from a text, however long: the part of it that is the answer. An empty line has none."""
    options, text = EngineOptions(**given), _context(context)
    reader = load_model(model, options)

    def text_alone(found: "Answer") -> str:
        return " ".join(found.text.split())

    def with_others(found: "Answer") -> str:
        nothing = not is_alone(questions) and not found.text and not found.others  # an empty line
        return "" if nothing else separator(questions).join(map(_span, (found, *found.others)))

    results = reader.answer(
        inputs_of(questions), text, top=n_results(questions, top), no_answer_above=no_answer_above, **options.keywords
    )
    line = with_others if is_alone(questions) or top is not None else text_alone
    print_each(results, asdict if as_json else line, count_of(questions))


def _span(span: "Span") -> str:
    """Its place, unless it is in the model's own words."""
    place = "" if span.start is None else f"\t{span.start}:{span.end}"
    return f"{span.probability:.4f}\t{' '.join(span.text.split())}{place}"


def _context(given: str) -> str:
    """The text in a file, or the text itself."""
    path = Path(given)
    try:
        if path.is_file():
            with path.open("rb") as file:
                data = file.read(LONGEST + 1)
            if len(data) > LONGEST:
                raise InputError(f"{given} is longer than {LONGEST:,} bytes; give the part that holds the answer")
            lines = data.split(b"\n")
            return "\n".join(text_of(line, number, given) for number, line in enumerate(lines, start=1))
    except OSError:  # a text is no name: too long for one
        return given
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        return given
    if given and not any(letter.isspace() for letter in given):
        raise InputError(f"there is no file {given!r}; a context that is given as text has several words")
    return given
