"""A model that writes: what it is given, how it searches, and its tokens as text."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from cutaway.decoding.plan import DEFAULT_TOKENS, Plan
from cutaway.engines.engine import Engine
from cutaway.errors import ConfigError, InputError
from cutaway.generation import Generation, Prompt, Written, limited
from cutaway.models.config import LanguageModel, StackConfig
from cutaway.tasks.batching import Materialized, prepared, windows
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
        self.generation = to_generation(options, default, self.tokenizer)
        self.stack = model.config.encoder if self.both else model.config.decoder
        self.engine = self._engine(options.get("engine"), options.get("precision"))
        Plan(model.network, self.generation, model.usage, self.tokenizer.decode)  # options that contradict each other

    def _engine(self, name: str | None, precision: str | None) -> Engine:
        """The one asked for; else the fastest that writes the same text."""
        return self.model.engine(name, precision).serving(self.generation).announced(self.model.name)

    @property
    def limit(self) -> int | None:
        """Tokens of one source, or of a prompt and what follows it; None: no limit known."""
        positions = self.stack.max_positions if isinstance(self.stack, StackConfig) else None
        return min((n for n in (positions, self.tokenizer.max_length) if n is not None), default=None)

    def checked(self, ids: Sequence[int], what: str) -> Prompt:
        """These tokens, unless they are more than the model takes: nothing is ever cut off."""
        most = LONGEST if self.limit is None else self.limit
        if len(ids) > most:
            raise InputError(
                f"the {what} has {len(ids):,} tokens, and {self.model.name} takes at most {most:,}; "
                f"shorten it, or give it in parts"
            )
        return Prompt(tuple(ids))

    def search(self, prompt: Prompt) -> Generation:
        """How to write from this prompt: a decoder-only model's text ends where its context does."""
        if self.both or self.limit is None:
            return self.generation
        room = self.limit - len(prompt.ids) + 1  # the last token is written, never read
        longest = self.model.usage.max_length  # it counts the prompt
        asked = self.generation.max_new_tokens
        if asked is None:
            asked = DEFAULT_TOKENS if longest is None else longest - len(prompt.ids)
        if asked <= room:
            return self.generation
        return limited(self.generation, room)

    def write(self, inputs: Iterator[X], prompt: Callable[[X], Prompt | None]) -> Iterator[list[Text]]:
        """For each input its texts, best first, in the order asked; `prompt` says what the model is given.

        With None it is given nothing, and the text is empty. An input that can't be a prompt ends the stream, once
        those before it are answered.
        """
        prompts_of = prepared(inputs, prompt)
        # which texts are drawn must not depend on how fast the stream comes
        largest = 1 if self.generation.seed is not None and not isinstance(prompts_of, Materialized) else None
        n_before = 0
        for window in windows(prompts_of, lambda given: 1 if given is None else len(given.ids), largest):
            by_search: dict[Generation, list[Prompt]] = {}
            for given in window:
                if given is not None:
                    by_search.setdefault(self.search(given), []).append(given)
            answers = {
                search: self.engine.write(prompts, _reseeded(search, n_before), self.tokenizer.decode)
                for search, prompts in by_search.items()
            }
            n_before += len(window)
            for given in window:
                if given is None:
                    yield [Text("")]
                else:
                    texts = next(answers[self.search(given)])
                    if not texts:
                        raise InputError(
                            f"{self.model.name} has no text to give: every token is banned, suppressed or no number"
                        )
                    yield [self._text(written, given) for written in texts]

    def stream(self, prompt: Prompt, after: Sequence[int]) -> Iterator[str]:
        """One text in pieces, as it is written; `after` is what stands before it, or nothing."""
        if (self.generation.beams or 1) > 1 or self.generation.n_best > 1:
            raise ConfigError("a stream writes one text as it goes: beams and n_best must be 1, or stream=False")
        return self._pieces(prompt, after)

    def _pieces(self, prompt: Prompt, after: Sequence[int]) -> Iterator[str]:
        pieces, until = StreamingDecoder(self.tokenizer, after), StopStrings(self.generation.stop)
        # stops are found here, in the text, so that no half of one is shown
        for token in self.engine.stream(prompt, replace(self.search(prompt), stop=())):
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

    def shown(self, results: Iterator[list[Text]]) -> Iterator[Any]:
        """As the task gives them: a text, or a list of them if several were asked for; with details, records."""
        for texts in results:
            given: list[Any] = [text if self.details else text.text for text in texts]
            yield given if self.generation.n_best > 1 else given[0]


def is_blank(text: str) -> bool:
    """Whether there is nothing to write from."""
    check_text(text)
    return not text.strip()


def _reseeded(search: Generation, n_before: int) -> Generation:
    """The search counts its prompts from 0 to seed each; here it goes on from those of earlier windows."""
    return search if search.seed is None or n_before == 0 else replace(search, seed=search.seed + n_before)
