"""`cutaway fill`: the blanks of a text, filled."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from cutaway.cli.io import count_of, inputs_of, load_model
from cutaway.cli.options import EngineOptions, JsonLines, ModelOption, Texts, TopOption, with_options
from cutaway.cli.output import is_alone, n_results, print_each, separator

if TYPE_CHECKING:
    from cutaway.tasks.fill import Filled


@with_options(EngineOptions)
def fill(
    model: ModelOption, texts: Texts = None, top: TopOption = None, *, as_json: JsonLines = False, **given: Any
) -> None:
    """Fill the blanks of a text: ___ or [MASK]. With an encoder that has a masked-language-model head, like BERT."""
    options = EngineOptions(**given)
    encoder = load_model(model, options)

    def text_alone(filled: "Filled") -> str:
        return filled.text

    def with_words(filled: "Filled") -> str:
        words = ((f"{word.probability:.4f}\t{word.text}" for word in blank) for blank in filled.blanks)
        between = "\n\n" if is_alone(texts) else "\t"
        return between.join((filled.text, *(separator(texts).join(blank) for blank in words)))

    results = encoder.fill(inputs_of(texts), top=n_results(texts, top), **options.keywords)
    line = with_words if is_alone(texts) or top is not None else text_alone
    print_each(results, asdict if as_json else line, count_of(texts))
