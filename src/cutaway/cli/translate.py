"""`cutaway translate`: texts, or the lines of stdin, in another language."""

from itertools import tee
from typing import Annotated, Any

import typer

from cutaway.cli.io import count_of, inputs_of, load_model
from cutaway.cli.options import SHIPPED_TRANSLATOR, JsonLines, Texts, TranslatorOption, WritingOptions, with_options
from cutaway.cli.output import print_texts
from cutaway.cli.terminal import show
from cutaway.errors import InputError


@with_options(WritingOptions)
def translate(
    texts: Texts = None,
    model: TranslatorOption = SHIPPED_TRANSLATOR,
    source: Annotated[str | None, typer.Option(help="The language of the text, for models that read several.")] = None,
    target: Annotated[str | None, typer.Option(help="The language to write, for models that write several.")] = None,
    *,
    attention: Annotated[
        bool, typer.Option("--attention", help="Draw which words it looked at for each word it wrote.")
    ] = False,
    as_json: JsonLines = False,
    **given: Any,
) -> None:
    """Translate texts: arguments, or stdin line by line."""
    options = WritingOptions(**given)
    if attention and (as_json or options.n_best > 1):
        raise InputError("--attention draws one translation; leave out --json and --n-best")
    translator = load_model(model, options)
    if not attention:
        inputs, asked = tee(inputs_of(texts))
        results = translator.translate(inputs, source=source, target=target, details=as_json, **options.keywords)
        print_texts(results, asked, count_of(texts), options.n_best, as_json)
        return
    from cutaway.seeing.render.alignment import alignment

    for text in inputs_of(texts):
        written = translator.translate(text, source=source, target=target, **options.keywords)
        show(written)
        if written:
            show(alignment(translator, text, written))
