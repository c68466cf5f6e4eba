"""`cutaway convert`: a model from one format to another."""

import json
import sys
import tempfile
from pathlib import Path
from typing import Literal, cast

from cutaway.checkpoint_info import facts
from cutaway.checkpoints.hub import fetch
from cutaway.checkpoints.unpickle import TRUST, find_pickles, unpickle
from cutaway.cli.info import FORMATS, headline
from cutaway.cli.models import short
from cutaway.cli.terminal import show
from cutaway.errors import CheckpointError
from cutaway.files import written_aside
from cutaway.loading import load
from cutaway.model import Format


def run(
    source: str,
    out: Path,
    to: Format | Literal["ctranslate2"] | None,
    dtype: str | None,
    from_pickle: bool,
    revision: str | None,
    as_json: bool,
) -> None:
    if to == "ctranslate2":
        if from_pickle:
            raise CheckpointError("--from-pickle writes Hugging Face's or cutaway's format; then convert that")
        _to_ctranslate2(source, out, dtype, revision, as_json)
        return
    if dtype == "int8":
        raise CheckpointError("--dtype int8 belongs to --to ctranslate2; the other formats keep floating-point numbers")
    if from_pickle:
        _from_pickle(source, out, to, dtype, revision)
    elif to is None:
        raise CheckpointError(
            "to which format? --to huggingface, --to cutaway or --to ctranslate2 (--from-pickle keeps Hugging Face's)"
        )
    else:
        load(source, dtype=dtype, device="cpu", revision=revision).save(out, format=to)
    written = facts(out)
    files = _files(out)
    if as_json:
        show(
            json.dumps(
                {
                    "folder": str(out),
                    "format": written.format,
                    "family": written.family,
                    "architecture": written.architecture,
                    "n_tensors": len(written.stored),
                    "dtypes": written.dtypes,
                    "bytes": sum(files.values()),
                    "files": files,
                },
                indent=2,
            )
        )
        return
    show(f"{out}: {FORMATS[written.format]} format, {len(written.stored)} tensors")
    show(headline(written))
    _list(files)


def _to_ctranslate2(source: str, out: Path, dtype: str | None, revision: str | None, as_json: bool) -> None:
    """The model as CTranslate2's own programs load it, and the tokenizer: token number 5 is called "5" there."""
    from cutaway.engines.ctranslate2_files import Stored, write

    stored: Stored = "float32" if dtype is None else cast(Stored, dtype)
    if out.resolve() == Path(source).expanduser().resolve():
        raise CheckpointError(f"{out} is the model itself, which would be lost; give another folder to write to")
    model = load(source, device="cpu", revision=revision)
    with written_aside(out, model.folder) as aside:
        write(model.network, model.usage, aside, stored)
        if model.tokenizer is not None:
            tokenizer = aside / "tokenizer"  # a folder of its own: both have a config or a vocabulary
            tokenizer.mkdir()
            model.tokenizer.save(tokenizer)
    files = _files(out)
    if as_json:
        facts = {"folder": str(out), "format": "ctranslate2", "dtype": stored, "bytes": sum(files.values())}
        show(json.dumps({**facts, "files": files}, indent=2))
        return
    show(f"{out}: CTranslate2's format, weights in {stored}; its tokens are called by their numbers")
    _list(files)


def _files(folder: Path) -> dict[str, int]:
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in paths}


def _list(files: dict[str, int]) -> None:
    for name, n_bytes in files.items():
        show(f"  {name:32} {short(n_bytes):>8}B")


def _from_pickle(source: str, out: Path, to: Format | None, dtype: str | None, revision: str | None) -> None:
    """Without a format or dtype, only the file changes: names and numbers stay."""
    here = Path(source).expanduser()
    path = here if here.exists() else fetch(source, revision=revision, pickles=True)
    files, _ = find_pickles(path)
    names = files[0].name if len(files) == 1 else f"{len(files)} shards"
    show(f"Reading {names} of {files[0].parent} with {TRUST}; only tensors are taken from it.", file=sys.stderr)
    if to is None and dtype is None:
        unpickle(path, out)
        return
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        place = tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent)
    except OSError as error:
        raise CheckpointError(f"can't write to {out.parent}: {error.strerror}") from None
    with place as beside:
        made = unpickle(path, Path(beside) / "model")
        load(made, dtype=dtype, device="cpu").save(out, format=to or "huggingface")
