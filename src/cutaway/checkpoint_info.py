"""What a saved model is, from its headers: no weight is loaded."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from cutaway.checkpoints import huggingface, llama2c, native
from cutaway.checkpoints.assign import on_meta_safely
from cutaway.checkpoints.usage import Files, idle_settings, unknown_settings, unused_settings
from cutaway.checkpoints.weights import open_weights
from cutaway.errors import CheckpointError, ConfigError
from cutaway.files import open_file, read_json
from cutaway.info.summary import sizes
from cutaway.loading import check_tokenizer
from cutaway.models.config import Config, TransformerConfig
from cutaway.models.usage import Usage
from cutaway.text.files import load_tokenizer
from cutaway.text.tokenizer import Tokenizer

Format = Literal["cutaway", "huggingface", "llama2.c"]


@dataclass(frozen=True)
class StoredTensor:
    """One tensor of a file. `theirs`: its name there (llama2.c has none). `ours`: what it becomes, if it is used."""

    theirs: str | None
    ours: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class CheckpointInfo:
    path: Path
    format: Format
    config: Config
    stored: list[StoredTensor]
    n_bytes: int  # of the weights' files
    family: str | None = None  # None: cutaway's own, without a family of Hugging Face
    architecture: str | None = None
    tokenizer: Tokenizer | None = None
    usage: Usage = field(default_factory=Usage)
    licence: str | None = None
    unread_keys: list[str] = field(default_factory=list)  # of config.json: unknown to cutaway
    unused_settings: dict[str, str] = field(default_factory=dict)  # of generation_config.json -> what is done instead
    ignored: list[str] = field(default_factory=list)  # tensors that the network does not use

    @property
    def dtypes(self) -> list[str]:
        return sorted({str(tensor.dtype).removeprefix("torch.") for tensor in self.stored})

    @property
    def contexts(self) -> dict[str, int]:
        """How many positions each half was made for, where the config says so."""
        return self._of_halves("max_positions")

    @property
    def vocabularies(self) -> dict[str, int]:
        """How many tokens each half knows; images are not tokens."""
        return self._of_halves("vocabulary")

    @property
    def sizes(self) -> dict[str, dict[str, Any]]:
        """Half -> what its config says of its size; see info/summary.py."""
        return sizes(self.config)

    def _of_halves(self, field: str) -> dict[str, int]:
        halves = {"encoder": self.config.encoder, "decoder": self.config.decoder}
        found = {name: getattr(half, field, None) for name, half in halves.items()}
        return {name: number for name, number in found.items() if number is not None}


def read_info(path: Path) -> CheckpointInfo:
    """Of a folder (cutaway's own, or Hugging Face's) or a llama2.c file. What does not fit together is an error."""
    if path.is_file():
        return _llama2c(path)
    if not (path / "config.json").is_file():
        raise CheckpointError(f"{path} is not a model: it has no config.json")
    if native.is_native(read_json(path / "config.json")):
        return _native(path)
    return _huggingface(path)


def _huggingface(folder: Path) -> CheckpointInfo:
    checkpoint = huggingface.open_folder(folder)
    tokenizer = load_tokenizer(folder, checkpoint.keys)
    check_tokenizer(folder, tokenizer, checkpoint.config)
    ours = {name: pair.ours for name, pair in checkpoint.sources.items()}
    entries = checkpoint.weights.entries
    return CheckpointInfo(
        path=folder,
        format="huggingface",
        config=checkpoint.config,
        stored=[StoredTensor(name, ours.get(name, ()), entry.shape, entry.dtype) for name, entry in entries.items()],
        n_bytes=sum(file.stat().st_size for file in {entry.file for entry in entries.values()}),
        family=checkpoint.family.name,
        architecture=checkpoint.architecture,
        tokenizer=tokenizer,
        usage=checkpoint.usage,
        licence=licence(folder),
        unread_keys=checkpoint.report.unread_keys + unknown_settings(checkpoint.files),
        unused_settings=_unused(checkpoint.files, checkpoint.usage, checkpoint.config),
        ignored=checkpoint.report.ignored,
    )


def _native(folder: Path) -> CheckpointInfo:
    described = native.describe(folder)
    entries = open_weights(folder).entries
    used = native.of_network(entries)
    expected = _network_shapes(described.config, len(entries))
    if expected != {name: entry.shape for name, entry in used.items()}:
        native.load(folder)  # says what does not fit
    native.warn_of_standing(folder)
    family, architecture = _origin(described, folder)
    tokenizer = load_tokenizer(folder)
    check_tokenizer(folder, tokenizer, described.config)
    return CheckpointInfo(
        path=folder,
        format="cutaway",
        config=described.config,
        stored=[
            StoredTensor(name, (name,) if name in used else (), entry.shape, entry.dtype)
            for name, entry in entries.items()
        ],
        n_bytes=sum(file.stat().st_size for file in {entry.file for entry in entries.values()}),
        family=family,
        architecture=architecture,
        tokenizer=tokenizer,
        usage=described.usage,
        unused_settings=_unused(described.foreign, described.usage, described.config),
        licence=licence(folder),
        ignored=[name for name in entries if name not in used],
    )


def _unused(files: Files | None, usage: Usage, config: Config) -> dict[str, str]:
    """What is asked of texts and not done, and what is asked and has no part in them."""
    if config.decoder is None:
        return {}
    return idle_settings(usage) | ({} if files is None else unused_settings(files))


def _origin(described: native.Description, folder: Path) -> tuple[str | None, str | None]:
    """The family that a model came from, and what it would be called there now."""
    if described.foreign is None or not isinstance(described.config, TransformerConfig):
        return None, None
    origin = huggingface.Origin(described.foreign, native.spare(folder))
    try:
        return origin.family.name, huggingface.describe(described.config, origin)[1]
    except CheckpointError:  # its head has been changed to one that the family lacks
        return origin.family.name, None


def _llama2c(file: Path) -> CheckpointInfo:
    header = llama2c.read_header(file)
    try:
        config = header.config
    except ConfigError as error:
        raise CheckpointError(f"{file}: {error}") from None
    shapes = _network_shapes(config, 10**9)
    return CheckpointInfo(
        path=file,
        format="llama2.c",
        config=config,
        stored=[StoredTensor(None, (name,), shape, torch.float32) for name, shape in shapes.items()],
        n_bytes=file.stat().st_size,
        family="Llama",
        tokenizer=llama2c.tokenizer_beside(file, header.vocabulary),
        licence=licence(file.parent),
    )


def _network_shapes(config: Config, n_tensors: int) -> dict[str, tuple[int, ...]]:
    network = on_meta_safely(config, n_tensors)
    tensors = dict(network.named_parameters()) | dict(network.named_buffers())
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def licence(folder: Path) -> str | None:
    """What README.md's front matter says, or else the first line of a licence's text."""
    for name in ("README.md", "LICENSE", "LICENSE.md", "LICENSE.txt"):
        lines = _lines(folder / name)
        found = (
            _front_matter(lines) if name == "README.md" else next((line.strip("# ") for line in lines if line), None)
        )
        if found:
            return found[:200]
    return None


def _front_matter(lines: list[str]) -> str | None:
    """`license: mit`, or a list of them; for `license: other`, the name that it has. Of YAML, that is all we read."""
    if not lines or lines[0] != "---" or "---" not in lines[1:]:
        return None
    block = lines[1 : lines.index("---", 1)]

    def values(key: str) -> list[str]:
        for number, line in enumerate(block):
            if line.startswith(f"{key}:"):
                rest = re.sub(r"(^|\s)#.*", "", line.partition(":")[2]).strip()
                if rest:
                    return [word.strip(" '\"") for word in rest.strip("[]").split(",")]
                listed = []
                for item in block[number + 1 :]:
                    if not item.lstrip().startswith("- "):
                        break
                    listed.append(item.lstrip()[2:].strip(" '\""))
                return listed
        return []

    found = values("license")
    return ", ".join(values("license_name") if found == ["other"] and values("license_name") else found) or None


def _lines(path: Path) -> list[str]:
    """Of the beginning of a text that anybody may have written."""
    try:
        with open_file(path) as file:
            text = file.read(65536).decode("utf-8-sig", errors="replace")
    except OSError:
        return []
    return ["".join(c for c in line.rstrip() if c.isprintable()) for line in text.splitlines()]
