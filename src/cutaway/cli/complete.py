"""`cutaway complete`: a text goes on, shown while it is written."""

from cutaway.cli.io import inputs_of, load_model
from cutaway.cli.writing import WritingOptions, print_pieces, write_lines


def run(texts: list[str] | None, name: str, asked: WritingOptions, as_json: bool) -> None:
    model = load_model(name, asked.where)
    if as_json or asked.n_best > 1 or (asked.beams or 1) > 1:  # a search, or a record, has no beginning to show early
        write_lines(lambda lines: model.complete(lines, details=as_json, **asked.options), texts, asked.n_best, as_json)
        return
    for text in inputs_of(texts):
        pieces = model.complete(text, stream=True, **asked.options)
        print_pieces(pieces, name, text)
