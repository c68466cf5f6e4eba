"""Models by name from the Hugging Face hub: only the files they need, pickles only on request, never code."""

import logging
import re
from fnmatch import fnmatchcase
from pathlib import Path

from cutaway.checkpoints.weights import INDEX, WEIGHTS
from cutaway.errors import CheckpointError
from cutaway.files import read_json
from cutaway.models.config import StackConfig
from cutaway.models.presets import PRESETS, preset

CONFIG = "config.json"
PICKLE, PICKLE_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
NUMBER = "[0-9]" * 5
SHARD, PICKLE_SHARD = f"model-{NUMBER}-of-{NUMBER}.safetensors", f"pytorch_model-{NUMBER}-of-{NUMBER}.bin"

SMALL = (
    CONFIG, "generation_config.json", "preprocessor_config.json", "sentence_bert_config.json", "modules.json",
    "[0-9]_Pooling/config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "chat_template.jinja", "vocab.txt", "vocab.json", "merges.txt", "spiece.model",
    "tokenizer.model", "sentencepiece.model",
    "source.spm", "target.spm", "target_vocab.json", "README.md", "LICENSE", "LICENSE.md", "LICENSE.txt",
)  # fmt: skip
"""A model's files beside its weights, as patterns; no other file is ever asked for."""

OWNERS = {
    **dict.fromkeys(("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"), "openai-community"),
    **dict.fromkeys(("t5-small", "t5-base", "t5-large"), "google-t5"),
}
"""Presets whose names were models of the hub before those needed an owner -> the owner today."""

_PART = r"[A-Za-z0-9_](?:[\w.-]{0,94}\w)?"
_NAME = re.compile(rf"{_PART}(?:/{_PART})?", re.ASCII)
_REVISION = re.compile(r"\w[\w.+-]*(?:/\w[\w.+-]*)*", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_LARGEST_INDEX = 100_000_000
UNREACHABLE = "the hub can't be reached"

log = logging.getLogger("cutaway")


def is_small(name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in SMALL)


def wanted(files: list[str], pickles: bool = False) -> list[str]:
    """The files of a repository that make the model: the small ones, then the weights, in one file or in shards."""
    whole, index, shard = (PICKLE, PICKLE_INDEX, PICKLE_SHARD) if pickles else (WEIGHTS, INDEX, SHARD)
    small = [name for name in files if is_small(name)]
    if whole in files:
        return [*small, whole]
    shards = sorted(name for name in files if fnmatchcase(name, shard))
    return [*small, index, *shards] if index in files and shards else small


def fetch(name: str, *, revision: str | None = None, offline: bool = False, pickles: bool = False) -> Path:
    """The folder of a model of the hub: the newest of `revision`, or what was fetched before if there is no hub.

    `offline` (or HF_HUB_OFFLINE): look at what was fetched before, and nowhere else. `pickles`: its weights as .bin
    files, for `cutaway convert --from-pickle`.
    """
    _check(name, revision)
    from huggingface_hub import constants

    offline = offline or constants.HF_HUB_OFFLINE or (name in PRESETS and name not in OWNERS)  # it has no such name
    what = f"{name} at revision {revision}" if revision else name
    fixed = revision is not None and _COMMIT.fullmatch(revision) is not None  # a commit never changes: no need to ask
    folder = _cached(name, revision, pickles) if offline or fixed else None
    if folder is not None:
        return folder
    if offline and name in PRESETS:
        raise CheckpointError(_not_trained(name))
    if offline:
        raise CheckpointError(
            f"there is no folder {name!r}, and {what} is not (or not wholly) in the cache; "
            f"connect, and fetch it: cutaway get {name}"
        )
    try:
        return _download(name, revision, what, pickles)
    except CheckpointError:
        raise
    except Exception as error:  # its HTTP client's, its storage's and the disk's errors have no common class
        if refusal := _refusal(error, name, revision):
            raise CheckpointError(_not_trained(name) if name in PRESETS else refusal) from None
        trouble = _trouble(error)
    folder = _cached(name, revision, pickles)
    if folder is None and name in PRESETS:
        raise CheckpointError(f"{trouble}, and {_not_trained(name)}")
    if folder is None and trouble == UNREACHABLE:
        raise CheckpointError(
            f"there is no folder {name!r}, and {trouble} to fetch {what}; name a folder, or connect, and fetch it: "
            f"cutaway get {name}"
        )
    if folder is None:
        raise CheckpointError(f"there is no folder {name!r}, and {what} can't be fetched: {trouble}")
    log.warning("%s; using the copy of %s in the cache", trouble, what)
    return folder


def _not_trained(name: str) -> str:
    """An error for the name of a preset in place of a model's: what a preset is, and how to make a model of it."""
    config = preset(name)
    stack = config.encoder or config.decoder
    if isinstance(stack, StackConfig) and stack.patches is not None:
        way = f'build it in Python with cutaway.build("{name}")'
    else:
        task = "translate --source FILE --target FILE"
        if config.encoder is None or config.decoder is None:
            task = "complete --text FILE" if config.encoder is None else "classify --pairs FILE"
        way = f"train one with `cutaway train {task} --preset {name} --out FOLDER`"
    known = f"; trained weights of that size are {OWNERS[name]}/{name} on the hub" if name in OWNERS else ""
    return (
        f"{name} is a preset here, an architecture without weights: {way}, or see its sizes with `cutaway models "
        f"{name}`{known}"
    )


def _check(name: str, revision: str | None) -> None:
    """Name and revision become parts of paths in the cache, which they must not leave."""
    if not _NAME.fullmatch(name) or ".." in name or "--" in name or name.endswith(".git"):
        raise CheckpointError(f"there is no folder {name!r}, and names on the hub look like owner/name")
    if revision is not None and not _REVISION.fullmatch(revision):
        raise CheckpointError(f"{revision!r} can't be a revision; it is a branch, a tag or a commit of {name}")


def _download(name: str, revision: str | None, what: str, pickles: bool) -> Path:
    from huggingface_hub import HfApi, constants, hf_hub_download

    info = HfApi().model_info(name, revision=revision, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    files = [sibling.rfilename for sibling in info.siblings or ()]
    chosen = wanted(files, pickles)
    if CONFIG not in chosen:
        raise CheckpointError(f"{what} on the hub has no {CONFIG}: it is not a model that cutaway can read")
    if is_small(chosen[-1]):
        has_pickles = not pickles and len(wanted(files, pickles=True)) > len(chosen)
        hint = f"; it has pickles, to be converted once: cutaway convert --from-pickle {name} NEW-FOLDER"
        kind = f"{PICKLE}, nor shards of it" if pickles else f"safetensors{hint if has_pickles else ''}"
        raise CheckpointError(f"{what} on the hub has no {kind}")
    # By its name, the revision is noted in the cache; all other files are of the very commit that was listed. The
    # weights come last: a folder that has them is a whole one.
    folder = Path(hf_hub_download(name, CONFIG, revision=revision)).parent
    if info.sha is not None and folder.name != info.sha:
        raise CheckpointError(f"{what} on the hub has just been changed; try again")
    for file in chosen:
        hf_hub_download(name, file, revision=folder.name)
    return folder


def _cached(name: str, revision: str | None, pickles: bool) -> Path | None:
    """The folder in the cache, if all of the model's weights are there."""
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(name, CONFIG, revision=revision)
    if not isinstance(config, str):
        return None
    folder = Path(config).parent
    whole, index = (PICKLE, PICKLE_INDEX) if pickles else (WEIGHTS, INDEX)
    if (folder / whole).is_file():
        return folder
    if not (folder / index).is_file():
        return None
    places = read_json(folder / index, _LARGEST_INDEX).get("weight_map")
    shards = set(map(str, places.values())) if isinstance(places, dict) else set()
    return folder if all((folder / shard).is_file() for shard in shards) else None


def _refusal(error: Exception, name: str, revision: str | None) -> str | None:
    """The hub's refusal as a sentence."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    if isinstance(error, GatedRepoError):
        return f"{name} is gated: accept its terms on the hub, then log in with `hf auth login`"
    if isinstance(error, RepositoryNotFoundError):
        return f"there is no folder {name!r} and no such model on the hub (or it is private: `hf auth login`)"
    if isinstance(error, RevisionNotFoundError):
        return f"{name} on the hub has no revision {revision or 'main'!r}"
    return None


def _trouble(error: BaseException) -> str:
    """The reason for a failed request, in words."""
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    if isinstance(error, LocalEntryNotFoundError) and error.__cause__ is not None:
        error = error.__cause__
    kinds = [kind.__name__ for kind in type(error).__mro__]  # of httpx or httpx2, as huggingface_hub's version has it
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [kinds[0]]
    if any("Timeout" in kind for kind in kinds):
        return "the hub did not answer in time"
    if isinstance(error, HfHubHTTPError):
        return f"the hub answered with error {error.response.status_code}"
    if "TransportError" in kinds:
        return UNREACHABLE
    if isinstance(error, OSError) and error.errno is not None:
        return f"it can't be written to the cache ({error.strerror})"
    return f"the hub's answer can't be used ({kinds[0]}: {lines[0]})"
