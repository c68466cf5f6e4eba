"""Our own format: a folder with config.json (what the network is) and model.safetensors (its numbers). No pickles."""

import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from cutaway.checkpoints.files import written_aside
from cutaway.errors import CheckpointError, ConfigError
from cutaway.models.build import empty
from cutaway.models.config import Config, config_from_json
from cutaway.models.network import Network

CONFIG, WEIGHTS = "config.json", "model.safetensors"
FORMAT = "cutaway"


def save(network: Network, folder: str | Path) -> Path:
    """Writes a network; a weight that two parts share is written once. The folder is complete or not there at all."""
    folder = Path(folder)
    weights = {name: weight.detach().contiguous() for name, weight in network.named_parameters()}
    weights |= {name: buffer.contiguous() for name, buffer in network.named_buffers()}
    with written_aside(folder) as aside:
        config = {"format": FORMAT} | network.config.to_json()
        (aside / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        save_file(weights, aside / WEIGHTS, metadata={"format": "pt"})
    return folder


def load(folder: str | Path) -> Network:
    """The network that `save` wrote, number for number."""
    folder = Path(folder)
    config = read_config(folder)
    network = empty(config)
    wanted = dict(network.named_parameters()) | dict(network.named_buffers())
    path = folder / WEIGHTS
    try:
        with safe_open(path, framework="pt") as file:
            found = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118  # no mapping
            _check(path, {name: tuple(weight.shape) for name, weight in wanted.items()}, found)
            with torch.no_grad():
                for name, weight in wanted.items():
                    weight.data = file.get_tensor(name)
    except FileNotFoundError:
        raise CheckpointError(f"{folder} has {CONFIG} but no {WEIGHTS}; is the copy complete?") from None
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is not a whole safetensors file ({error}); copy or save it again") from None
    return network


def read_config(folder: Path) -> Config:
    """The config of a saved network, without its weights."""
    path = folder / CONFIG
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise CheckpointError(f"{folder} is not a saved model: it has no {CONFIG}") from None
    except (json.JSONDecodeError, UnicodeDecodeError, OSError) as error:
        raise CheckpointError(f"{path} can't be read as JSON ({error}); copy or save it again") from None
    if not isinstance(data, dict) or data.pop("format", None) != FORMAT:
        raise CheckpointError(f'{path} was not written by cutaway: it lacks "format": "{FORMAT}"')
    try:
        return config_from_json(data)
    except ConfigError as error:
        raise CheckpointError(f"{path}: {error}") from None


Shapes = dict[str, tuple[int, ...]]


def _check(path: Path, wanted: Shapes, found: Shapes) -> None:
    """Every tensor is there, in its shape, and no other: all that is wrong in one message."""
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
