"""`cutaway summarize`: texts, or the lines of stdin, in fewer words."""

from cutaway.cli.io import load_model
from cutaway.cli.writing import WritingOptions, write_lines


def run(texts: list[str] | None, name: str, asked: WritingOptions, as_json: bool) -> None:
    model = load_model(name, asked.where)
    write_lines(lambda lines: model.summarize(lines, details=as_json, **asked.options), texts, asked.n_best, as_json)
