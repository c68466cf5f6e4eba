"""How a task writes, as its keyword arguments: the fields of Generation, with words given as text."""

from collections.abc import Sequence
from typing import Any, TypedDict

from cutaway.checks import describe
from cutaway.errors import ConfigError
from cutaway.generation import SAMPLING, EarlyStopping, Generation, changed, without_sampling
from cutaway.text.tokenizer import Tokenizer


class RuntimeOptions(TypedDict, total=False):
    """What runs the model; see Model.engine."""

    engine: str | None
    precision: str | None


class Options(RuntimeOptions, total=False):
    """Keyword arguments of translate, summarize, complete, chat and answer; see Generation for what each does. A test
    holds the two to the same names."""

    max_new_tokens: int | None
    min_new_tokens: int | None
    beams: int | None
    n_best: int
    length_penalty: float
    early_stopping: EarlyStopping
    beam_groups: int
    diversity: float
    sample: bool
    temperature: float
    top_k: int | None
    top_p: float | None
    min_p: float | None
    typical_p: float | None
    top_h: float | None
    epsilon_cutoff: float
    eta_cutoff: float
    seed: int | None
    repetition_penalty: float
    encoder_repetition_penalty: float
    no_repeat_ngram: int
    encoder_no_repeat_ngram: int
    exponential_decay: tuple[int, float] | None
    bias: tuple[tuple[tuple[int, ...], float], ...]
    suppress: tuple[int, ...]
    begin_suppress: tuple[int, ...]
    remove_invalid: bool
    renormalize: bool
    stop_ids: tuple[int, ...]
    scores: bool
    alternatives: int
    cached: bool
    batch_tokens: int
    # given as text
    stop: str | Sequence[str]  # a text ends before the first of these
    prefix: str  # every text begins with it
    force: str | Sequence[str]  # words that must occur, each as after a space (beam search only)
    ban: str | Sequence[str]  # words that must not, as their usual tokens


def to_generation(options: Options, default: Generation, tokenizer: Tokenizer) -> Generation:
    """`default`, changed by what a user asks for; their words become tokens.

    An option of sampling switches sampling on, beams or a temperature of 0 switch it off. Defaults give way to what is
    asked: there are as many beams as texts, and the shortest text is no longer than the longest.
    """
    asked: dict[str, Any] = {name: value for name, value in options.items() if name not in ("engine", "precision")}
    _choose_sampling(asked)
    samples = asked.get("sample", default.sample)
    most, best = asked.get("max_new_tokens", default.max_new_tokens), asked.get("n_best", 1)
    if isinstance(most, int) and "min_new_tokens" not in asked and default.min_new_tokens is not None:
        asked["min_new_tokens"] = min(default.min_new_tokens, max(0, most))
    if samples is True:
        asked["beams"] = asked.get("beams") or 1
    elif isinstance(best, int) and asked.get("beams") is None:
        asked["beams"] = max(default.beams or 1, best)
    if isinstance(asked.get("beams"), int) and asked["beams"] % default.beam_groups:
        asked = {"beam_groups": 1, "diversity": 0.0, **asked}
    for name in ("stop", "force", "ban"):
        if name in asked:
            asked[name] = _texts(name, asked[name])
    if "force" in asked:
        asked["force"] = tuple(_within_a_text(tokenizer, word) for word in asked["force"])
    if "ban" in asked:
        forms = [form for word in asked["ban"] for form in (_ids(tokenizer, word), _within_a_text(tokenizer, word))]
        asked["ban"] = tuple(dict.fromkeys(forms))
    if "prefix" in asked:
        (text,) = _texts("prefix", asked["prefix"], empty=True)
        asked["prefix"] = _ids(tokenizer, text)
    return changed(default if samples else without_sampling(default), asked)


def _choose_sampling(asked: dict[str, Any]) -> None:
    """Whether to sample, where the options say something of it: they go before what the model's makers recommend."""
    zero = asked.get("temperature")
    if type(zero) in (int, float) and zero == 0 and asked.setdefault("sample", False) is False:
        for name in (*SAMPLING, "seed"):  # of the likeliest token alone there is nothing to draw
            asked.pop(name, None)
        asked.setdefault("beams", 1)
    drawn = [name for name in (*SAMPLING, "seed") if asked.get(name) is not None]
    if drawn and asked.setdefault("sample", True) is False:
        raise ConfigError(f"{drawn[0]} is an option of sampling, and sample=False; leave one of them out")
    if asked.get("beams") is not None:
        asked.setdefault("sample", False)


def _texts(name: str, value: object, *, empty: bool = False) -> tuple[str, ...]:
    texts = (value,) if isinstance(value, str) else value
    if not isinstance(texts, Sequence) or not all(isinstance(text, str) for text in texts):
        raise ConfigError(f"{name}={describe(value)}: expected a text, or a list of texts")
    if name == "prefix" and len(texts) != 1:
        raise ConfigError(f"prefix={describe(value)}: expected one text")
    if not empty and not all(text.strip() or (text and name == "stop") for text in texts):
        raise ConfigError(f"{name} has an empty text; leave it out")
    return tuple(texts)


def _ids(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    """As a text begins."""
    return tuple(tokenizer.encode_target(text, special=False).ids)


def _within_a_text(tokenizer: Tokenizer, word: str) -> tuple[int, ...]:
    """As it is written after a space: a byte-level vocabulary has other tokens for " cat" than for "cat"."""
    stop, both = _ids(tokenizer, "."), _ids(tokenizer, f". {word.lstrip()}")
    return both[len(stop) :] if both[: len(stop)] == stop else _ids(tokenizer, word)
