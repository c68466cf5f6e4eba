"""`cutaway.load`: a folder, a name on the Hugging Face hub, or a llama2.c file, to a model."""

import logging
from dataclasses import replace
from pathlib import Path

import torch

from cutaway.aliases import hinted
from cutaway.checkpoints import huggingface, llama2c, native
from cutaway.checkpoints.hub import fetch
from cutaway.checkpoints.usage import unused_settings
from cutaway.checkpoints.weights import WEIGHTS
from cutaway.devices import device_of, dtype_of
from cutaway.errors import CheckpointError
from cutaway.files import read_json
from cutaway.model import Model
from cutaway.models.config import Config, Head, StackConfig
from cutaway.models.usage import Usage
from cutaway.text.files import load_tokenizer
from cutaway.text.tokenizer import Tokenizer

LOG = logging.getLogger("cutaway")


@hinted
def load(
    name: str | Path,
    *,
    head: Head | huggingface.Saved | None = "saved",
    dtype: torch.dtype | str | None = None,
    device: str | torch.device = "auto",
    revision: str | None = None,
    offline: bool = False,
) -> Model:
    """Loads a model: a folder, `owner/name` on the hub, or a llama2.c .bin file.

    Weights keep the dtype they are stored in, mapped from the file, unless `dtype` is given; those that come with
    cutaway are stored in half precision to be small, and become float32. `head` replaces the saved one:
    `Classifier(n_classes=3, hidden="tanh")` is a new classifier on a BERT. `device` is "cpu", "cuda", "cuda:1",
    "mps", or "auto": a GPU if torch sees one, else the CPU. `offline` uses downloaded files only.
    """
    place = device_of(device)  # a missing one is an error before anything is downloaded
    model = _load(name, head, dtype_of(dtype), revision, offline)
    return model if place.type == "cpu" else model.to(place)


def _load(
    name: str | Path,
    head: Head | huggingface.Saved | None,
    dtype: torch.dtype | None,
    revision: str | None,
    offline: bool,
) -> Model:
    """The model on the CPU."""
    folder = locate(name, revision=revision, offline=offline)
    if dtype is None and folder.parent == SHIPPED:
        dtype = torch.float32
    if folder.is_file():
        return _llama2c(folder, head, dtype)
    if not (folder / "config.json").is_file():
        raise CheckpointError(f"{folder} is not a model: it has no config.json")
    if native.is_native(read_json(folder / "config.json")):
        if (folder / "run.toml").is_file() and not (folder / WEIGHTS).is_file():
            raise CheckpointError(
                f"{folder} holds no model yet: its training was killed before its first state was saved; "
                f"go on with cutaway resume {folder}"
            )
        return _native(folder, str(name), head, dtype)
    checkpoint = huggingface.open_folder(folder, head)
    tokenizer = load_tokenizer(folder, checkpoint.keys)
    check_tokenizer(folder, tokenizer, checkpoint.config)
    usage = checkpoint.usage
    if head != "saved":
        usage = replace(usage, labels=())  # they name other classes
    network, origin, dtypes = checkpoint.load(dtype), checkpoint.origin, checkpoint.dtypes
    if dtype is not None:
        origin, dtypes = origin.to(dtype), {}
    _warn_of_unsupported_settings(folder, checkpoint.origin, checkpoint.config)
    return Model(network, tokenizer, usage, str(name), origin, checkpoint.report, folder, dtypes)


SHIPPED = Path(__file__).parent / "shipped"
"""Models that come with cutaway, a folder each."""


def locate(name: str | Path, *, revision: str | None = None, offline: bool = False) -> Path:
    """The path of a model's files, downloaded if need be.

    A folder of the user's takes precedence over a model of the same name that comes with cutaway.
    """
    try:
        path = Path(name).expanduser()
        if path.exists():
            return path
    except (RuntimeError, TypeError, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise CheckpointError(f"{str(name)[:200]!r} is no name of a model: {reason}") from None
    if str(name) in shipped():
        return SHIPPED / str(name)
    return fetch(str(name), revision=revision, offline=offline)


def shipped() -> list[str]:
    """The names of the models that come with cutaway."""
    return sorted(folder.name for folder in SHIPPED.glob("*") if (folder / "config.json").is_file())


def check_tokenizer(folder: Path, tokenizer: Tokenizer | None, config: Config) -> None:
    """Checks that the embedding has a row for every id of the tokenizer; spare rows are usual."""
    rows = [half.vocabulary for half in (config.encoder, config.decoder) if half is not None and half.vocabulary]
    if tokenizer is not None and rows and tokenizer.vocabulary_size > max(rows):
        raise CheckpointError(
            f"{folder}: the tokenizer has ids up to {tokenizer.vocabulary_size - 1}, the model a vocabulary of "
            f"{max(rows)}; they do not belong together"
        )


def _native(folder: Path, name: str, head: Head | huggingface.Saved | None, dtype: torch.dtype | None) -> Model:
    if head != "saved":
        raise CheckpointError(f"{folder} is a model of cutaway's own; its head can't be replaced")
    described = native.describe(folder)
    tokenizer = load_tokenizer(folder)
    check_tokenizer(folder, tokenizer, described.config)
    network, dtypes = native.load(folder, dtype), native.mixed_dtypes(folder)
    origin = None if described.foreign is None else huggingface.Origin(described.foreign, native.spare(folder))
    if dtype is not None:
        origin, dtypes = origin and origin.to(dtype), {}
    native.warn_of_standing(folder)
    _warn_of_unsupported_settings(folder, origin, described.config)
    return Model(network, tokenizer, described.usage, name, origin, folder=folder, dtypes=dtypes)


def _warn_of_unsupported_settings(folder: Path, origin: huggingface.Origin | None, config: Config) -> None:
    """Warns of generation settings that cutaway does not support."""
    if origin is None or config.decoder is None:
        return
    for setting, instead in unused_settings(origin.files).items():
        LOG.warning("%s asks for %s, which cutaway does not do: %s", folder, setting, instead)


def _llama2c(file: Path, head: Head | huggingface.Saved | None, dtype: torch.dtype | None) -> Model:
    """Its tokenizer is the file tok*.bin beside it."""
    if head != "saved":
        raise CheckpointError(f"{file} is a llama2.c file; its head can't be replaced")
    network = llama2c.read(file, dtype)
    assert isinstance(network.config.decoder, StackConfig)
    tokenizer = llama2c.tokenizer_beside(file, network.config.decoder.vocabulary or 0)
    return Model(network, tokenizer, Usage(start=1, end=(1, 2)), file.stem)
