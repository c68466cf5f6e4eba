"""`cutaway translate`: texts, or the lines of stdin, in another language."""

from cutaway.cli.io import inputs_of, load_model
from cutaway.cli.terminal import show
from cutaway.cli.writing import WritingOptions, write_lines
from cutaway.errors import InputError


def run(
    texts: list[str] | None,
    name: str,
    source: str | None,
    target: str | None,
    asked: WritingOptions,
    attention: bool,
    as_json: bool,
) -> None:
    model = load_model(name, asked.where)
    if attention:
        if as_json or asked.n_best > 1:
            raise InputError("--attention draws one translation; leave out --json and --n-best")
        from cutaway.seeing.render.alignment import alignment

        for text in inputs_of(texts):
            written = model.translate(text, source=source, target=target, **asked.options)
            show(written)
            if written:
                show(alignment(model, text, written))
        return
    write_lines(
        lambda lines: model.translate(lines, source=source, target=target, details=as_json, **asked.options),
        texts,
        asked.n_best,
        as_json,
    )
