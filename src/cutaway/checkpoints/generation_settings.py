"""The settings of generation_config.json as one table: obeyed, accepted at one value only, or without meaning here.

Every key of transformers' GenerationConfig is in one of the three groups; a test holds the list complete.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from cutaway.checkpoints.keys import Keys
from cutaway.generation import Generation

Read = Callable[[Keys, str], Any]
"""The value of a key as a field of Generation takes it; None: it asks for nothing."""

MOST_BEAMS = 1024
MOST_SEQUENCES = 10_000  # of bad words, biases and stop strings
MOST_TOKENS = 1_000_000  # of one list
LONGEST_SEQUENCE = 1_000
TOP_K = 50  # of a folder that samples and does not say: transformers' default


def _size(keys: Keys, name: str) -> int:
    return keys.count(name)


def _count(keys: Keys, name: str) -> int:
    value = keys.get(name)
    if type(value) is not int or not 0 <= value < 2**31:
        raise keys.wrong(name, value, "a whole number from 0 on")
    return value


def _beams(keys: Keys, name: str) -> int:
    value = keys.count(name)
    if value > MOST_BEAMS:
        raise keys.wrong(name, value, f"a whole number from 1 to {MOST_BEAMS}")
    return value


def _number(low: float, high: float, *, above: bool = False, idle: float | None = None) -> Read:
    """A number of this range (`above`: without its low end); at `idle` the setting is off."""

    def read(keys: Keys, name: str) -> float | None:
        value = keys.number(name, 0.0, low=low, high=high)
        if above and value == low:
            raise keys.wrong(name, value, f"a number above {low:g}")
        return None if value == idle else value

    return read


def _flag(keys: Keys, name: str) -> bool:
    return keys.flag(name, False)


def _early_stopping(keys: Keys, name: str) -> Any:
    value = keys.get(name)
    if value != "never" and type(value) is not bool:
        raise keys.wrong(name, value, 'true, false or "never"')
    return value


def _top_k(keys: Keys, name: str) -> int | None:
    return _count(keys, name) or None


def _top_p(keys: Keys, name: str) -> float:
    return max(keys.number(name, 1.0, high=1.0), 1e-9)  # 0 keeps the likeliest token alone


def _cutoff(keys: Keys, name: str) -> float:
    """Outside of 0 to 1 the setting is off."""
    value = keys.number(name, 0.0, low=-1e12)
    return value if 0 < value < 1 else 0.0


def _items(keys: Keys, name: str, value: Any, most: int) -> list[Any]:
    if not isinstance(value, list):
        raise keys.wrong(name, value, "a list")
    if len(value) > most:
        raise keys.wrong(name, f"a list of {len(value):,}", f"at most {most:,}")
    return value


def _ids(keys: Keys, name: str, value: Any, most: int = MOST_TOKENS) -> tuple[int, ...]:
    ids = _items(keys, name, value, most)
    if not all(type(token) is int and -1 <= token < 2**31 for token in ids):
        raise keys.wrong(name, value, "a list of token ids")
    return tuple(token for token in ids if token >= 0)


def _tokens(keys: Keys, name: str) -> tuple[int, ...]:
    return tuple(dict.fromkeys(_ids(keys, name, keys.get(name))))


def _sequence(keys: Keys, name: str, value: Any) -> tuple[int, ...]:
    ids = _ids(keys, name, value, LONGEST_SEQUENCE)
    if not ids or len(ids) < len(value):
        raise keys.wrong(name, value, "token ids, one at least")
    return ids


def _sequences(keys: Keys, name: str) -> tuple[tuple[int, ...], ...]:
    words = _items(keys, name, keys.get(name), MOST_SEQUENCES)
    return tuple(dict.fromkeys(_sequence(keys, name, word) for word in words))


def _bias(keys: Keys, name: str) -> tuple[tuple[tuple[int, ...], float], ...]:
    pairs = _items(keys, name, keys.get(name), MOST_SEQUENCES)
    if not all(isinstance(pair, list) and len(pair) == 2 and type(pair[1]) in (int, float) for pair in pairs):
        raise keys.wrong(name, pairs, "a list of pairs, [[token, …], number]")
    if not all(abs(pair[1]) < 1e12 for pair in pairs):
        raise keys.wrong(name, pairs, "numbers below 1e12")
    return tuple({_sequence(keys, name, ids): float(value) for ids, value in pairs}.items())


def _decay(keys: Keys, name: str) -> tuple[int, float]:
    value = keys.get(name)
    good = isinstance(value, list) and len(value) == 2 and type(value[0]) is int and type(value[1]) in (int, float)
    if not good or not 0 <= value[0] < 2**31 or not 0 < value[1] <= 1e6:
        raise keys.wrong(name, value, "[tokens, factor]")
    return value[0], float(value[1])


def _stop(keys: Keys, name: str) -> tuple[str, ...]:
    value = keys.get(name)
    texts = _items(keys, name, [value] if isinstance(value, str) else value, MOST_SEQUENCES)
    if not all(isinstance(text, str) and 0 < len(text) <= LONGEST_SEQUENCE for text in texts):
        raise keys.wrong(name, value, f"a text of 1 to {LONGEST_SEQUENCE:,} letters, or a list of them")
    return tuple(texts)


OBEYED: Mapping[str, tuple[str, Read]] = {
    "max_new_tokens": ("max_new_tokens", _size),
    "min_new_tokens": ("min_new_tokens", _count),
    "num_beams": ("beams", _beams),
    "length_penalty": ("length_penalty", _number(-10, 10)),
    "early_stopping": ("early_stopping", _early_stopping),
    "num_beam_groups": ("beam_groups", _beams),
    "diversity_penalty": ("diversity", _number(0, 1e6)),
    "do_sample": ("sample", _flag),
    "temperature": ("temperature", _number(0, 1e6, above=True)),
    "top_k": ("top_k", _top_k),
    "top_p": ("top_p", _top_p),
    "min_p": ("min_p", _number(0, 1, idle=0)),
    "typical_p": ("typical_p", _number(0, 1, above=True, idle=1)),
    "top_h": ("top_h", _number(0, 1, above=True)),
    "epsilon_cutoff": ("epsilon_cutoff", _cutoff),
    "eta_cutoff": ("eta_cutoff", _cutoff),
    "repetition_penalty": ("repetition_penalty", _number(0, 1e6, above=True)),
    "encoder_repetition_penalty": ("encoder_repetition_penalty", _number(0, 1e6, above=True)),
    "no_repeat_ngram_size": ("no_repeat_ngram", _count),
    "encoder_no_repeat_ngram_size": ("encoder_no_repeat_ngram", _count),
    "exponential_decay_length_penalty": ("exponential_decay", _decay),
    "bad_words_ids": ("ban", _sequences),
    "sequence_bias": ("bias", _bias),
    "suppress_tokens": ("suppress", _tokens),
    "begin_suppress_tokens": ("begin_suppress", _tokens),
    "remove_invalid_values": ("remove_invalid", _flag),
    "renormalize_logits": ("renormalize", _flag),
    "stop_strings": ("stop", _stop),
}
"""Key -> the field of Generation that does it, and how its value reads."""

IN_USAGE = frozenset(
    [
        "max_length",
        "min_length",
        "forced_bos_token_id",
        "forced_eos_token_id",
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "decoder_start_token_id",
    ]
)
"""Obeyed too, as fields of Usage: they depend on what a text begins with."""

AT_ONE_VALUE: Mapping[str, tuple[Any, str]] = {
    "num_return_sequences": (1, "one text is given; n_best gives more"),
    "max_time": (None, "texts are not cut off by the clock"),
    "guidance_scale": (1, "texts are written without guidance"),
    "watermarking_config": (None, "texts are written without a watermark"),
    "token_healing": (False, "a prompt's last token is left as it is"),
    "penalty_alpha": (0, "there is no contrastive search"),
    "dola_layers": (None, "there is no decoding by contrast of layers"),
    "constraints": (None, "only force makes words occur"),
    "force_words_ids": (None, "only force makes words occur"),
}
"""Key -> the value (besides null) at which it changes nothing, and what is done instead at any other."""

MEANINGLESS = frozenset(
    """
    use_cache cache_implementation cache_config max_cache_len use_mtp low_memory prefill_chunk_size compile_config
    disable_compile continuous_batching_config is_assistant num_assistant_tokens num_assistant_tokens_schedule
    assistant_confidence_threshold assistant_early_exit assistant_lookbehind target_lookbehind
    assistant_ensemble_weight speculation_type prompt_lookup_num_tokens max_matching_ngram_size
    output_attentions output_hidden_states output_scores output_logits return_dict_in_generate
    transformers_version _from_model_config
    """.split()  # noqa: SIM905
)
"""Settings that change no text: caches, speculative decoding, compilation, further outputs."""


@dataclass(frozen=True)
class TranslatedSettings:
    """The settings of a folder. `unused`: key and value -> what is done instead, where that may change a text."""

    changes: dict[str, Any] = field(default_factory=dict)  # fields of Generation
    unused: dict[str, str] = field(default_factory=dict)


def read_settings(keys: Keys) -> TranslatedSettings:
    """The settings among these keys. One of the wrong type or out of range is an error that names it."""
    given = {key: value for key, value in keys.data.items() if value is not None}
    samples = keys.flag("do_sample", False)
    if not samples and given.get("temperature") == 0:  # greedy in other words; transformers does not look at it
        del given["temperature"]
    keys = Keys(given, keys.where)
    changes = {name: read(keys, key) for key, (name, read) in OBEYED.items() if key in given}
    changes = {name: value for name, value in changes.items() if value is not None or name == "top_k"}
    unused = dict(_not_done(given))
    if samples:
        changes.setdefault("top_k", TOP_K)
        if changes.get("beams", 1) > 1:
            unused[f"do_sample=true with num_beams={changes['beams']}"] = "beams search for the likeliest text"
            changes["sample"] = False
    if changes.get("beams", 1) % changes.get("beam_groups", 1):
        raise keys.wrong("num_beam_groups", changes["beam_groups"], f"a divisor of num_beams={changes.get('beams', 1)}")
    if changes.get("beam_groups", 1) == 1:
        changes.pop("diversity", None)  # there is nothing to keep apart
    return TranslatedSettings(changes, unused)


def _not_done(given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, (neutral, why) in AT_ONE_VALUE.items():
        if key in given and given[key] != neutral:
            yield f"{key}={shortened(given[key])}", why
    forced = given.get("forced_eos_token_id")
    if isinstance(forced, list) and len(forced) > 1:
        yield f"forced_eos_token_id={shortened(forced)}", f"the longest texts end with {forced[0]}"


def shortened(value: object) -> str:
    """As JSON has it, on one line, and cut if it is long."""
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "…"


def settings_of(generation: Generation) -> dict[str, Any]:
    """The keys that say the same as a Generation, where it differs from the default."""
    plain = Generation()
    said = {
        key: getattr(generation, name)
        for key, (name, _) in OBEYED.items()
        if getattr(generation, name) != getattr(plain, name)
    }
    if generation.sample and generation.top_k is None:
        said["top_k"] = 0  # absent would be 50
    return said


def is_known(key: str) -> bool:
    return key in OBEYED or key in IN_USAGE or key in AT_ONE_VALUE or key in MEANINGLESS
