"""A text that goes on, by a decoder-only language model."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Unpack

from cutaway.errors import InputError
from cutaway.generation import Prompt
from cutaway.tasks.batching import is_text, map_inputs
from cutaway.tasks.options import Options
from cutaway.tasks.writer import Writer
from cutaway.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from cutaway.model import Model


def complete(
    model: "Model", prompts: object, *, stream: bool = False, details: bool = False, **options: Unpack[Options]
) -> Any:
    """A beginning, a list or an iterator of them -> what follows each, without the beginning.

    With `stream`, one beginning gives an iterator of pieces of text, as they are written; joined they are what
    `complete` gives without. The options are those of `translate`.
    """
    writer = Writer(model, "complete", options, details=details, streams=stream)
    before = _leading_special_ids(writer.tokenizer)

    def prompt(text: str) -> Prompt:
        ids = [*before, *writer.tokenizer.encode(text, special=False).ids]
        if not ids and model.usage.start is None:
            raise InputError(f"{model.name} has no token that begins a text; give it a beginning")
        return writer.checked(ids or [model.usage.start or 0], "prompt")

    def run(inputs: Iterator[str]) -> Iterator[Any]:
        return map(writer.format, writer.write(inputs, prompt))

    if not stream:
        return map_inputs(prompts, run, is_text)
    if not isinstance(prompts, str):
        raise InputError("stream=True writes one text; give one beginning, or leave stream out")
    if details:
        raise InputError("a stream gives pieces of text; details are known at its end: leave one of them out")
    given = prompt(prompts)
    return writer.stream(given, given.ids)


def _leading_special_ids(tokenizer: Tokenizer) -> list[int]:
    """What the tokenizer puts before a text, but not what it puts after: that would end it."""
    framed, plain = tokenizer.encode("a").ids, tokenizer.encode("a", special=False).ids
    place = next((i for i in range(len(framed)) if framed[i : i + len(plain)] == plain), 0)
    return framed[:place]
