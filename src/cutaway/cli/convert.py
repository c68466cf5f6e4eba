"""`cutaway convert`: a model from one format to another."""

import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from cutaway.cli.options import Json, ModelArgument, Revision
from cutaway.cli.terminal import show
from cutaway.errors import CheckpointError

if TYPE_CHECKING:
    from cutaway.model import Format


def convert(
    source: ModelArgument,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder to write.")],
    to: Annotated[
        Literal["huggingface", "cutaway", "ctranslate2"] | None, typer.Option(help="The format of OUT.")
    ] = None,
    dtype: Annotated[
        Literal["float32", "float16", "bfloat16", "int8"] | None,
        typer.Option(help="Of the weights; as stored by default. For CTranslate2 float32 by default, or int8."),
    ] = None,
    from_pickle: Annotated[
        bool, typer.Option("--from-pickle", help="Read pytorch_model.bin (or a .pt file), in a process of its own.")
    ] = False,
    revision: Revision = None,
    as_json: Json = False,
) -> None:
    """Write a model in another format: Hugging Face's, cutaway's own, CTranslate2's, or safetensors, not a pickle."""
    if to == "ctranslate2":
        if from_pickle:
            raise CheckpointError("--from-pickle writes Hugging Face's or cutaway's format; then convert that")
        _to_ctranslate2(source, out, dtype, revision, as_json)
        return
    if dtype == "int8":
        raise CheckpointError("--dtype int8 belongs to --to ctranslate2; the other formats keep floating-point numbers")
    from cutaway.checkpoint_info import read_info
    from cutaway.cli.display.checkpoint import FORMATS, headline
    from cutaway.loading import load

    if from_pickle:
        _from_pickle(source, out, to, dtype, revision)
    elif to is None:
        raise CheckpointError(
            "--to is missing: name a format, huggingface, cutaway or ctranslate2 (--from-pickle keeps Hugging Face's)"
        )
    else:
        load(source, dtype=dtype, device="cpu", revision=revision).save(out, format=to)
    written = read_info(out)
    record = {
        "folder": str(out),
        "format": written.format,
        "family": written.family,
        "architecture": written.architecture,
        "n_tensors": len(written.stored),
        "dtypes": written.dtypes,
    }
    told = f"{out}: {FORMATS[written.format]} format, {len(written.stored)} tensors\n{headline(written)}"
    _print_written(out, record, told, as_json)


def _to_ctranslate2(source: str, out: Path, dtype: str | None, revision: str | None, as_json: bool) -> None:
    """The model as CTranslate2's own programs load it, and the tokenizer: token number 5 is called "5" there."""
    from cutaway.engines.ctranslate2_files import Stored, write
    from cutaway.files import atomic_folder
    from cutaway.loading import load

    stored: Stored = "float32" if dtype is None else cast(Stored, dtype)
    if out.resolve() == Path(source).expanduser().resolve():
        raise CheckpointError(f"{out} is the model itself, which would be lost; give another folder to write to")
    model = load(source, device="cpu", revision=revision)
    with atomic_folder(out, model.folder) as aside:
        write(model.network, model.usage, aside, stored)
        if model.tokenizer is not None:
            tokenizer = aside / "tokenizer"  # a folder of its own: both have a config or a vocabulary
            tokenizer.mkdir()
            model.tokenizer.save(tokenizer)
    told = f"{out}: CTranslate2's format, weights in {stored}; its tokens are called by their numbers"
    _print_written(out, {"folder": str(out), "format": "ctranslate2", "dtype": stored}, told, as_json)


def _print_written(out: Path, record: dict[str, Any], told: str, as_json: bool) -> None:
    """What was written, and its files."""
    from cutaway.cli.display.sizes import short

    paths = [path for path in sorted(out.rglob("*")) if path.is_file()]
    files = {path.relative_to(out).as_posix(): path.stat().st_size for path in paths}
    if as_json:
        show(json.dumps({**record, "bytes": sum(files.values()), "files": files}, indent=2))
        return
    show(told)
    for name, n_bytes in files.items():
        show(f"  {name:32} {short(n_bytes):>8}B")


def _from_pickle(source: str, out: Path, to: "Format | None", dtype: str | None, revision: str | None) -> None:
    """Without a format or dtype, only the file changes: names and numbers stay."""
    from cutaway.checkpoints.hub import fetch
    from cutaway.checkpoints.unpickle import TRUST, find_pickles, unpickle
    from cutaway.loading import load

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
