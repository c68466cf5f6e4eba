"""A question about a text, answered in the words of an encoder-decoder that was taught to (T5)."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Unpack

from cutaway.decoding.generation import Prompt
from cutaway.tasks.able import cannot
from cutaway.tasks.each import each
from cutaway.tasks.options import Options
from cutaway.tasks.taught import tasks_of
from cutaway.tasks.writer import Writer

if TYPE_CHECKING:
    from cutaway.model import Model


def answer_text(model: "Model", questions: object, context: str | None = None, **options: Unpack[Options]) -> Any:
    """The answer as a Text (with `n_best` above 1, a list of them); without `context`, questions are pairs.

    Asked as T5 was taught: "question: … context: …". Both together must fit the model; nothing is cut.
    """
    from cutaway.tasks.answer import is_question, pair_of

    tokenizer = model.tokenizer
    if tokenizer is not None and tokenizer.id_of("<extra_id_0>") is None and not tasks_of(model):
        raise cannot(model, "answer")  # neither T5's blanks in its vocabulary nor tasks that it was taught
    writer = Writer(model, "answer", options)

    def prompt(question: str, text: str) -> Prompt | None:
        if not question.strip():
            return None
        ids = writer.tokenizer.encode(f"question: {question} context: {text}").ids
        return writer.checked(ids, "question, with its context,")

    def run(inputs: Iterator[Any]) -> Iterator[Any]:
        pairs = (pair_of(question, context) for question in inputs)
        results = writer.write(pairs, lambda pair: prompt(*pair), lambda pair: len(pair[0]) + len(pair[1]))
        return writer.shown(results, details=True)

    return each(questions, run, is_question, "question")
