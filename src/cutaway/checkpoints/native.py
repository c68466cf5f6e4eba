"""cutaway's own format: a folder with config.json and model.safetensors. No pickles."""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from cutaway import schema
from cutaway.checkpoints.assign import assign_weights, common_dtype, on_meta_safely, unwrap
from cutaway.checkpoints.usage import GENERATION, IMAGES, SENTENCES, Files
from cutaway.checkpoints.weights import (
    WEIGHTS,
    HeaderEntry,
    TensorToWrite,
    narrowed,
    open_weights,
    tensor_to_write,
    write_weights,
)
from cutaway.errors import CheckpointError, ConfigError, InputError
from cutaway.files import atomic_folder, read_json
from cutaway.models.config import Config, config_from_json
from cutaway.models.network import Network
from cutaway.models.usage import Usage

LOG = logging.getLogger("cutaway")
CONFIG = "config.json"
FORMAT = "cutaway"
SPARE = "huggingface."
"""Before the names of tensors that a network has no use for, but the files it came from had."""
STANDING = "training"
"""In the metadata of weights that no validation has seen: where their training stood."""


@dataclass(frozen=True)
class Description:
    """A read config.json: the network's config, its usage, and the files it had as a model of Hugging Face."""

    config: Config
    usage: Usage = field(default_factory=Usage)
    foreign: Files | None = None


def write(
    network: Network,
    folder: Path,
    usage: Usage | None = None,
    foreign: Files | None = None,
    dtypes: Mapping[str, torch.dtype] | None = None,
    spare: Mapping[str, Tensor] | None = None,
) -> None:
    """config.json and model.safetensors into an empty folder; a weight that two parts share is written once.

    `dtypes`: of weights that came in another dtype than most, and go out in it if it holds them. `spare`: tensors
    beside the network's, for the day it goes back to where it came from.
    """
    network = unwrap(network)
    tensors = dict(network.named_parameters()) | dict(network.named_buffers())
    write_config(network, folder, usage, foreign)
    made = {name: narrowed([tensor], (dtypes or {}).get(name)) for name, tensor in tensors.items()}
    write_weights(
        folder / WEIGHTS,
        {
            name: TensorToWrite(made[name], tuple(each.shape), partial(each.to, made[name]))
            for name, each in tensors.items()
        }
        | {SPARE + name: tensor_to_write(tensor) for name, tensor in (spare or {}).items()},
    )


def write_config(network: Network, folder: Path, usage: Usage | None = None, foreign: Files | None = None) -> None:
    """config.json alone."""
    config: dict[str, Any] = {"format": FORMAT} | network.config.to_json()
    if usage is not None and usage != Usage():
        config["usage"] = schema.to_json(usage)
    if foreign is not None:
        config["huggingface"] = foreign
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def save(network: Network, folder: str | Path) -> Path:
    """Writes a network. The folder is complete or not there at all."""
    folder = Path(folder)
    with atomic_folder(folder) as aside:
        write(network, aside)
    return folder


def load(folder: str | Path, dtype: torch.dtype | None = None) -> Network:
    """The network that `save` wrote, number for number."""
    folder = Path(folder)
    config = describe(folder).config
    weights = open_weights(folder)
    network = on_meta_safely(config, len(weights), folder / CONFIG)
    wanted = dict(network.named_parameters()) | dict(network.named_buffers())
    entries = of_network(weights)
    found = {name: entry.shape for name, entry in entries.items()}
    _check(folder / WEIGHTS, {name: tuple(weight.shape) for name, weight in wanted.items()}, found)
    whole = [name for name, entry in entries.items() if not entry.dtype.is_floating_point]
    if whole:
        raise CheckpointError(f"{folder / WEIGHTS}: {whole[0]} holds {weights[whole[0]].dtype}, not weights")
    dtype = dtype or common_dtype(entry.dtype for entry in entries.values())
    return assign_weights(network, {name: weights.tensor(name).to(dtype) for name in wanted})


def of_network(entries: Mapping[str, HeaderEntry]) -> dict[str, HeaderEntry]:
    """The tensors of a file that the network has."""
    return {name: entry for name, entry in entries.items() if not name.startswith(SPARE)}


def spare(folder: Path) -> dict[str, Tensor]:
    """The other tensors, mapped from the file, by their original names."""
    weights = open_weights(folder)
    return {name.removeprefix(SPARE): weights.tensor(name) for name in weights if name.startswith(SPARE)}


def mixed_dtypes(folder: Path) -> dict[str, torch.dtype]:
    """The dtype of each of the network's weights, if the file mixes several; empty if all have the same."""
    found = {name: entry.dtype for name, entry in of_network(open_weights(folder)).items()}
    return found if len(set(found.values())) > 1 else {}


def standing(folder: Path) -> str | None:
    """Where the training stood that wrote these weights, if it had not validated them: `stopped after step 9 of 90, …`.

    Other weights have no such note.
    """
    if not (folder / WEIGHTS).is_file():
        return None
    try:
        with safe_open(folder / WEIGHTS, framework="pt") as file:
            note = (file.metadata() or {}).get(STANDING, "")
    except SafetensorError as error:
        raise CheckpointError(f"{folder / WEIGHTS} can't be read ({error})") from None
    return note if note and note.isprintable() and len(note) < 200 else None


def warn_of_standing(folder: Path) -> None:
    if (found := standing(folder)) is not None:
        LOG.warning("%s: its training %s; go on with cutaway resume %s", folder, found, folder)


def is_native(keys: dict[str, Any]) -> bool:
    """Whether a config.json is in cutaway's own format."""
    return keys.get("format") == FORMAT


def describe(folder: Path) -> Description:
    """The config.json of a saved network."""
    path = folder / CONFIG
    if not path.is_file():
        raise CheckpointError(f"{folder} is not a saved model: it has no {CONFIG}")
    data = read_json(path)
    if not is_native(data):
        raise CheckpointError(f'{path} was not written by cutaway: it lacks "format": "{FORMAT}"')
    usage, foreign = data.pop("usage", {}), data.pop("huggingface", None)
    del data["format"]
    try:
        if foreign is not None and not _are_files(foreign):
            raise ConfigError(f"huggingface does not hold the files of a model of Hugging Face ({', '.join(_THEIRS)})")
        return Description(config_from_json(data), schema.from_json(Usage, _nested(usage), "usage"), foreign)
    except (ConfigError, InputError) as error:
        raise CheckpointError(f"{path}: {error}") from None


_THEIRS = (CONFIG, GENERATION, IMAGES, SENTENCES)


def _nested(usage: Any) -> Any:
    """A usage as it is now; its search stood beside the rest when it was beams and a length penalty only."""
    if not isinstance(usage, dict) or "generation" in usage:
        return usage
    search = {name: usage[name] for name in ("beams", "length_penalty") if name in usage}
    return {name: value for name, value in usage.items() if name not in search} | {"generation": search}


def _are_files(foreign: Any) -> bool:
    """Files of these names and no others: saving writes them, and a name may be a path to anywhere."""
    if not isinstance(foreign, dict) or CONFIG not in foreign:
        return False
    return all(name in _THEIRS and isinstance(keys, dict) for name, keys in foreign.items())


def read_config(folder: Path) -> Config:
    """The config of a saved network."""
    return describe(folder).config


Shapes = dict[str, tuple[int, ...]]


def _check(path: Path, wanted: Shapes, found: Shapes) -> None:
    """Checks that every tensor is there, in its shape, and no other; one message names the first differences."""
    wrong = [f"{name} is missing" for name in wanted if name not in found]
    wrong += [f"{name} is not part of this model" for name in found if name not in wanted]
    wrong += [
        f"{name} has shape {list(found[name])}, expected {list(shape)}"
        for name, shape in wanted.items()
        if name in found and found[name] != shape
    ]
    if wrong:
        more = f", and {len(wrong) - 8} more" if len(wrong) > 8 else ""
        raise CheckpointError(f"{path} does not fit its {CONFIG}: {'; '.join(wrong[:8])}{more}")
