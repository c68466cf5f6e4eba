"""A model that writes: what it is given, how it searches, and its tokens as text."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from cutaway.decoding.windows import prepared
from cutaway.errors import ConfigError, InputError
from cutaway.generation import Generation, Prompt, Written
from cutaway.models.config import LanguageModel, StackConfig
from cutaway.tasks.options import Options, to_generation
from cutaway.tasks.requirements import tokenizer_of, unsupported
from cutaway.text.streaming import StopStrings, StreamingDecoder, text_after
from cutaway.text.tokenizer import check_text

if TYPE_CHECKING:
    from cutaway.model import Model

X = TypeVar("X")

LONGEST = 2048
"""Tokens that a model reads at most where nothing says its limit: for more, work and memory grow out of hand."""


@dataclass(frozen=True)
class WrittenToken:
    """One token as its vocabulary spells it, how likely it was, and what else was likely there, best first."""

    token: str
    id: int
    logprob: float
    alternatives: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class Text:
    """What `details=True` gives: a text, its score and its tokens."""

    text: str
    score: float = 0.0  # sum of log-probabilities / length ** length_penalty
    ended: Literal["end", "stop", "length"] = "end"  # by the model, a stop, or for want of room
    tokens: tuple[WrittenToken, ...] = ()


class Writer:
    """One task's way to write with one model: its search, its engine, the room it has."""

    def __init__(
        self,
        model: "Model",
        task: str,
        options: Options,
        default: Generation | None = None,
        *,
        details: bool = False,
        streams: bool = False,
    ) -> None:
        """`default`: how to write where the options do not say; the model's own way if None. `streams`: one text at a
        time, without beams unless they are asked for."""
        self.model, self.task = model, task
        self.both = task != "complete" and task != "chat"
        if (model.network.has_encoder, model.network.has_decoder) != (self.both, True):
            raise unsupported(model, task)
        if not isinstance(model.config.head, LanguageModel):
            raise unsupported(model, task)
        self.tokenizer = tokenizer_of(model, task)
        self.details = details
        default = default or model.usage.generation
        if streams:  # a search that looks at several texts has none to show yet
            default = replace(default, beams=1, beam_groups=1, diversity=0.0)
        default = replace(default, scores=details or bool(options.get("alternatives")))
        self.stack = model.config.encoder if self.both else model.config.decoder
        generation = to_generation(options, default, self.tokenizer)
        engine = model.engine(options.get("engine"), options.get("precision")).engine_for(generation)
        self.engine = engine.logged(model.name)
        self.plan = engine.plan(generation, self.tokenizer.decode)

    @property
    def generation(self) -> Generation:
        return self.plan.options

    def add_ends(self, ids: Sequence[int]) -> None:
        """A text ends with any of these tokens too."""
        ends = tuple(dict.fromkeys((*self.generation.stop_ids, *ids)))
        self.plan = self.engine.plan(replace(self.generation, stop_ids=ends), self.tokenizer.decode)

    @property
    def limit(self) -> int | None:
        """Tokens of one source, or of a prompt and what follows it; None: no limit known."""
        positions = self.stack.max_positions if isinstance(self.stack, StackConfig) else None
        return min((n for n in (positions, self.tokenizer.max_length) if n is not None), default=None)

    def checked(self, ids: Sequence[int], what: str) -> Prompt:
        """These tokens, unless they are more than the model takes: nothing is ever cut off. A decoder-only model's text
        ends where its context does."""
        most = LONGEST if self.limit is None else self.limit
        if len(ids) > most:
            raise InputError(
                f"the {what} has {len(ids):,} tokens, and {self.model.name} takes at most {most:,}; "
                f"shorten it, or give it in parts"
            )
        if self.both or self.limit is None:
            return Prompt(tuple(ids))
        return Prompt(tuple(ids), room=self.limit - len(ids) + 1)  # the last token is written, never read

    def write(self, inputs: Iterator[X], prompt: Callable[[X], Prompt | None]) -> Iterator[list[Text]]:
        """For each input its texts, best first, in the order asked; `prompt` says what the model is given.

        With None it is given nothing, and the text is empty. An input that can't be a prompt ends the stream, once
        those before it are answered.
        """
        given: deque[Prompt | None] = deque()

        def keep(prompt: Prompt | None) -> Prompt | None:
            given.append(prompt)
            return prompt

        for texts in self.engine.generate(self.plan, prepared(prepared(inputs, prompt), keep)):
            if (asked := given.popleft()) is None:
                yield [Text("")]
            elif texts:
                yield [self._text(written, asked) for written in texts]
            else:
                raise InputError(
                    f"{self.model.name} has no text to give: every token is banned, suppressed or no number"
                )

    def stream(self, prompt: Prompt, after: Sequence[int]) -> Iterator[str]:
        """One text in pieces, as it is written; `after` is what stands before it, or nothing."""
        if (self.generation.beams or 1) > 1 or self.generation.n_best > 1:
            raise ConfigError("a stream writes one text as it goes: beams and n_best must be 1, or stream=False")
        return self._pieces(prompt, after)

    def _pieces(self, prompt: Prompt, after: Sequence[int]) -> Iterator[str]:
        pieces, until = StreamingDecoder(self.tokenizer, after), StopStrings(self.generation.stop)
        plan = self.engine.plan(replace(self.generation, stop=()))  # found here, in the text: no half of one is shown
        for token in self.engine.generate_stream(plan, prompt):
            if piece := until.add(pieces.add(token.id)):
                yield piece
            if until.ended:
                return
        if rest := until.add(pieces.finish()) + until.finish():
            yield rest

    def _text(self, written: Written, prompt: Prompt) -> Text:
        text = text_after(self.tokenizer, () if self.both else prompt.ids, written.ids)
        if written.text is not None:  # it ends within a token, of which the search has kept a part
            text += written.text[len(self.tokenizer.decode(written.ids)) :]
        if not self.details:
            return Text(text)
        tokens = tuple(
            WrittenToken(
                self._token(token.id),
                token.id,
                token.logprob,
                tuple((self._token(other), logprob) for other, logprob in token.alternatives),
            )
            for token in written.tokens
        )
        return Text(text, written.score, written.ended, tokens)

    def _token(self, number: int) -> str:
        token = self.tokenizer.token_of(number)
        return f"<{number}>" if token is None else token

    def format(self, texts: list[Text]) -> Any:
        """As the task gives it: a text, or a list of them if several were asked for; with details, records."""
        results: list[Any] = [text if self.details else text.text for text in texts]
        return results if self.generation.n_best > 1 else results[0]


def is_blank(text: str) -> bool:
    """Whether there is nothing to write from."""
    check_text(text)
    return not text.strip()
