"""The pooling of sentence-transformers: modules.json, and a folder for each module."""

import json
from pathlib import Path, PurePosixPath
from typing import Any

from cutaway.errors import CheckpointError
from cutaway.files import parse_json, read_json, read_whole
from cutaway.models.config import Pooling, SentenceVector

MODULES = "modules.json"
_POOLINGS: dict[str, Pooling] = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "first",
    "pooling_mode_lasttoken": "last",
}
_NAMES = {"mean": "mean", "cls": "first", "lasttoken": "last"}  # "pooling_mode", in newer files


def read_pooling(folder: Path) -> SentenceVector | None:
    """The head that modules.json describes; None if the folder has none."""
    path = folder / MODULES
    if not path.is_file():
        return None
    try:
        modules = parse_json(read_whole(path, 1_000_000))
        kinds = [(str(module["type"]).rpartition(".")[2], str(module["path"])) for module in modules]
    except (ValueError, TypeError, KeyError, OSError) as error:
        raise CheckpointError(f"{path} is not a list of modules with type and path ({error}); copy it again") from None
    head: SentenceVector | None = None
    for kind, place in kinds[1:]:
        if kind == "Pooling":
            head = SentenceVector(pooling=_pooling(folder, place))
        elif kind == "Normalize" and head is not None:
            head = SentenceVector(pooling=head.pooling, normalized=True)
        else:
            raise CheckpointError(f"{path}: cutaway knows Transformer, Pooling and Normalize, not {kind[:40]!r}")
    return head


def _pooling(folder: Path, place: str) -> Pooling:
    if PurePosixPath(place).name != place or place == ".." or "\\" in place:
        raise CheckpointError(f"{folder / MODULES} names the folder {place!r}; modules lie in the model's own folder")
    path = folder / place / "config.json"
    config = read_json(path)
    modes = {_POOLINGS.get(key, key) for key, value in config.items() if key.startswith("pooling_mode_") and value}
    if isinstance(config.get("pooling_mode"), str):
        modes = {_NAMES.get(config["pooling_mode"], config["pooling_mode"])}
    for known in ("mean", "first", "last"):
        if modes == {known}:
            return known
    raise CheckpointError(f"{path}: pooling by {', '.join(sorted(modes)) or 'nothing'}; cutaway knows mean, cls, last")


def write_pooling(head: SentenceVector, d_model: int, folder: Path) -> None:
    """The same, from a head."""
    kinds = ["Transformer", "Pooling"] + (["Normalize"] if head.normalized else [])
    modules = [
        {
            "idx": i,
            "name": str(i),
            "path": "" if i == 0 else f"{i}_{kind}",
            "type": f"sentence_transformers.models.{kind}",
        }
        for i, kind in enumerate(kinds)
    ]
    pooling: dict[str, Any] = {"word_embedding_dimension": d_model}
    pooling |= {key: pooled == head.pooling for key, pooled in _POOLINGS.items()}
    (folder / "1_Pooling").mkdir()
    _write(folder / "1_Pooling" / "config.json", pooling)
    _write(folder / MODULES, modules)


def _write(path: Path, data: Any) -> None:
    path.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
