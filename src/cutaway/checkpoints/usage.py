"""A model's usage, from and to the keys that Hugging Face scatters over three files."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from cutaway.checkpoints.family import Family
from cutaway.checkpoints.generation_settings import IN_USAGE, OBEYED, is_known, read_settings, settings_of
from cutaway.checkpoints.keys import Keys
from cutaway.errors import CheckpointError
from cutaway.files import read_json
from cutaway.generation import Generation, sampling_options_in_use
from cutaway.models.config import Classifier, TransformerConfig
from cutaway.models.usage import Usage

CONFIG, GENERATION, IMAGES = "config.json", "generation_config.json", "preprocessor_config.json"
SENTENCES = "sentence_bert_config.json"
Files = Mapping[str, Mapping[str, Any]]
"""The JSON files of a folder of Hugging Face, by name."""


def read_side_files(folder: Path) -> Files:
    """The JSON files beside config.json, as they are."""
    return {name: read_json(folder / name) for name in (GENERATION, IMAGES, SENTENCES) if (folder / name).is_file()}


def read_usage(files: Files, family: Family, config: TransformerConfig, where: Path) -> Usage:
    """The usage of a folder: config.json, generation_config.json, and the files for images and sentence vectors."""
    said = {key: value for key, value in files.get(GENERATION, {}).items() if value is not None}
    keys = Keys({**files[CONFIG], **said}, str(where / (GENERATION if said else CONFIG)))
    images = Keys(files.get(IMAGES, {}), str(where / IMAGES))
    start = keys.get("decoder_start_token_id") if config.encoder is not None else keys.get("bos_token_id")
    usage = Usage(
        task=family.task,
        start=_token(keys, "start", start),
        end=_tokens(keys, "eos_token_id"),
        pad=_token(keys, "pad_token_id", keys.get("pad_token_id")),
        max_tokens=Keys(files.get(SENTENCES, {}), str(where / SENTENCES)).optional_count("max_seq_length"),
        labels=_labels(Keys(files[CONFIG], str(where / CONFIG)), config),
        image_mean=_channels(images, "image_mean"),
        image_std=_image_std(images),
    )
    if config.decoder is None:
        return usage
    return _with_settings(usage, settings_keys(files, where), family, config.decoder.vocabulary or 0)


def settings_keys(files: Files, where: Path) -> Keys:
    """The generation settings: generation_config.json alone if there is one, as in transformers; else config.json."""
    name = GENERATION if GENERATION in files else CONFIG
    return Keys(files[name], str(where / name))


def _with_settings(usage: Usage, keys: Keys, family: Family, vocabulary: int) -> Usage:
    changes = read_settings(keys).changes
    for name in {"suppress", "begin_suppress"} & changes.keys():
        changes[name] = tuple(token for token in changes[name] if token < vocabulary)
    words = changes.pop("ban", ())
    pad = () if usage.pad is None or family.writes_pad else (usage.pad,)
    suppressed = set(changes.get("suppress", ()))
    for name in ("forced_bos_token_id", "forced_eos_token_id"):
        forced = _tokens(keys, name)
        if forced and suppressed.issuperset(forced):
            raise CheckpointError(
                f"{keys.where}: {name}={keys.get(name)} is among suppress_tokens; leave one of them out"
            )
    first = keys.get("forced_bos_token_id")
    return replace(
        usage,
        never=tuple(sorted({*pad, *(word[0] for word in words if len(word) == 1)})),
        first=_token(keys, "forced_bos_token_id", first),
        last=next(iter(_tokens(keys, "forced_eos_token_id")), None),
        generation=Generation(**changes, ban=tuple(word for word in words if len(word) > 1)),
        max_length=keys.optional_count("max_length"),
        min_length=int(keys.number("min_length", 0, high=2**31)),
    )


def _token(keys: Keys, name: str, value: Any) -> int | None:
    if value is not None and (type(value) is not int or not -1 <= value < 2**31):
        raise keys.wrong(name, value, "the number of a token")
    return value if value is not None and value >= 0 else None


def _tokens(keys: Keys, name: str) -> tuple[int, ...]:
    value = keys.get(name, [])
    tokens = [_token(keys, name, item) for item in (value if isinstance(value, list) else [value])]
    return tuple(token for token in tokens if token is not None)


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


def _image_std(keys: Keys) -> tuple[float, ...]:
    """image_std, by which pixels are divided: a number other than 0 for each channel."""
    spreads = _channels(keys, "image_std")
    if not all(spreads):
        raise keys.wrong("image_std", keys.get("image_std"), "a number other than 0 for each channel")
    return spreads


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
        generation |= settings_of_usage(usage)
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


def settings_of_usage(usage: Usage) -> dict[str, Any]:
    """A model's generation settings under the keys of generation_config.json: all that differ from the defaults."""
    said = settings_of(usage.generation)
    if bad := [[token] for token in usage.never] + [list(word) for word in usage.generation.ban]:
        said["bad_words_ids"] = bad
    places = {"forced_bos_token_id": usage.first, "forced_eos_token_id": usage.last}
    lengths = {"max_length": usage.max_length, "min_length": usage.min_length or None}
    return said | {key: value for key, value in (places | lengths).items() if value is not None}


def idle_settings(usage: Usage) -> dict[str, str]:
    """The settings that have no effect beside the others -> why."""
    generation = usage.generation
    idle = {} if generation.sample else dict.fromkeys(sampling_options_in_use(generation), "no sampling is asked for")
    if usage.max_length is not None and generation.max_new_tokens is not None:
        idle["max_length"] = "max_new_tokens goes before it"
    if usage.min_length and generation.min_new_tokens is not None:
        idle["min_length"] = "min_new_tokens goes before it"
    if usage.beams == 1:
        beams = {"length_penalty": generation.length_penalty != 1.0, "early_stopping": generation.early_stopping}
        idle |= {name: "only several beams make use of it" for name, said in beams.items() if said}
    return idle


def without_settings(keys: Mapping[str, Any]) -> dict[str, Any]:
    """A generation_config.json without what `side_files` says anew."""
    return {key: value for key, value in keys.items() if key not in OBEYED and key not in IN_USAGE}


def unused_settings(files: Files) -> dict[str, str]:
    """The generation settings of a folder that are not obeyed -> what is done instead."""
    return read_settings(settings_keys(files, Path())).unused


def unknown_settings(files: Files) -> list[str]:
    """Keys of generation_config.json that transformers does not know either."""
    return sorted(key for key in files.get(GENERATION, {}) if not is_known(key))
