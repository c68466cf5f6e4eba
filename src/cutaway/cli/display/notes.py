"""The worked examples of the lecture notes as tables: all at a glance, or one step by step."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from cutaway.cli.pager import Screen, paragraph, say
from cutaway.seeing.notes import notes
from cutaway.seeing.notes.arithmetic import number as written
from cutaway.seeing.notes.notes import WorkedExample, agrees, true_value
from cutaway.seeing.notes.worked_examples import Step

RIGHT, WRONG, ABSENT = Text("✓", "green"), Text("✗", "bold red"), Text("+", "cyan")
_IN_ASCII = {"✓": "ok", "✗": "NO"}
_MARGIN, _LABEL, _MARK, _PRINTED, _TRUE = 3, 12, 1, 29, 32  # with a space between them: 80 columns
_SIDE_BY_SIDE = _MARGIN + _LABEL + _MARK + _PRINTED + _TRUE + 3  # on less, values stand below each other
_VERDICT = _LABEL + _MARK + _PRINTED + _TRUE + 3
_BESIDE = 130  # from this width on, reasons stand beside the numbers instead of below


def print_all(chosen: Sequence[WorkedExample]) -> None:
    """Each example: what is printed, what is true, and why they differ."""
    console = Screen()
    console.print("The lecture notes, recomputed", style="bold")
    console.print()
    if console.width >= _SIDE_BY_SIDE:
        _indented(console, _grid(console, [_HEADER]))
    for worked in chosen:
        title = Text.assemble(
            f"{worked.number:2} ", _mark_in_terminal(console, _mark(worked)), " ", (worked.title, "bold")
        )
        console.print(title)
        verdict, reason = _grid(console, _verdict(worked)), worked.reason or ""
        if console.width >= _BESIDE:
            both = Table.grid(padding=(0, 2, 0, 0))
            both.add_column(width=_VERDICT)
            both.add_row(verdict, Text(paragraph(reason, console.width - _MARGIN - _VERDICT - 2), "italic"))
            _indented(console, both)
        else:
            _compare(console, worked)
            if reason:
                say(console, reason, indent=5, style="italic")
        console.print()
    wrong = [str(worked.number) for worked in chosen if worked.differs]
    console.print(f"{len(wrong)} of {len(chosen)} examples are misprinted: {', '.join(wrong)}.", style="bold")
    right, wrong_mark = (_mark_in_terminal(console, mark).plain for mark in (RIGHT, WRONG))
    console.print(f"{right} right to the digits printed, {wrong_mark} wrong, + not printed", style="dim")
    console.print(f"`cutaway notes {wrong[0]}` shows example {wrong[0]} step by step.", style="dim")


def print_one(worked: WorkedExample) -> None:
    """One example, step by step, with its sums written out."""
    console = Screen()
    console.print(Text.assemble((f"Example {worked.number}: {worked.title}", "bold"), (f"   {worked.topic}", "dim")))
    console.print()
    for i, step in enumerate(worked.steps, start=1):
        console.print(Text.assemble((f"{i:2} {_words(step.name)}", "bold"), (f"   {step.formula}", "cyan")))
        console.print_whole(Padding(_table(step), (0, 0, 0, 5), expand=False))
        for remark in (line.text for line in step.lines if not line.of):
            say(console, remark, indent=_MARGIN, style="italic")
        _indented(console, _sums(step))
        console.print()
    if console.width >= _SIDE_BY_SIDE:
        _indented(console, _grid(console, [_HEADER]))
    _compare(console, worked)
    for title, text in (("What went wrong", worked.reason), ("Remark", worked.remark)):
        if text is not None:
            console.print()
            console.print(title, style="bold")
            say(console, text, indent=_MARGIN)


def _compare(console: Screen, worked: WorkedExample) -> None:
    """What is printed beside what is true; below each other where there is no room, so that no row is broken."""
    if console.width >= _SIDE_BY_SIDE:
        _indented(console, _grid(console, _verdict(worked)))
        return
    rows = list(_verdict(worked))
    for label, mark, printed, true in rows:
        if label or len(rows) > 1:  # else the mark stands in the title
            console.print(
                Text.assemble(" " * _MARGIN, (f"{label} " if label else "", "dim"), _mark_in_terminal(console, mark))
            )
        for name, value in (("printed", printed), ("true", true)):
            for i, line in enumerate(value.split("\n")):
                head = (f"{'' if i else name:{len('printed')}} ", "dim")
                console.print(Text.assemble(" " * (_MARGIN + 2), head, line), soft_wrap=True)


def _indented(console: Screen, table: Table, left: int = _MARGIN) -> None:
    console.print(Padding(table, (0, 0, 0, left), expand=False))


def _mark_in_terminal(console: Screen, mark: Text) -> Text:
    """A mark as this terminal can print it: ✓ and ✗, or ok and NO."""
    return mark if console.can_show(mark.plain) else Text(_IN_ASCII[mark.plain], mark.style)


def _mark(worked: WorkedExample) -> Text:
    return WRONG if worked.differs else RIGHT if worked.printings else ABSENT


Row = tuple[str, Text, Text, Text]
_HEADER: Row = ("", Text(), Text("the notes print", "dim"), Text("true", "dim"))


def _verdict(worked: WorkedExample) -> Iterator[Row]:
    """Each printing beside what is true; then the results that are not printed."""
    before = None
    for printing in worked.printings:
        step, of = worked.step(printing.of), (printing.of, printing.row)
        rows = step.rows if printing.row is None else [printing.row]
        true = true_value(printing, step)
        yield (
            "" if printing.note == "the notes" else printing.note,
            WRONG if notes.compare(printing, step) else RIGHT,
            _value(printing.value, rows, true),
            _value(true, rows) if of != before else Text("as above", "dim"),
        )
        before = of
    printed = {printing.of for printing in worked.printings}
    for name, value in worked.result.items():
        if name not in printed:
            by_row = zip(worked.step(name).rows, value, strict=True) if isinstance(value, list) else [(name, value)]
            yield from ((label, ABSENT, Text("–"), _value(item, ())) for label, item in by_row)


def _grid(console: Screen, rows: Iterable[Row]) -> Table:
    """Which printing, right or wrong, what is printed, what is true."""
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(width=_LABEL, style="dim")
    grid.add_column(width=max(len(_mark_in_terminal(console, mark).plain) for mark in (RIGHT, WRONG)))
    grid.add_column(width=_PRINTED)
    for label, mark, printed, true in rows:
        grid.add_row(label, _mark_in_terminal(console, mark), printed, true)
    return grid


def _value(value: Any, rows: Sequence[str], true: Any = None) -> Text:
    """A number, `[a vector]`, or a `label [vector]` a line; printed numbers that `true` contradicts are red."""
    if not isinstance(value, list):
        return _number(value, true)
    true = true if isinstance(true, list) and len(true) == len(value) else [None] * len(value)
    if not isinstance(value[0], list):
        return Text.assemble("[", Text(" ").join(map(_number, value, true)), "]")
    width = max(map(len, rows))
    lines = (
        Text.assemble((f"{label:{width}} ", "dim"), _value(item, (), of))
        for label, item, of in zip(rows, value, true, strict=True)
    )
    return Text("\n").join(lines)


def _number(value: str | float, true: float | None) -> Text:
    if isinstance(value, str):
        return Text(value, "red" if true is not None and not agrees(value, true) else "")
    return Text(written(value))


def _words(name: str) -> str:
    """`scaled_scores` -> `Scaled scores`; names that are symbols stay."""
    return name if name[:2] in ("d_", "n_", "x") else name.replace("_", " ").capitalize()


def _table(step: Step) -> Table:
    """A step's value, with the names of its rows and columns."""
    value: Any = step.value
    table = value if notes.shape(value)[1:] else [value] if isinstance(value, list) else [[value]]
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim")
    for _ in table[0]:
        grid.add_column(justify="right")
    if step.columns:
        grid.add_row("", *step.columns, style="dim")
    for label, row in zip(step.rows or [""] * len(table), table, strict=True):
        grid.add_row(label, *map(written, row))
    return grid


def _sums(step: Step) -> Table:
    """The written sums, each after what it is of."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    for line in step.lines:
        if line.of:
            grid.add_row(line.of, line.text)
    return grid
