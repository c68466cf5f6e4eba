"""Text of one language to another, by an encoder-decoder."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Unpack

from cutaway.errors import InputError
from cutaway.generation import Prompt
from cutaway.tasks.batching import is_text, map_inputs
from cutaway.tasks.options import Options
from cutaway.tasks.requirements import require_trained, unsupported
from cutaway.tasks.task_params import Direction, directions, tasks_of
from cutaway.tasks.writer import Writer, is_blank
from cutaway.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from cutaway.model import Model


def translate(
    model: "Model",
    texts: object,
    *,
    source: str | None = None,
    target: str | None = None,
    details: bool = False,
    **options: Unpack[Options],
) -> Any:
    """A text, a list or an iterator of them -> their translations, likewise.

    `source` and `target` choose among the languages of a model that has several. `n_best` above 1 gives lists;
    `details` gives records with scores and tokens (see Text). The other options, which every task that writes has
    (see Generation for their meaning and Usage for their defaults):

    - search: beams, n_best, length_penalty, early_stopping, beam_groups, diversity
    - sampling: sample, temperature, top_k, top_p, min_p, typical_p, top_h, epsilon_cutoff, eta_cutoff, seed
    - length: max_new_tokens, min_new_tokens, exponential_decay
    - words: stop, stop_ids, prefix, force, ban, bias, suppress, begin_suppress
    - repetition: repetition_penalty, no_repeat_ngram, encoder_repetition_penalty, encoder_no_repeat_ngram
    - scores: scores, alternatives, remove_invalid, renormalize
    - computation: engine, precision, cached, batch_tokens
    """
    direction = _direction(model, source, target)
    default = model.usage.generation if direction is None else direction.taught.generation
    writer = Writer(model, "translate", options, default, details=details)
    front = direction.taught.prefix if direction is not None else _language(model, writer.tokenizer, source, target)
    languages = [] if front else _languages(writer.tokenizer)
    several = ", ".join(languages[:60]) if len(languages) > 1 else ""

    def prompt(text: str) -> Prompt | None:
        if is_blank(text):
            return None
        if several and not text.lstrip().startswith(">>"):  # it is not left to guess
            raise InputError(f"{model.name} writes several languages: say which with target ({several})")
        return writer.checked(writer.tokenizer.encode(front + text).ids, "text")

    def run(inputs: Iterator[str]) -> Iterator[Any]:
        return map(writer.format, writer.write(inputs, prompt))

    return map_inputs(texts, run, is_text)


def _direction(model: "Model", source: str | None, target: str | None) -> Direction | None:
    """The one that fits; None if the model has no prefixes for languages."""
    tasks = tasks_of(model)
    known = directions(tasks)
    if tasks and not known:
        raise unsupported(model, "translate")
    if not known:
        require_trained(model, "translate")
        return None
    fitting = [way for way in known if _is(source, way.source) and _is(target, way.target)]
    if len(fitting) == 1:
        return fitting[0]
    ways = ", ".join(map(str, known))
    if fitting:
        raise InputError(f"{model.name} translates several ways ({ways}); say which with source and target")
    asked = " ".join(f"{word} {name}" for word, name in (("from", source), ("to", target)) if name is not None)
    raise InputError(f"{model.name} was not taught to translate {asked}; it was taught {ways}")


def _is(asked: str | None, names: tuple[str, ...]) -> bool:
    return asked is None or asked.casefold() in [name.casefold() for name in names]


def _language(model: "Model", tokenizer: Tokenizer, source: str | None, target: str | None) -> str:
    """What stands before a text for a model that writes several languages: `>>fra<< `."""
    if source is not None:
        raise InputError(f"{model.name} does not ask which language it reads: leave out source={source!r}")
    if target is None:
        return ""
    mark = f">>{target.strip('<>')}<<"
    if tokenizer.id_of(mark) is not None:
        return f"{mark} "
    known = _languages(tokenizer)
    if not known:
        raise InputError(f"{model.name} writes one language and does not say which: leave out target={target!r}")
    raise InputError(f"{model.name} does not write {target!r}; it writes {', '.join(known[:60])}")


def _languages(tokenizer: Tokenizer) -> list[str]:
    tokens = (tokenizer.token_of(number) or "" for number in range(tokenizer.vocabulary_size))
    return sorted(token[2:-2] for token in tokens if len(token) > 4 and token.startswith(">>") and token.endswith("<<"))
