"""A model's usage, from and to the keys that Hugging Face scatters over three files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cutaway.checkpoints.family import Family
from cutaway.checkpoints.keys import Keys
from cutaway.files import read_json
from cutaway.models.config import Classifier, TransformerConfig
from cutaway.models.usage import Usage

CONFIG, GENERATION, IMAGES = "config.json", "generation_config.json", "preprocessor_config.json"
SENTENCES = "sentence_bert_config.json"
Files = Mapping[str, Mapping[str, Any]]
"""The JSON files of a folder of Hugging Face, by name."""


def read_side_files(folder: Path) -> Files:
    """What lies beside config.json, as it is."""
    return {name: read_json(folder / name) for name in (GENERATION, IMAGES, SENTENCES) if (folder / name).is_file()}


def read_usage(files: Files, family: Family, config: TransformerConfig, where: Path) -> Usage:
    """config.json, what generation_config.json says more, and the files for images and for sentence vectors."""
    said = {key: value for key, value in files.get(GENERATION, {}).items() if value is not None}
    keys = Keys({**files[CONFIG], **said}, str(where / CONFIG))
    images = Keys(files.get(IMAGES, {}), str(where / IMAGES))
    start = keys.get("decoder_start_token_id") if config.encoder is not None else keys.get("bos_token_id")
    pad = _token(keys, "pad_token_id", keys.get("pad_token_id"))
    return Usage(
        task=family.task,
        start=_token(keys, "start", start),
        end=_tokens(keys, "eos_token_id"),
        pad=pad,
        never=tuple(sorted(_never(keys) | (set() if pad is None or family.writes_pad else {pad}))),
        last=_last(keys) if config.decoder is not None else None,
        beams=keys.count("num_beams", 1),
        length_penalty=keys.number("length_penalty", 1.0, low=-100.0, high=100.0),
        max_length=keys.optional_count("max_length"),
        max_tokens=Keys(files.get(SENTENCES, {}), str(where / SENTENCES)).optional_count("max_seq_length"),
        labels=_labels(keys, config),
        image_mean=_channels(images, "image_mean"),
        image_std=_channels(images, "image_std"),
    )


def _token(keys: Keys, name: str, value: Any) -> int | None:
    if value is not None and (type(value) is not int or not -1 <= value < 2**31):
        raise keys.wrong(name, value, "the number of a token")
    return value if value is not None and value >= 0 else None


def _tokens(keys: Keys, name: str) -> tuple[int, ...]:
    value = keys.get(name, [])
    tokens = [_token(keys, name, item) for item in (value if isinstance(value, list) else [value])]
    return tuple(token for token in tokens if token is not None)


def _last(keys: Keys) -> int | None:
    tokens = _tokens(keys, "forced_eos_token_id")
    return tokens[0] if tokens else None


def _never(keys: Keys) -> set[int]:
    """Bad words of one token; longer ones are phrases, which say nothing of a single token."""
    words = keys.get("bad_words_ids", [])
    if not isinstance(words, list) or not all(isinstance(word, list) for word in words):
        raise keys.wrong("bad_words_ids", words, "a list of lists of tokens")
    single = {_token(keys, "bad_words_ids", word[0]) for word in words if len(word) == 1}
    return {token for token in single if token is not None} | set(_tokens(keys, "suppress_tokens"))


def _labels(keys: Keys, config: TransformerConfig) -> tuple[str, ...]:
    names = keys.get("id2label")
    if not isinstance(config.head, Classifier) or names is None:
        return ()
    if not isinstance(names, Mapping) or not all(isinstance(name, str) for name in names.values()):
        raise keys.wrong("id2label", names, "an object from class numbers to names")
    numbers = [str(i) for i in range(config.head.n_classes)]
    labels = tuple(names[number] for number in numbers if number in names)
    named = len(labels) == len(numbers) and labels != tuple(f"LABEL_{number}" for number in numbers)
    return labels if named else ()


def _channels(keys: Keys, name: str) -> tuple[float, ...]:
    value = keys.get(name, [])
    values = value if isinstance(value, list) else [value]
    if len(values) > 16 or not all(type(item) in (int, float) for item in values):
        raise keys.wrong(name, value, "a number for each channel")
    return tuple(float(item) for item in values)


def usage_keys(usage: Usage, config: TransformerConfig) -> dict[str, Any]:
    """The keys of config.json that say the same, where the usage says anything."""
    keys: dict[str, Any] = {"pad_token_id": usage.pad}
    keys["decoder_start_token_id" if config.encoder is not None else "bos_token_id"] = usage.start
    if usage.end:
        keys["eos_token_id"] = usage.end[0] if len(usage.end) == 1 else list(usage.end)
    if usage.labels:
        keys["id2label"] = dict(enumerate(usage.labels))
        keys["label2id"] = {label: i for i, label in enumerate(usage.labels)}
    return {key: value for key, value in keys.items() if value is not None}


def side_files(usage: Usage, config: TransformerConfig) -> Files:
    """generation_config.json for what writes text, preprocessor_config.json for images, and how long sentences are."""
    files: dict[str, dict[str, Any]] = {}
    if config.decoder is not None and usage != Usage():
        generation = {key: value for key, value in usage_keys(usage, config).items() if key.endswith("token_id")}
        if usage.never:
            generation["bad_words_ids"] = [[token] for token in usage.never]
        if usage.last is not None:
            generation["forced_eos_token_id"] = usage.last
        if usage.beams > 1:
            generation["num_beams"] = usage.beams
        if usage.length_penalty != 1.0:
            generation["length_penalty"] = usage.length_penalty
        if usage.max_length is not None:
            generation["max_length"] = usage.max_length
        files[GENERATION] = generation
    if usage.max_tokens is not None:
        files[SENTENCES] = {"max_seq_length": usage.max_tokens, "do_lower_case": False}
    if usage.image_mean and config.last.patches is not None:
        size = config.last.patches.image_size
        files[IMAGES] = {
            "image_processor_type": "ViTImageProcessor",
            "do_resize": True,
            "do_rescale": True,
            "do_normalize": True,
            "rescale_factor": 1 / 255,
            "size": {"height": size, "width": size},
            "image_mean": list(usage.image_mean),
            "image_std": list(usage.image_std),
        }
    return files
