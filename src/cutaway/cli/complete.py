"""`cutaway complete`: a text continued, shown while it is written."""

from itertools import tee
from typing import Any

from cutaway.cli.io import count_of, inputs_of, load_model
from cutaway.cli.options import JsonLines, ModelOption, Texts, WritingOptions, with_options
from cutaway.cli.output import print_pieces, print_texts


@with_options(WritingOptions)
def complete(model: ModelOption, texts: Texts = None, *, as_json: JsonLines = False, **given: Any) -> None:
    """Continue a text, shown while it is written: an argument, or each line of stdin."""
    options = WritingOptions(**given)
    writer = load_model(model, options)
    if as_json or options.n_best > 1 or (options.beams or 1) > 1:  # a search, or a record, has nothing to show early
        inputs, asked = tee(inputs_of(texts))
        results = writer.complete(inputs, details=as_json, **options.keywords)
        print_texts(results, asked, count_of(texts), options.n_best, as_json)
        return
    for text in inputs_of(texts):
        print_pieces(writer.complete(text, stream=True, **options.keywords), model, text)
