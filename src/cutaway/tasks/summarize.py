"""A long text to a short one, by an encoder-decoder that was taught to."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Unpack

from cutaway.generation import Prompt
from cutaway.tasks.batching import is_text, map_inputs
from cutaway.tasks.options import Options
from cutaway.tasks.requirements import require_trained, unsupported
from cutaway.tasks.task_params import TaskParams, tasks_of
from cutaway.tasks.writer import Writer, is_blank

if TYPE_CHECKING:
    from cutaway.model import Model


def summarize(model: "Model", texts: object, *, details: bool = False, **options: Unpack[Options]) -> Any:
    """A text, a list or an iterator of them -> their summaries, likewise.

    Prefix, lengths and beams are those that the checkpoint names for the task (T5's "summarize: "); one that names
    none, and was trained for no other task that it knows of, is taken for a model that does nothing else. A text longer
    than the model reads is an error, never cut. The options are those of `translate`.
    """
    tasks = tasks_of(model)
    taught = tasks.get("summarization", TaskParams(model.usage.generation))
    if not tasks:
        require_trained(model, "summarize")
    if (tasks and not taught.prefix) or (model.tokenizer is not None and model.tokenizer.kind == "Marian"):
        raise unsupported(model, "summarize")  # taught other tasks; or reads one language and writes another
    writer = Writer(model, "summarize", options, taught.generation, details=details)

    def prompt(text: str) -> Prompt | None:
        if is_blank(text):
            return None
        return writer.checked(writer.tokenizer.encode(taught.prefix + text).ids, "text")

    def run(inputs: Iterator[str]) -> Iterator[Any]:
        return map(writer.format, writer.write(inputs, prompt))

    return map_inputs(texts, run, is_text)
