"""`cutaway summarize`: texts, or the lines of stdin, in fewer words."""

from itertools import tee
from typing import Any

from cutaway.cli.io import count_of, inputs_of, load_model
from cutaway.cli.options import JsonLines, ModelOption, Texts, WritingOptions, with_options
from cutaway.cli.output import print_texts


@with_options(WritingOptions)
def summarize(model: ModelOption, texts: Texts = None, *, as_json: JsonLines = False, **given: Any) -> None:
    """Summarize texts: arguments, or stdin line by line."""
    options = WritingOptions(**given)
    writer = load_model(model, options)
    inputs, asked = tee(inputs_of(texts))
    results = writer.summarize(inputs, details=as_json, **options.keywords)
    print_texts(results, asked, count_of(texts), options.n_best, as_json)
