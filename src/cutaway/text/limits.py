"""Limits of a tokenizer.json: steps that make a text many times longer, or search it for hours, are refused.

The `tokenizers` library runs any step of the file, in this process, and can't be stopped. The limits are far beyond
published tokenizers; regular expressions are not analysed, but none runs while loading.
"""

import base64
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import tokenizers

from cutaway.files import check_values, parse_json
from cutaway.text.sentencepiece import Charsmap
from cutaway.text.settings import ADDED, LONGEST

GROWTH = 1000
"""The largest factor of a text's growth: nmt_nfkc's longest rule makes 33 bytes of 3, a space symbol 3 of one."""
STEPS = 100


class LimitError(Exception):
    """A limit is exceeded: "its decoder has 200 steps; expected 100 at most"."""


_PARTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
_ONE_REPETITION = re.compile(r"[^()*+?{|]*([*+]|\{\d+,?\d*\})?")
# a key that JSON can spell in other ways (\u00…) is parsed, too
_JUDGED = re.compile(rb'"normalized"\s*:\s*true|precompiled_charsmap|\\u00[2-7]')


def check_file(data: bytes) -> None:
    """Checks a tokenizer.json before the library reads it. LimitError: too much.

    The library normalizes added tokens then, and takes the memory that a charsmap asks for, up to 8 GB; where that is
    more than there is, the process ends.
    """
    check_values(data)
    if not _JUDGED.search(data):
        return
    content = parse_json(data)
    if not isinstance(content, dict):
        return
    steps = list(_steps(content.get("normalizer")))
    for step in steps:
        if "precompiled_charsmap" in step:
            Charsmap(base64.b64decode(str(step["precompiled_charsmap"]), validate=True))
    if not isinstance(content.get("added_tokens"), list):
        return
    tokens = [token for token in content["added_tokens"] if isinstance(token, dict) and token.get("normalized")]
    size = sum(len(str(token.get("content"))) for token in tokens)
    if size * _growth("normalizer", steps) > 10**8:
        raise LimitError(f"its normalizer makes too much of its {len(tokens)} added tokens")
    for step in steps:
        pattern = _pattern(step, "Regex")
        if tokens and pattern is not None and not _ONE_REPETITION.fullmatch(pattern):
            raise LimitError(f"its normalizer changes added tokens by the regular expression {pattern[:100]!r}")


def check(backend: tokenizers.Tokenizer) -> None:
    """Checks a tokenizer before the library encodes or decodes anything. LimitError: too much."""
    for name in _PARTS:
        steps = list(_steps(_state(backend, name)))
        if len(steps) > STEPS:
            raise LimitError(f"its {name} has {len(steps)} steps; expected {STEPS} at most")
        _growth(name, steps)
        for step in steps:
            _check_step(name, step)
    _check_model(backend)
    added = backend.get_added_tokens_decoder().values()
    if len(added) > ADDED or any(len(token.content) > LONGEST for token in added):
        raise LimitError(
            f"it adds {len(added):,} tokens; expected {ADDED:,} at most, of {LONGEST:,} characters at most"
        )


def has_patterns(backend: tokenizers.Tokenizer, name: str) -> bool:
    """Whether this part of a tokenizer (`name`: "normalizer", "decoder") runs regular expressions from its file."""
    return any(_pattern(step, "Regex") is not None for step in _steps(_state(backend, name)))


def _state(backend: tokenizers.Tokenizer, name: str) -> Any:
    part = getattr(backend, name)
    return None if part is None else json.loads(part.__getstate__())


def _steps(part: Any) -> Iterator[Mapping[str, Any]]:
    """The steps of a part, one after the other, however its sequences are nested."""
    if isinstance(part, dict):
        inner = [part[key] for key in ("normalizers", "pretokenizers", "processors", "decoders") if key in part]
        if not inner:
            yield part
        for steps in inner:
            for step in steps if isinstance(steps, list) else ():
                yield from _steps(step)


def _pattern(step: Mapping[str, Any], kind: str) -> str | None:
    pattern = step.get("pattern")
    found = pattern.get(kind) if isinstance(pattern, dict) else None
    return found if isinstance(found, str) else None


def _growth(name: str, steps: list[Mapping[str, Any]]) -> int:
    """The factor by which these steps lengthen a text in bytes, at most. LimitError: more than GROWTH."""
    growth = 1
    for step in steps:
        if "pattern" in step and "content" in step:  # Replace, also without its type
            shortest = len((_pattern(step, "String") or "").encode())
            size = len(str(step.get("content")).encode())
            growth *= max(
                1, -(-size // shortest) if shortest else size + 1 if _pattern(step, "Regex") is None else size
            )
        elif "precompiled_charsmap" in step:
            blob = base64.b64decode(str(step["precompiled_charsmap"]))
            growth *= max(1, Charsmap(blob).longest_replacement)
        if growth > GROWTH:
            raise LimitError(f"its {name} can make a text {growth:,} times as long; expected {GROWTH:,} times at most")
    return growth


def _check_step(name: str, step: Mapping[str, Any]) -> None:
    numbers = [step[key] for key in ("length", "start", "stop") if isinstance(step.get(key), int)]
    texts = [step[key] for key in ("prepend", "prefix", "suffix", "content") if isinstance(step.get(key), str)]
    if any(number > LONGEST for number in numbers) or any(len(text) > LONGEST for text in texts):
        raise LimitError(f"its {name} has a {step.get('type')} of more than {LONGEST:,} characters")
    if step.get("length") == 0:
        raise LimitError(f"its {name} cuts text into pieces of no length")
    sizes = {key: len(token.get("ids", ())) for key, token in (step.get("special_tokens") or {}).items()}
    for key in ("single", "pair"):
        pieces = step.get(key) or []
        texts = [piece["Sequence"]["id"] for piece in pieces if "Sequence" in piece]
        around = sum(sizes.get(piece["SpecialToken"]["id"], 1) for piece in pieces if "SpecialToken" in piece)
        if len(set(texts)) < len(texts) or around > LONGEST:
            raise LimitError(
                f"its {name} puts {around:,} tokens around a text and takes {len(texts)} texts; "
                f"expected {LONGEST:,} at most, and each text once"
            )


def _check_model(backend: tokenizers.Tokenizer) -> None:
    model = backend.model
    for key in ("continuing_subword_prefix", "end_of_word_suffix"):
        if len(getattr(model, key, None) or "") > LONGEST:
            raise LimitError(f"its {key} is longer than {LONGEST:,} characters")
    for key in ("max_input_chars_per_word", "nbest_size"):
        if (getattr(model, key, None) or 0) > LONGEST:
            raise LimitError(f"its {key} is {getattr(model, key)}; expected {LONGEST:,} at most")
    if type(model).__name__ == "Unigram":  # which tries every piece that fits at every character
        longest = max(map(len, backend.get_vocab(with_added_tokens=False)), default=0)
        if longest > LONGEST:
            raise LimitError(f"it has a piece of {longest:,} characters; expected {LONGEST:,} at most")
