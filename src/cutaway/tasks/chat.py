"""A conversation with a decoder-only model that was taught to have one."""

import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Unpack

from cutaway.decoding.plan import DEFAULT_TOKENS
from cutaway.errors import InputError
from cutaway.generation import Prompt
from cutaway.tasks.needs import NEEDS
from cutaway.tasks.options import Options
from cutaway.tasks.writer import Writer
from cutaway.text.tokenizer import Tokenizer, check_text

if TYPE_CHECKING:
    from cutaway.model import Model

Message = dict[str, str]
"""{"role": "user", "content": "Good morning."}; the roles are system, user and assistant."""


def _warn(notice: str) -> None:
    warnings.warn(notice, stacklevel=4)


def chat(
    model: "Model", system: str | None = None, *, tell: Callable[[str], None] | None = None, **options: Unpack[Options]
) -> "Chat":
    """A conversation that remembers what was said, beginning with a system prompt if one is given. The options are
    those of `translate`, for one text at a time."""
    return Chat(model, system, tell or _warn, options)


class Chat:
    """chat.say(text) -> the answer, in pieces as it is written; what was said is remembered.

    When it no longer fits the model's context, the oldest turns are left out, and `tell` hears of it: a warning, unless
    another is given.
    """

    def __init__(self, model: "Model", system: str | None, tell: Callable[[str], None], options: Options) -> None:
        self._writer = writer = Writer(model, "chat", options, streams=True)
        if writer.tokenizer.chat_template is None:
            raise InputError(f"{model.name} has no chat template; chat needs {NEEDS['chat']}")
        writer.add_ends(_ends_of_turn(writer.tokenizer))
        self._tell = tell
        self.system = system
        self.history: list[Message] = []
        """All that was said, oldest first, without the system prompt."""
        self.forgotten = 0
        """How many of the oldest messages the model no longer sees."""

    def say(self, text: str) -> Iterator[str]:
        """The answer to `text`. Of one that is left half-way, the history has what was read of it."""
        check_text(text)
        message = {"role": "user", "content": text}
        return self._answer(message, self._prompt(message))

    def reset(self, system: str | None = None) -> None:
        """Begins anew, with another system prompt if one is given."""
        self.history.clear()
        self.forgotten = 0
        self.system = self.system if system is None else system

    def _answer(self, message: Message, prompt: Prompt) -> Iterator[str]:
        said: list[str] = []
        failed = False
        try:
            for piece in self._writer.stream(prompt, ()):
                said.append(piece)
                yield piece
        except Exception:
            failed = True  # the turn can be tried again
            raise
        finally:
            if not failed:
                self.history += [message, {"role": "assistant", "content": "".join(said)}]

    def _prompt(self, message: Message) -> Prompt:
        """The conversation so far and the new message, without the oldest turns if there is no room for an answer."""
        limit = self._writer.limit
        ids = self._ids(message, self.forgotten)
        forgotten = self.forgotten
        if limit is not None:
            asked = self._writer.generation.max_new_tokens or DEFAULT_TOKENS
            room = limit - min(asked, limit // 4)
            while len(ids) > room and forgotten < len(self.history):
                forgotten += 2  # a message and its answer
                ids = self._ids(message, forgotten)
        prompt = self._writer.checked(ids, "message, with the system prompt,")
        if forgotten > self.forgotten:
            self._tell(
                f"the conversation no longer fits the {limit:,} tokens that {self._writer.model.name} sees: "
                f"the oldest {forgotten} of its {len(self.history)} messages are left out"
            )
        self.forgotten = forgotten
        return prompt

    def _ids(self, message: Message, forgotten: int) -> list[int]:
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        tokenizer = self._writer.tokenizer
        text = tokenizer.chat([*system, *self.history[forgotten:], message])
        return tokenizer.encode(text, special=False).ids


def _ends_of_turn(tokenizer: Tokenizer) -> tuple[int, ...]:
    """The special token that the template writes after an answer; not every model's files call it an end."""
    said = "answer"
    try:
        text = tokenizer.chat(
            [{"role": "user", "content": "question"}, {"role": "assistant", "content": said}],
            add_generation_prompt=False,
        )
    except InputError:  # a template that wants other messages; say() will tell
        return ()
    ids = tokenizer.encode(text.rpartition(said)[2].lstrip(), special=False).ids[:1]
    is_special = bool(ids) and not tokenizer.decode(ids) and (tokenizer.token_of(ids[0]) or "").strip("▁ ") != ""
    return tuple(ids) if is_special else ()
