"""`cutaway quiz`: asks the notes' questions in the terminal, explains the answers and shows them on a running part."""

import json
from dataclasses import asdict
from typing import Annotated

import typer

from cutaway.cli.options import Json, chosen_number, refuse_option
from cutaway.cli.terminal import show


def quiz(
    number: Annotated[str | None, typer.Argument(metavar="[NUMBER]", help="One question only.")] = None,
    answers: Annotated[bool, typer.Option("--answers", help="Do not ask: show all answers and why.")] = False,
    as_json: Json = False,
) -> None:
    """The seven questions of the lecture notes (see `notes`), their answers explained and shown on a running part."""
    refuse_option(number)
    from cutaway.cli.display.quiz import ask_all, print_answers
    from cutaway.seeing.notes.quiz import demonstrate, question, questions

    every = questions()
    one = chosen_number(number, len(every), "question")
    chosen = every if one is None else [question(one)]
    if as_json:
        records = [asdict(each) | {"demonstration": demonstrate(each.number)} for each in chosen]
        show(json.dumps({"questions": records} if one is None else records[0], indent=2, ensure_ascii=False))
    elif answers:
        print_answers(chosen)
    else:
        ask_all(chosen)
