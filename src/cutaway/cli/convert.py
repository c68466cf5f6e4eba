"""`cutaway convert`: a model from one format to another."""

import json
import sys
import tempfile
from pathlib import Path

from cutaway.checkpoints.hub import fetch
from cutaway.checkpoints.unpickle import TRUST, find_pickles, unpickle
from cutaway.cli.info import FORMATS, headline
from cutaway.cli.models import short
from cutaway.errors import CheckpointError
from cutaway.facts import facts
from cutaway.loading import load
from cutaway.model import Format


def run(
    source: str, out: Path, to: Format | None, dtype: str | None, from_pickle: bool, revision: str | None, as_json: bool
) -> None:  # fmt: skip
    if from_pickle:
        _from_pickle(source, out, to, dtype, revision)
    elif to is None:
        raise CheckpointError("to which format? --to huggingface or --to cutaway (--from-pickle keeps Hugging Face's)")
    else:
        load(source, dtype=dtype, revision=revision).save(out, format=to)
    written = facts(out)
    files = {path.relative_to(out).as_posix(): path.stat().st_size for path in sorted(out.rglob("*")) if path.is_file()}
    if as_json:
        print(
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
    print(f"{out}: {FORMATS[written.format]} format, {len(written.stored)} tensors")
    print(headline(written))
    for name, n_bytes in files.items():
        print(f"  {name:32} {short(n_bytes):>8}B")


def _from_pickle(source: str, out: Path, to: Format | None, dtype: str | None, revision: str | None) -> None:
    """Without a format or dtype, only the file changes: names and numbers stay."""
    here = Path(source).expanduser()
    path = here if here.exists() else fetch(source, revision=revision, pickles=True)
    files, _ = find_pickles(path)
    names = files[0].name if len(files) == 1 else f"{len(files)} shards"
    print(f"Reading {names} of {files[0].parent} with {TRUST}; only tensors are taken from it.", file=sys.stderr)
    if to is None and dtype is None:
        unpickle(path, out)
        return
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        place = tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent)
    except OSError as error:
        raise CheckpointError(f"can't write to {out.parent}: {error.strerror}") from None
    with place as beside:
        load(unpickle(path, Path(beside) / "model"), dtype=dtype).save(out, format=to or "huggingface")
