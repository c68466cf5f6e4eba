"""Answer a question from a text: the part of it that is the answer, with its place."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Unpack, overload

from cutaway.checks import Size, check, describe
from cutaway.decoding.windows import prepared
from cutaway.errors import InputError
from cutaway.models.config import AnswerSpan
from cutaway.tasks.answer_text import answer_text
from cutaway.tasks.batching import BATCH_TOKENS, map_inputs, read_in_order
from cutaway.tasks.options import Options, RuntimeOptions
from cutaway.tasks.reader import InputRow, Inputs, Pair, Reader
from cutaway.tasks.requirements import require
from cutaway.tasks.spans import Answer, Window, best_answer, best_spans
from cutaway.text.tokenizer import Encoding

if TYPE_CHECKING:
    from cutaway.model import Model

OVERLAP = 0.25
"""Share of a window that the next one repeats, so that an answer is whole in one of them."""

Question = str | Pair


class AnswerOptions(RuntimeOptions, total=False):
    """Keyword arguments of answer."""

    top: int
    max_tokens: int
    no_answer_above: float | None


@overload
def answer(
    model: "Model", questions: Question, context: str | None = None, **options: Unpack[AnswerOptions]
) -> Answer: ...
@overload
def answer(
    model: "Model", questions: Inputs, context: str | None = None, **options: Unpack[AnswerOptions]
) -> list[Answer]: ...
@overload
def answer(
    model: "Model", questions: Iterator[str | Pair], context: str | None = None, **options: Unpack[AnswerOptions]
) -> Iterator[Answer]: ...
def answer(
    model: "Model",
    questions: Question | Inputs | Iterator[str | Pair],
    context: str | None = None,
    *,
    top: int = 1,
    max_tokens: int = 30,
    no_answer_above: float | None = None,
    engine: str | None = None,
    precision: str | None = None,
) -> Answer | list[Answer] | Iterator[Answer]:
    """The part of `context` that answers a question; without `context`, questions are pairs (question, context).

    A context that is longer than the model reads is read in overlapping windows. The answer has at most `max_tokens`
    tokens; `top` > 1 gives the next best spans too. A model taught that some questions have no answer says so in
    `no_answer`; where that is above `no_answer_above`, the text is empty. So it is for an empty question.

    An encoder-decoder (T5) writes the answer in its own words: `start` and `end` are None, and nothing has windows.
    """
    check("top", top, Size)
    check("max_tokens", max_tokens, Size)
    check("no_answer_above", no_answer_above, float | None)
    if context is not None:
        _check_context(context)
    if model.network.has_encoder and model.network.has_decoder:
        if no_answer_above is not None:
            raise InputError(
                f"{model.name} answers in its own words and never says that there is no answer: leave out "
                f"no_answer_above={no_answer_above}"
            )
        options: Options = {"n_best": top, "max_new_tokens": max_tokens, "engine": engine, "precision": precision}
        return answer_text(model, questions, lambda given: _pair(given, context), _is_question, options)
    require(model, "answer", AnswerSpan)
    reader = Reader(model, "answer", engine, precision)
    classify = reader.tokenizer.special.classify

    last: list[AnswerRequest] = []

    def asked(given: Question) -> AnswerRequest:
        """With the tokens of the context, found once for all questions in a row that share it."""
        question, text = _pair(given, context)
        known = last and last[0].context is text
        last[:] = [
            AnswerRequest(question, text, last[0].encoding if known else reader.tokenizer.encode(text, special=False))
        ]
        return last[0]

    def rows_of(window: list[AnswerRequest]) -> list[list[InputRow]]:
        questions = [reader.tokenizer.encode(one.question, special=False).ids for one in window]
        return [
            reader.pair_rows(ids, one.encoding.ids, overlap=OVERLAP, only_second=True) if ids else []
            for ids, one in zip(questions, window, strict=True)
        ]

    def read(rows: list[InputRow]) -> list[Window]:
        found = []
        for row, logits_T2 in zip(rows, reader.read(rows).cpu(), strict=True):
            null = float(logits_T2[row.ids.index(classify)].sum()) if classify in row.ids else None
            spans = best_spans(logits_T2[row.place : row.place + row.n], row.start, max_tokens)
            found.append(Window(spans, null))
        return found

    def run(stream: Iterator[Question]) -> Iterator[Answer]:
        questions = prepared(stream, asked)
        for one in read_in_order(
            questions,
            rows_of,
            len,
            read,
            length=AnswerRequest.__len__,
            batch_tokens=BATCH_TOKENS,
            device=reader.engine.device,
        ):  # fmt: skip
            yield best_answer(one.input.context, one.input.encoding.offsets, one.said, top, no_answer_above)

    return map_inputs(questions, run, _is_question, "question")


@dataclass(frozen=True)
class AnswerRequest:
    question: str
    context: str
    encoding: Encoding

    def __len__(self) -> int:
        return len(self.question) + len(self.context)


def _is_question(given: object) -> bool:
    return isinstance(given, str) or _is_pair(given)


def _is_pair(given: object) -> bool:
    return isinstance(given, tuple) and len(given) == 2 and all(isinstance(part, str) for part in given)


def _pair(question: Question, context: str | None) -> Pair:
    if isinstance(question, str):
        if context is None:
            raise InputError("there is no context to answer from; give context=…, or pairs (question, context)")
        return question, context
    if context is not None or not _is_pair(question):
        raise InputError(f"expected a question, or a pair (question, context) alone, found {describe(question)}")
    _check_context(question[1])
    return question


def _check_context(context: object) -> None:
    if not isinstance(context, str) or not context.strip():
        raise InputError(f"the context is {describe(context)}; give the text that holds the answer")
