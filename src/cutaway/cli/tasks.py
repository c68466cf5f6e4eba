"""The commands of the tasks that read: fill, classify, embed, search, answer, recognize.

One argument is answered with a line for each result; several, or the lines of stdin, with a line for each input.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from cutaway.cli.io import count_of, inputs_of, load_model, print_each, show_progress
from cutaway.cli.options import Where
from cutaway.cli.terminal import show
from cutaway.errors import InputError
from cutaway.tasks.classify import Label
from cutaway.tasks.fill import Filled
from cutaway.tasks.pooling import Pooling
from cutaway.tasks.search import Hit, Index
from cutaway.tasks.spans import Answer, Span
from cutaway.tasks.vectors import write_vectors
from cutaway.text.lines import LONGEST, text_of

R = TypeVar("R")


def fill(
    texts: list[str] | None,
    model: str,
    top: int | None,
    engine: str | None,
    precision: str | None,
    where: Where,
    as_json: bool,
) -> None:
    one, whole, top = _detailed(texts, top)
    results = load_model(model, where).fill(inputs_of(texts), top=top, engine=engine, precision=precision)

    def short(filled: Filled) -> str:
        return filled.text

    def long(filled: Filled) -> str:
        words = ((f"{word.probability:.4f}\t{word.text}" for word in blank) for blank in filled.blanks)
        return ("\n\n" if one else "\t").join((filled.text, *(_between(one).join(blank) for blank in words)))

    _show(results, asdict if as_json else long if whole else short, texts)


def classify(
    texts: list[str] | None,
    model: str,
    pairs: bool,
    top: int | None,
    engine: str | None,
    precision: str | None,
    where: Where,
    as_json: bool,
) -> None:
    one, _, top = _detailed(texts, top)
    lines = inputs_of(texts)
    inputs = map(_pair, lines) if pairs else lines
    results = load_model(model, where).classify(inputs, top=top, engine=engine, precision=precision)
    _show(results, _labels_json if as_json else _labels(one), texts)


def embed(
    texts: list[str] | None,
    model: str,
    out: Path | None,
    pooling: Pooling | None,
    engine: str | None,
    precision: str | None,
    where: Where,
    as_json: bool,
) -> None:
    if out is not None and ((out.exists() and not out.is_file()) or not out.absolute().parent.is_dir()):
        raise InputError(f"{out} can't be written: it is a folder or device, or lies in none; give the name of a file")
    results = load_model(model, where).embed(inputs_of(texts), pooling=pooling, engine=engine, precision=precision)
    if out is None:
        _show(results, _vector_json if as_json else _numbers, texts)
        return
    n, width = write_vectors(out, show_progress(results, count_of(texts), scrolling=False))
    line = {"file": str(out), "n": n, "width": width}
    show(json.dumps(line) if as_json else f"{out}: {n:,} vectors of {width} numbers")


def search(
    query: str,
    file: Path,
    model: str,
    index: Index,
    cache: bool,
    top: int | None,
    pooling: Pooling | None,
    engine: str | None,
    precision: str | None,
    where: Where,
    as_json: bool,
) -> None:
    queries = None if query == "-" else [query]
    one = queries is not None
    top = (10 if one else 1) if top is None else top

    def watch(vectors: Iterator[Tensor], total: int) -> Iterator[Tensor]:
        return show_progress(vectors, total, scrolling=False)

    results = load_model(model, where).search(
        inputs_of(queries), file, top=top, index=index, cache=cache, watch=watch, pooling=pooling, engine=engine,
        precision=precision,
    )  # fmt: skip

    def hits(found: list[Hit]) -> str:
        return _between(one).join(f"{hit.score:.4f}\t{hit.line}\t{hit.text}" for hit in found)

    _show(results, (lambda found: {"hits": list(map(asdict, found))}) if as_json else hits, queries)


def answer(
    questions: list[str] | None,
    context: str,
    model: str,
    no_answer_above: float | None,
    top: int | None,
    engine: str | None,
    precision: str | None,
    where: Where,
    as_json: bool,
) -> None:
    one, whole, top = _detailed(questions, top)
    text = _context(context)
    results = load_model(model, where).answer(
        inputs_of(questions), text, top=top, no_answer_above=no_answer_above, engine=engine, precision=precision
    )

    def short(found: Answer) -> str:
        return " ".join(found.text.split())

    def long(found: Answer) -> str:
        nothing = not one and not found.text and not found.others  # an empty line
        return "" if nothing else _between(one).join(map(_span, (found, *found.others)))

    _show(results, asdict if as_json else long if whole else short, questions)


def _span(span: Span) -> str:
    """Its place, unless it is in the model's own words."""
    place = "" if span.start is None else f"\t{span.start}:{span.end}"
    return f"{span.probability:.4f}\t{' '.join(span.text.split())}{place}"


def recognize(
    images: list[str] | None,
    model: str,
    top: int | None,
    engine: str | None,
    precision: str | None,
    where: Where,
    as_json: bool,
) -> None:
    one, _, top = _detailed(images, top)
    results = load_model(model, where).recognize(inputs_of(images), top=top, engine=engine, precision=precision)
    _show(results, _labels_json if as_json else _labels(one), images)


def _detailed(inputs: list[str] | None, top: int | None) -> tuple[bool, bool, int]:
    """Whether there is one argument, whether its results are told in full (it is alone, or their number was asked for),
    and how many each input gets."""
    one = inputs is not None and len(inputs) == 1
    return one, one or top is not None, (5 if one else 1) if top is None else top


def _show(results: Iterable[R], form: Callable[[R], Any], inputs: list[str] | None) -> None:
    def line(result: R) -> str:
        formed = form(result)
        return formed if isinstance(formed, str) else json.dumps(formed, ensure_ascii=False, allow_nan=False)

    print_each(results, line, count_of(inputs))


def _between(one: bool) -> str:
    return "\n" if one else "\t"


def _labels(one: bool) -> Callable[[Sequence[Label]], str]:
    def line(label: Label) -> str:
        return f"{label.probability:.4f}\t{' '.join(label.label.splitlines())}"

    return lambda labels: _between(one).join(map(line, labels))


def _labels_json(labels: Sequence[Label]) -> dict[str, Any]:
    return {"labels": list(map(asdict, labels))}


def _numbers(vector: Tensor) -> str:
    """Nine digits say all that is in a float32."""
    return f"[{', '.join(f'{number:.9g}' for number in vector.tolist())}]"


def _vector_json(vector: Tensor) -> str:
    return f'{{"vector": {_numbers(vector)}}}'


def _pair(line: str) -> tuple[str, str]:
    first, tab, second = line.partition("\t")
    if line and (not tab or "\t" in second):
        raise InputError(f"{line[:60]!r} is not two texts with a tab between them")
    return first, second


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
