"""A question about a text, answered in the words of an encoder-decoder that was taught to (T5)."""

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from cutaway.generation import Prompt
from cutaway.tasks.batching import map_inputs
from cutaway.tasks.options import Options
from cutaway.tasks.requirements import unsupported
from cutaway.tasks.spans import Answer, Span
from cutaway.tasks.task_params import tasks_of
from cutaway.tasks.writer import Text, Writer

if TYPE_CHECKING:
    from cutaway.model import Model


def answer_text(
    model: "Model",
    questions: object,
    pair_of: Callable[[Any], tuple[str, str]],
    is_question: Callable[[object], bool],
    options: Options,
) -> Any:
    """What `answer` gives for a model that writes: an answer in its own words, which has no place in the context.

    It is asked as T5 was taught, "question: … context: …". Both together must fit the model; nothing is cut.
    `pair_of` gives the question and the context of each thing asked.
    """
    tokenizer = model.tokenizer
    if tokenizer is not None and tokenizer.id_of("<extra_id_0>") is None and not tasks_of(model):
        raise unsupported(model, "answer")  # neither T5's blanks in its vocabulary nor tasks that it was taught
    writer = Writer(model, "answer", options, details=True)

    def prompt(asked: Any) -> Prompt | None:
        question, context = pair_of(asked)
        if not question.strip():
            return None
        ids = writer.tokenizer.encode(f"question: {question} context: {context}").ids
        return writer.checked(ids, "question, with its context,")

    def run(inputs: Iterator[Any]) -> Iterator[Answer]:
        for texts in writer.write(inputs, prompt):
            best, *others = [_span(text, writer.generation.length_penalty) for text in texts]
            yield Answer(best.text, None, None, best.score, best.probability, tuple(others))

    return map_inputs(questions, run, is_question, "question")


def _span(text: Text, length_penalty: float) -> Span:
    """Its probability is the model's of the whole text, from which the score was made."""
    length = len(text.tokens) + (text.ended == "end")
    return Span(text.text, None, None, text.score, math.exp(text.score * max(1, length) ** length_penalty))
