"""`cutaway translate`: texts, or the lines of stdin, in another language."""

from cutaway.cli.lines import ready
from cutaway.cli.writing import Asked, write_lines


def run(
    texts: list[str] | None, name: str, source: str | None, target: str | None, asked: Asked, as_json: bool
) -> None:
    model = ready(name)
    write_lines(
        lambda lines: model.translate(lines, source=source, target=target, details=as_json, **asked.options),
        texts,
        asked.n_best,
        as_json,
    )
