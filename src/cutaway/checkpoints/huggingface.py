"""Folders as Hugging Face's transformers writes them: config.json and safetensors.

Opening reads the config and the headers of the weights, and finds out whether the two fit; loading then takes the
tensors, mapped from the file where their dtype stays. Saving is the same table read backwards.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from cutaway.checkpoints.assign import assign_weights, common_dtype, on_meta_safely, unwrap
from cutaway.checkpoints.families import BY_MODEL_TYPE, FAMILIES
from cutaway.checkpoints.family import Architecture, Family, FileTensors, is_bare
from cutaway.checkpoints.keys import RESOLVED, Keys
from cutaway.checkpoints.rules import ExpandedRule, NameMap, Operation
from cutaway.checkpoints.sentence import read_pooling, write_pooling
from cutaway.checkpoints.usage import Files, read_side_files, read_usage
from cutaway.checkpoints.weights import WEIGHTS, TensorToWrite, Weights, narrowed, open_weights, write_weights
from cutaway.checkpoints.weights import tensor_to_write as as_it_is
from cutaway.errors import CheckpointError, ConfigError, InputError, unknown
from cutaway.files import read_json
from cutaway.models.build import build
from cutaway.models.config import Head, SentenceVector, TransformerConfig
from cutaway.models.network import Network
from cutaway.models.usage import Usage

CONFIG = "config.json"
Saved = Literal["saved"]


@dataclass
class Report:
    """The differences of a checkpoint and the network: keys and tensors without a use, weights that begin anew."""

    unread_keys: list[str] = field(default_factory=list)  # of config.json: unknown to cutaway
    ignored: list[str] = field(default_factory=list)  # tensors left out: they say nothing, or belong to other heads
    fresh: list[str] = field(default_factory=list)  # our names of weights that begin anew: a head that was asked for
    spare: list[str] = field(default_factory=list)  # of those ignored, what was learnt, as the rules spell it


@dataclass(frozen=True)
class Checkpoint:
    """An opened folder: everything is known and fits; no weight has been read."""

    folder: Path
    family: Family
    architecture: str
    keys: dict[str, Any]  # config.json
    config: TransformerConfig
    weights: Weights
    sources: dict[str, ExpandedRule]  # name in the file -> what it becomes
    report: Report

    @property
    def dtype(self) -> torch.dtype:
        return common_dtype(self.weights[name].dtype for name in self.sources)

    @property
    def dtypes(self) -> dict[str, torch.dtype]:
        """Our names of the weights, and their dtypes in the file; empty if all have the same."""
        found = {ours: self.weights[name].dtype for name, pair in self.sources.items() for ours in pair.ours}
        return found if len(set(found.values())) > 1 else {}

    @property
    def origin(self) -> "Origin":
        place = {self.family.canonical(name): name for name in self.report.ignored}
        return Origin(self.files, {name: self.weights.tensor(place[name]) for name in self.report.spare})

    @property
    def files(self) -> Files:
        """config.json, and the JSON that lies beside it."""
        return {CONFIG: self.keys, **read_side_files(self.folder)}

    @property
    def usage(self) -> Usage:
        return read_usage(self.files, self.family, self.config, self.folder)

    def load(self, dtype: torch.dtype | None = None) -> Network:
        """The network; `dtype` None keeps what is stored, mapped from the file."""
        dtype = dtype or self.dtype
        found: dict[str, Tensor] = {}
        for name, pair in self.sources.items():
            theirs = self.weights.read(name) if pair.operation.copies else self.weights.tensor(name)
            made = pair.operation.load(theirs)
            found |= {ours: tensor.to(dtype) for ours, tensor in zip(pair.ours, made, strict=True)}
        if self.report.fresh:
            begun = dict(build(self.config).named_parameters())
            found |= {ours: begun[ours].detach().to(dtype) for ours in self.report.fresh}
        return assign_weights(on_meta_safely(self.config, len(found)), found)


def open_folder(folder: Path, head: Head | Saved | None = "saved") -> Checkpoint:
    """Reads config.json and the headers of the weights. `head`: not the folder's, but this one, which begins anew where
    the folder does not have it; None for the hidden states alone."""
    path = folder / CONFIG
    keys = Keys(read_json(path), str(path))
    keys.only("pruned_heads", {}, why="cutaway's attention has the same number of heads in every block")
    keys.only("quantization_config", why="cutaway reads float32, float16 and bfloat16 weights, not quantised ones")
    named = _family(keys) if "model_type" in keys.data else None  # before files are missed that would not help
    weights = open_weights(folder)
    try:
        family = named or _fitting_family(keys, weights)
        keys = family.spelled(keys)
        contents = _contents(family, weights)
        name, architecture = _architecture(keys, family, contents)
        chosen = (read_pooling(folder) or architecture.read(keys, contents)) if head == "saved" else head
        config = family.read(keys, contents, chosen)
    except (ConfigError, InputError) as error:
        raise CheckpointError(f"{path}: {error}") from None
    report = Report(unread_keys=keys.unread)
    sources = KeyMatch(folder, family.names(config), contents, weights, new_head=head != "saved").pairs(config, report)
    known = {"model_type": family.model_types[0]} | dict(keys.data)
    return Checkpoint(folder, family, name, known, config, weights, sources, report)


def _family(keys: Keys) -> Family:
    model_type = keys.get("model_type")
    if not isinstance(model_type, str) or model_type not in BY_MODEL_TYPE:
        code = "; it names code of its own, which cutaway never runs" if keys.get("auto_map") else ""
        found = unknown("model_type", str(model_type)[:80], BY_MODEL_TYPE, typed=False)
        raise CheckpointError(f"{keys.where}: {found}{code}")
    return BY_MODEL_TYPE[model_type]


def _fitting_family(keys: Keys, weights: Weights) -> Family:
    """The first whose weights have these names: config.json did not always name its family (until 2020)."""
    for family in FAMILIES:
        try:
            if _fitting(Keys(keys.data, keys.where), family, _contents(family, weights)):
                return family
        except CheckpointError:  # a key that this family would not take
            continue
    raise CheckpointError(f"{keys.where} has no model_type, and the weights fit none of {', '.join(BY_MODEL_TYPE)}")


def _contents(family: Family, weights: Weights) -> FileTensors:
    places: dict[str, str] = {}
    for name in weights:
        canonical = family.canonical(name)
        if canonical in places:
            raise CheckpointError(
                f"{weights[name].file} holds both {places[canonical]} and {name}, two spellings of one tensor"
            )
        places[canonical] = name

    def differ(a: str, b: str) -> bool:
        return not torch.equal(weights.tensor(places[a]), weights.tensor(places[b]))

    return FileTensors(places, differ)


def _architecture(keys: Keys, family: Family, contents: FileTensors) -> tuple[str, Architecture]:
    """The architecture that config.json names, or else the first that lacks no tensor and leaves fewest over."""
    given = keys.get("architectures")
    if given:
        if not isinstance(given, list) or not isinstance(given[0], str):
            raise keys.wrong("architectures", given, "a list of names")
        if given[0] not in family.architectures:
            kind = f"{family.name} architecture"
            raise CheckpointError(f"{keys.where}: {unknown(kind, given[0][:80], family.architectures, typed=False)}")
        return given[0], family.architectures[given[0]]
    fitting = _fitting(keys, family, contents)
    if not fitting:
        raise CheckpointError(f"{keys.where} names no architecture, and the weights fit none of {family.name}'s")
    name = max(fitting, key=lambda name: fitting[name])  # of equals, the first
    return name, family.architectures[name]


def _fitting(keys: Keys, family: Family, contents: FileTensors) -> dict[str, int]:
    """The architectures that lack no tensor, and how many of the file's each takes."""
    fitting: dict[str, int] = {}
    for name, architecture in family.architectures.items():
        try:
            config = family.read(keys, contents, architecture.read(keys, contents))
        except ConfigError:  # such a head on such a body: not this one
            continue
        if not any(name in contents for name in family.names(config).of_block(0)):
            continue  # known without an outline of the network, which takes longer
        pairs = family.names(config).pairs(_meta_tensors(config, len(contents.places), keys.where))
        if architecture.fits(config) and all(pair.theirs in contents for pair in pairs):
            fitting[name] = len(pairs)
    return fitting


def _meta_tensors(config: TransformerConfig, n_tensors: int, where: object = "the config") -> dict[str, Tensor]:
    """Every tensor of the network, on the meta device: a shape without numbers."""
    return dict(on_meta_safely(config, n_tensors, where).named_parameters())


@dataclass(frozen=True)
class KeyMatch:
    """The comparison of a file's tensors with a config; all differences go into one message."""

    folder: Path
    names: NameMap
    contents: FileTensors
    weights: Weights
    new_head: bool  # a head is asked for that the folder may not have

    def pairs(self, config: TransformerConfig, report: Report) -> dict[str, ExpandedRule]:
        wanted = _meta_tensors(config, len(self.weights), self.folder / CONFIG)
        sources: dict[str, ExpandedRule] = {}
        wrong: list[str] = []
        used: set[str] = set()
        for pair in self.names.pairs(wanted):
            theirs = self._found(pair.theirs)
            if theirs is not None:
                used.add(theirs)
                sources[self.contents.places[theirs]] = pair
                expected = tuple(pair.operation.save(tuple(wanted[name] for name in pair.ours)).shape)
                misfits = self._misfits(self.contents.places[theirs], expected, pair)
                if misfits and self.new_head and _is_head(pair):  # another number of classes: this begins anew
                    report.fresh.extend(pair.ours)
                    report.ignored.append(self.contents.places[theirs])
                    del sources[self.contents.places[theirs]]
                else:
                    wrong += misfits
            elif self.new_head and _is_head(pair):
                report.fresh.extend(pair.ours)
            else:
                wrong.append(f"{pair.theirs} is missing (our {', '.join(pair.ours)})")
        for name in self.contents.places:
            if name not in used:
                wrong += self._left_over(name, report)
        if wrong:
            more = f"; and {len(wrong) - 8} more" if len(wrong) > 8 else ""
            raise CheckpointError(f"{self.folder}: the weights do not fit {CONFIG}: {'; '.join(wrong[:8])}{more}")
        return sources

    def _found(self, theirs: str) -> str | None:
        """The tensor, or one that repeats it."""
        copies = [copy for copy, original in self.names.copies.items() if original == theirs]
        return next((name for name in (theirs, *copies) if name in self.contents), None)

    def _misfits(self, name: str, expected: tuple[int, ...], pair: ExpandedRule) -> list[str]:
        entry = self.weights[name]
        if entry.shape != expected:
            ours = ", ".join(pair.ours)
            return [f"{name} has shape {list(entry.shape)}, expected {list(expected)} (our {ours})"]
        return [] if entry.dtype.is_floating_point else [f"{name} holds {entry.dtype}, not floating-point numbers"]

    def _left_over(self, name: str, report: Report) -> list[str]:
        if self.names.is_unread(name) or (self.new_head and name in self.names.head_names):
            report.ignored.append(self.contents.places[name])
            if self.names.is_spare(name) and not self.new_head:
                report.spare.append(name)
            return []
        original = self.names.copies.get(name)
        if original is not None and original in self.contents:
            differs = self.contents.differ(name, original)
            return [f"{name} differs from {original}, which it should repeat"] if differs else []
        return [f"{self.contents.places[name]} is not part of this model"]


def _is_head(pair: ExpandedRule) -> bool:
    return all(name.startswith("head.") for name in pair.ours)


@dataclass(frozen=True)
class Origin:
    """Where a network came from: its config.json and what lay beside it, and the tensors of its file that the network
    has no use for, as the rules spell them; so that saving gives them back whole."""

    files: Files
    spare: Mapping[str, Tensor] = field(default_factory=dict, compare=False)

    @property
    def keys(self) -> Mapping[str, Any]:
        return self.files[CONFIG]

    @property
    def family(self) -> Family:
        return _family(Keys(self.keys, "the config.json this model came from"))

    @property
    def architecture(self) -> str | None:
        """The name in config.json; None if it has none."""
        match self.keys.get("architectures"):
            case [str(name), *_]:
                return name
        return None

    def to(self, dtype: torch.dtype) -> "Origin":
        """With its tensors in another dtype."""
        return replace(self, spare={name: tensor.to(dtype) for name, tensor in self.spare.items()})


def write(
    network: Network,
    folder: Path,
    origin: Origin | None = None,
    usage: Mapping[str, Any] | None = None,
    dtypes: Mapping[str, torch.dtype] | None = None,
) -> None:
    """config.json and model.safetensors into an empty folder, as transformers reads them; `usage` are further keys.

    `dtypes`: of weights that came in another dtype than most, by our names; they go out in it if it holds them.
    """
    network = unwrap(network)
    if not isinstance(network.config, TransformerConfig):
        raise CheckpointError("Hugging Face has no recurrent encoder-decoders; save this model as cutaway's own")
    family, architecture, keys = describe(network.config, origin)
    names = family.names(network.config)
    prefix = family.prefix(architecture)
    tensors = dict(network.named_parameters())
    outgoing: dict[str, TensorToWrite] = {}
    with torch.no_grad():
        for pair in names.pairs(tensors):
            ours = tuple(tensors[name] for name in pair.ours)
            shape = pair.operation.save(tuple(tensor.to("meta") for tensor in ours)).shape
            name = pair.theirs if pair.in_head else prefix + pair.theirs
            dtype = narrowed(ours, None if dtypes is None else dtypes.get(pair.ours[0]))
            outgoing[name] = TensorToWrite(dtype, tuple(shape), partial(_saved, pair.operation, ours, dtype))
        for theirs, tensor in {} if origin is None else origin.spare.items():
            if not names.is_spare(theirs):
                raise CheckpointError(
                    f"this model came with {theirs[:80]}, which no {family.name} model of Hugging Face has; it can't "
                    f"be written for transformers"
                )
            outgoing.setdefault(theirs if names.has_in_head(theirs) else prefix + theirs, as_it_is(tensor))
        write_weights(folder / WEIGHTS, outgoing)
    if not dtypes or keys.get("dtype") is None:  # of several dtypes, the config names what its maker chose
        keys["dtype"] = str(next(iter(tensors.values())).dtype).removeprefix("torch.")
    keys |= dict(usage or {}) | {"architectures": [architecture]}
    (folder / CONFIG).write_text(json.dumps(keys, indent=2) + "\n", encoding="utf-8")
    head = network.config.head
    if isinstance(head, SentenceVector) and is_bare(head):
        write_pooling(head, network.config.last.d_model, folder)


def _saved(operation: Operation, ours: tuple[Tensor, ...], dtype: torch.dtype) -> Tensor:
    return operation.save(ours).to(dtype)


def describe(config: TransformerConfig, origin: Origin | None = None) -> tuple[Family, str, dict[str, Any]]:
    """The family that can hold a config, the architecture's name, and the keys of config.json: those of the origin as
    long as they describe the network."""
    reasons: list[tuple[int, str]] = []
    for family in FAMILIES if origin is None else (origin.family,):
        known = {} if origin is None else dict(origin.keys)
        try:
            written = family.write(config)
            model_type = written.pop("model_type", known.get("model_type", family.model_types[0]))
            named, spare = (None, ()) if origin is None else (origin.architecture, origin.spare)
            architecture = family.architecture(config, model_type, named, spare)
            if architecture is None:
                continue
            contents = _written(family, config)
            kept = bool(known) and not _lost(family, architecture, known, contents, config)
            keys = known | ({} if kept else written) | {"model_type": model_type}
            if "tie_word_embeddings" in written:  # the file decides here, and the config elsewhere
                keys["tie_word_embeddings"] = written["tie_word_embeddings"]
            lost = [] if kept else _lost(family, architecture, keys, contents, config)
        except (CheckpointError, ConfigError, InputError) as error:
            reasons.append((99, f"{family.name}: {error}"))
            continue
        if not lost:
            return family, architecture, keys
        reasons.append((len(lost), f"{family.name} can't say {', '.join(lost[:4])}"))
    nearest = min(reasons, default=(0, "none has such a head"))[1]
    raise CheckpointError(f"no family of Hugging Face can hold this model; the nearest: {nearest}")


def _written(family: Family, config: TransformerConfig) -> FileTensors:
    """The tensors that a file of such a network will hold."""
    places = {pair.theirs: pair.theirs for pair in family.names(config).pairs(_meta_tensors(config, 10**9))}
    return FileTensors(places, lambda *_: True)


def _lost(
    family: Family, architecture: str, keys: Mapping[str, Any], contents: FileTensors, config: TransformerConfig
) -> list[str]:
    """The fields of a config that the keys of a config.json would not give back."""
    head = config.head if is_bare(config.head) else family.architectures[architecture].read(Keys(keys), contents)
    return differences(config, family.read(Keys(keys), contents, head))


def differences(ours: Any, theirs: Any, where: str = "") -> list[str]:
    """The fields in which two configs differ and that change numbers: all but first weights and dropout."""
    if not is_dataclass(ours) or type(ours) is not type(theirs):
        return [] if ours == theirs else [f"{where}={ours}"]
    found: list[str] = []
    for item in fields(ours):
        if item.name != "initialization" and not item.name.endswith("dropout"):
            name = RESOLVED.get(item.name, item.name)
            place = f"{where}.{item.name}".lstrip(".")
            found += differences(getattr(ours, name), getattr(theirs, name), place)
    return found
