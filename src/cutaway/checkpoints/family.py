"""A family of checkpoints: how its config reads, how its weights are named, and which heads it has."""

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from typing import Any

from cutaway.checkpoints.keys import Keys
from cutaway.checkpoints.rules import NameMap
from cutaway.models.config import Classifier, Head, SentenceVector, TransformerConfig


@dataclass(frozen=True)
class FileTensors:
    """The tensors of a file, by the names that a family's rules use. Questions that only the file answers."""

    places: Mapping[str, str]  # the rules' name -> the name in the file
    differ: Callable[[str, str], bool]  # whether two tensors hold different numbers

    def __contains__(self, name: str) -> bool:
        return name in self.places

    def tied(self, head: str, *tables: str) -> bool:
        """Whether a head repeats the embedding: it is absent, or equal. Whatever a config says, the file decides."""
        table = next((table for table in tables if table in self.places), None)
        return head not in self.places or (table is not None and not self.differ(head, table))


ReadHead = Callable[[Keys, FileTensors], Head | None]


@dataclass(frozen=True)
class Architecture:
    """A name in a config.json's "architectures": the head it means, and how that reads.

    `bare`: it may also have no head, or one without weights of its own, as sentence vectors that are a plain mean.
    `fits`: whether it has the halves of a config. `prefix`: what it puts before the names of the body, if that is not
    what the rest of its family does. `spare`: tensors of it that no head of ours reads; without them it is not saved.
    """

    head: type[Head] | None
    read: ReadHead
    bare: bool = False
    fits: Callable[[TransformerConfig], bool] = lambda _: True
    prefix: str | None = None
    spare: tuple[str, ...] = ()


BODY = Architecture(None, lambda *_: None, bare=True)


@dataclass(frozen=True)
class Family:
    """One family, as data and a few short functions.

    `read` gives the config that a config.json describes, with the head of one of `architectures`; `write` gives the
    keys that describe a config. Reading what was written gives the config back, or the family can't hold it.
    `architectures` are in the order of guessing, for a config.json that names none. `prefixes` stand before the names
    of the body in files that also have a head; `renamed` are endings that older files spell otherwise,
    `aliases` other names of keys, which transformers takes too.
    """

    name: str
    model_types: tuple[str, ...]
    architectures: Mapping[str, Architecture]
    read: Callable[[Keys, FileTensors, Head | None], TransformerConfig]
    write: Callable[[TransformerConfig], dict[str, Any]]
    names: Callable[[TransformerConfig], NameMap]
    prefixes: tuple[str, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    writes_pad: bool = True  # MarianMT must be kept from it
    task: str | None = None  # what all its models are for; None: there are several

    def spelled(self, keys: Keys) -> Keys:
        """A config.json with the names of keys that this family reads."""
        more = {name: keys.data[other] for other, name in self.aliases.items() if other in keys.data}
        known = Keys({**more, **keys.data}, keys.where)
        known.ignore(*keys.used, *self.aliases)
        return known

    def canonical(self, name: str) -> str:
        """A name in a file, as the rules spell it."""
        prefix = next((prefix for prefix in self.prefixes if name.startswith(prefix)), "")
        name = name.removeprefix(prefix)
        for old, new in self.renamed.items():
            if name.endswith(old):
                return name.removesuffix(old) + new
        return name

    def prefix(self, architecture: str) -> str:
        """The prefix of the body's names when this architecture is saved."""
        made = self.architectures[architecture]
        return "" if made.bare or not self.prefixes else made.prefix or self.prefixes[0]

    def architecture(
        self, config: TransformerConfig, model_type: str, named: str | None = None, spare: Container[str] = ()
    ) -> str | None:
        """The name under which this family saves such a network; None if it has none. What was `named` otherwise stays
        so, if all that it has beyond our network is there (`spare`)."""
        kind = None if config.head is None else type(config.head)
        found = [
            name
            for name, architecture in self.architectures.items()
            if (architecture.head is kind or (architecture.bare and is_bare(config.head)))
            and architecture.fits(config)
            and name.lower().startswith(model_type)
            and all(tensor in spare for tensor in architecture.spare)
        ]
        if named in found and self.architectures[named].spare:
            return named
        return next(iter(found), None)


def is_bare(head: Head | None) -> bool:
    """Whether a head has no weights."""
    return head is None or (isinstance(head, SentenceVector) and head.hidden is None)


def n_classes(keys: Keys) -> int:
    """The number of a classifier's classes. Old files give num_labels, beside two names that mean nothing."""
    labels = keys.get("id2label")
    if labels is None or keys.get("num_labels") is not None:
        return keys.count("num_labels", 2)
    if not isinstance(labels, Mapping) or not labels:
        raise keys.wrong("id2label", labels, "an object from class numbers to names")
    return len(labels)


def class_keys(config: TransformerConfig) -> dict[str, Any]:
    """The keys that say how many classes there are; their names, if they have any, are in a model's usage."""
    if not isinstance(config.head, Classifier):
        return {}
    names = {i: f"LABEL_{i}" for i in range(config.head.n_classes)}
    return {"id2label": names, "label2id": {name: i for i, name in names.items()}}
