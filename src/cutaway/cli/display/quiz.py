"""The notes' questions: asked in the terminal, or shown with their answers."""

import sys
from collections.abc import Sequence

from rich.console import Console

from cutaway.cli.pager import Screen, say
from cutaway.seeing.notes import quiz
from cutaway.seeing.notes.quiz import Question

_STOP = {"q", "quit"}


def print_answers(chosen: Sequence[Question]) -> None:
    """Each question with its answer and why."""
    console = Screen()
    for question in chosen:
        _show(console, question)
        say(console, f"Answer: {_listed(question.answers)}.", style="bold")
        _explain(console, question)


def ask_all(chosen: Sequence[Question]) -> None:
    """Asks each question, explains its answer, and says how many were right."""
    console = Screen()
    n_right = n_asked = 0
    console.print("Type the letter of your answer; q or Ctrl-D stops.", style="dim")
    console.print()
    try:
        for question in chosen:
            _show(console, question)
            answer = _ask(console, question)
            n_asked += 1
            if answer == set(question.answers):
                n_right += 1
                console.print("Right.", style="bold green")
            else:
                console.print(f"Not right: the answer is {_listed(question.answers)}.", style="bold red")
            _explain(console, question)
    except (EOFError, KeyboardInterrupt):
        console.print()
        console.print("You stopped here; come back any time.")
    left = len(chosen) - n_asked
    if n_asked == 0:
        return
    console.print(f"Score: {n_right} of {n_asked} right{f'; {left} not answered' if left else ''}.", style="bold")


def _ask(console: Console, question: Question) -> set[str]:
    """The letters chosen. What is no answer to this question is asked again; q is as good as the end of input."""
    letters = _listed(list(question.options), "or")
    several = len(question.answers) > 1
    wanted = f"one or more of {letters}, for example A D" if several else f"one letter: {letters}"
    while True:
        if sys.stdin is None:  # closed: `cutaway quiz <&-`
            raise EOFError
        line = input(f"Your answer ({'all that are true' if several else letters}): ")
        if not sys.stdin.isatty():
            console.print(line)  # a terminal shows what is typed; a transcript should too
        if line.strip().lower() in _STOP:
            raise EOFError
        answer = parse(line, question)
        if answer is not None:
            return answer
        console.print(f"Please give {wanted}; q stops.")


def parse(line: str, question: Question) -> set[str] | None:
    """`b`, `A B C`, `abc` or `a, b, c` -> letters; None if it is no answer to this question."""
    letters = {letter for letter in line.upper() if letter not in " \t,;.+&"}
    if not letters or not letters <= question.options.keys():
        return None
    return letters if len(letters) == 1 or len(question.answers) > 1 else None


def _show(console: Console, question: Question) -> None:
    say(console, f"{question.number}. {question.text}", hanging=3, style="bold")
    for letter, option in question.options.items():
        say(console, f"{letter}  {option}", indent=3, hanging=3)
    console.print()


def _explain(console: Console, question: Question) -> None:
    """Why, and what a running part says to it."""
    say(console, question.explanation)
    console.print()
    console.print("See for yourself:", style="cyan")
    for line in quiz.demonstrate(question.number):
        say(console, line, indent=3, hanging=2)
    console.print()


def _listed(letters: Sequence[str], word: str = "and") -> str:
    """A, B and C"""
    return letters[0] if len(letters) == 1 else f"{', '.join(letters[:-1])} {word} {letters[-1]}"
