"""Rows of Hugging Face data sets, streamed on demand; no code of theirs runs.

`datasets` reads them, from version 4 on without loading scripts.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any

from cutaway.data.files import file_digest
from cutaway.data.rows import BadRow, TextRow, find_columns, names_of, record_row, validated
from cutaway.errors import InputError, unknown

PREFIX = "hf:"


@dataclass(frozen=True)
class DataSet:
    """`hf:owner/name`, `hf:owner/name:config:split`, or a folder in the place of owner/name."""

    name: str
    config: str | None
    split: str

    @classmethod
    def parse(cls, text: str) -> "DataSet":
        """An empty config is the data set's own default, and an empty split is `train`."""
        parts = text.removeprefix(PREFIX).split(":")
        if len(parts) not in (1, 3) or not parts[0]:
            raise InputError(
                f"{text!r} names no data set: write hf:owner/name, hf:owner/name:config:split, or hf:owner/name::split"
            )
        name, config, split = parts if len(parts) == 3 else (parts[0], "", "")
        if name.startswith((".", "/", "~")) and not Path(name).is_dir():
            raise InputError(f"there is no folder {name!r}, and names on the hub look like owner/name")
        return cls(name, config or None, split or "train")


def hub_rows(text: str, columns: tuple[str, ...] | None) -> Iterator[TextRow | BadRow]:
    """The rows of a data set; errors of the library, the network and the names are InputErrors of one sentence."""
    return validated(_rows(DataSet.parse(text), text, columns), text)


def hub_digest(text: str) -> bytes:
    """A digest of the content: of the commit on the hub, or of the files of a folder."""
    which = DataSet.parse(text)
    digest = hashlib.sha256(repr((which.config, which.split)).encode())
    folder = Path(which.name)
    if folder.is_dir():
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            digest.update(f"\n{path.relative_to(folder)} ".encode())
            digest.update(file_digest(path))
        return digest.digest()
    library = _library(text)
    _check_reachable(library, text)
    try:
        commit = library.load_dataset_builder(which.name, which.config).hash
    except Exception as error:
        raise InputError(_sentence(text, error)) from None
    digest.update(f"{which.name} {commit}".encode())
    return digest.digest()


def _rows(which: DataSet, text: str, columns: tuple[str, ...] | None) -> Iterator[TextRow | BadRow]:
    library = _library(text)
    if not Path(which.name).is_dir():
        _check_reachable(library, text)
    try:
        data = _load(library, which)
        if data.features is not None:
            columns = _checked(columns, _example(data.features), text)
            data = data.select_columns(sorted({_outer(name, data.features) for name in columns}))
        records = iter(data)
        first = next(records, None)
        if first is None:
            return
        columns = columns or _checked(columns, first, text)
        for number, record in enumerate(chain([first], records), start=1):
            yield record_row(record, columns, f"{text}:{number}")
    except InputError:
        raise
    except Exception as error:  # the library's, its HTTP client's and its readers' errors have no common class
        raise InputError(_sentence(text, error)) from None


def _load(library: ModuleType, which: DataSet) -> Any:
    folder = Path(which.name)
    if not (folder / "state.json").is_file():
        return library.load_dataset(which.name, which.config, split=which.split, streaming=True)
    data = library.load_from_disk(str(folder))  # by save_to_disk, whose one split load_dataset does not take
    if which.config or which.split not in ("train", str(data.split)):
        raise InputError(f"{folder} is one data set without configs and splits; write hf:{folder}")
    return data.to_iterable_dataset()


def _checked(columns: tuple[str, ...] | None, example: Mapping[str, Any], text: str) -> tuple[str, ...]:
    known = names_of(example)
    for name in columns or ():
        if name not in known:
            raise InputError(f"{text}: {unknown('column', name, known)}")
    return columns or find_columns(example, text)


def _outer(name: str, features: Mapping[str, Any]) -> str:
    return name if name in features else name.partition(".")[0]


def _example(features: Mapping[str, Any]) -> dict[str, Any]:
    """An example row: a text is "", nested features are dictionaries, all others None."""
    example: dict[str, Any] = {}
    for name, feature in features.items():
        if isinstance(feature, Mapping):
            example[name] = _example(feature)
        elif hasattr(feature, "languages"):  # a Translation
            example[name] = dict.fromkeys(feature.languages, "")
        else:
            example[name] = "" if "string" in str(getattr(feature, "dtype", "")) else None
    return example


def _library(text: str) -> ModuleType:
    try:
        import datasets
    except ImportError:
        raise InputError(f"{text} is read with the datasets library: pip install 'cutaway[data]'") from None
    return datasets


def _check_reachable(library: ModuleType, text: str) -> None:
    """Tries to reach the hub once: the library would retry for half a minute, and log every attempt."""
    if library.config.HF_HUB_OFFLINE:
        return  # the library does not try
    from huggingface_hub import HfApi, constants

    try:
        HfApi().dataset_info(DataSet.parse(text).name, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    except Exception as error:  # other errors are the library's to raise
        if any(kind.__name__ == "ConnectError" for kind in type(error).__mro__):  # of httpx or httpx2
            raise InputError(_unreachable(text)) from None


def _unreachable(text: str) -> str:
    return f"{text} can't be read: the hub can't be reached; connect, or give files of it with --pairs"


def _sentence(text: str, error: Exception) -> str:
    reason = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, ConnectionError) or "Offline" in type(error).__name__:
        return _unreachable(text)
    return f"{text} can't be read ({reason[:300]}); write it as hf:owner/name or hf:owner/name:config:split"
