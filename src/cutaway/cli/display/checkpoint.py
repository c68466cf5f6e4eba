"""What a checkpoint is, as a table, in a line, and as JSON: `cutaway info`, `get` and `convert`."""

from dataclasses import asdict
from typing import Any

from rich.table import Table

from cutaway.checkpoint_info import CheckpointInfo, StoredTensor
from cutaway.checkpoints.generation_settings import shortened
from cutaway.checkpoints.usage import settings_of_usage
from cutaway.checks import parse_int
from cutaway.cli.display.sizes import count, family, parts_table, short
from cutaway.cli.pager import Screen
from cutaway.info.size import Size, size
from cutaway.info.summary import size_rows
from cutaway.tasks.pooling import describe_pooling

FORMATS = {"huggingface": "Hugging Face", "cutaway": "cutaway's own", "llama2.c": "llama2.c"}


def print_checkpoint(found: CheckpointInfo, *, tensors: bool) -> None:
    """A table of what it is, one of its parts, and with `tensors` every tensor."""
    counted, console = size(found.config), Screen()
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for title, text in _rows(found, counted).items():
        grid.add_row(title, text)
    console.print(grid, "", parts_table(counted), sep="\n")
    if tensors:
        console.print()
        for stored in in_order(found.stored):
            console.print(_line(stored, console.width), soft_wrap=True)


def in_order(stored: list[StoredTensor]) -> list[StoredTensor]:
    """Tensors by their names, block 10 after block 9."""
    return sorted(stored, key=lambda each: _natural(each.theirs or joined(each.ours)))


def headline(found: CheckpointInfo) -> str:
    """In a line: `GPT-2 (GPT2LMHeadModel), decoder-only, 124.4 M parameters, float32, 498 MB`."""
    architecture = f" ({found.architecture})" if found.architecture else ""
    n = count(size(found.config).parameters)
    kind = f"{found.family or found.config.kind}{architecture}, {family(found.config)}"
    return f"{kind}, {n} parameters, {' and '.join(found.dtypes)}, {short(found.n_bytes)}B"


def record(found: CheckpointInfo) -> dict[str, Any]:
    """The same as `info` prints, for other programs."""
    counted = size(found.config)
    tokenizer = found.tokenizer
    special = (
        {} if tokenizer is None else {role: (token, tokenizer.id_of(token)) for role, token in tokenizer.names.items()}
    )
    return {
        "path": str(found.path),
        "format": found.format,
        "family": found.family,
        "architecture": found.architecture,
        "halves": family(found.config),
        "head": None if found.config.head is None else found.config.head.kind,
        "parameters": counted.parameters,
        "parameters_by_part": {part: n for part, n in counted.by_part.items() if n},
        "dtypes": found.dtypes,
        "bytes": found.n_bytes,
        "n_tensors": len(found.stored),
        "sizes": found.sizes,
        "vocabulary": found.vocabularies,
        "context": found.contexts,
        "tokenizer": tokenizer and {
            "kind": tokenizer.kind,
            "vocabulary": tokenizer.vocabulary_size,
            "special": {role: {"token": token, "id": number} for role, (token, number) in special.items()},
        },
        "usage": asdict(found.usage),
        "settings": {} if found.config.decoder is None else settings_of_usage(found.usage),
        "unused_settings": found.unused_settings,
        "licence": found.licence,
        "unknown_keys": found.unread_keys,
        "ignored": found.ignored,
    }  # fmt: skip


def _rows(found: CheckpointInfo, counted: Size) -> dict[str, str]:
    """Title -> text; what a model does not have is left out."""
    head, usage = found.config.head, found.usage
    rows = {
        "model": str(found.path),
        "format": FORMATS[found.format],
        "family": found.family,
        "architecture": found.architecture,
        "halves": family(found.config),
        "head": None if head is None else head.kind.replace("_", " "),
        "pooling": describe_pooling(found.config),
        "parameters": f"{counted.parameters:,}",
        "weights": f"{len(found.stored)} tensors, {' and '.join(found.dtypes)}, {short(found.n_bytes)}B",
        **size_rows(found.config),
        "tokenizer": _tokenizer(found),
        "writing": _writing(found),
        "asks for": _settings(found),
        "unused settings": "\n".join(f"{name}: {why}" for name, why in found.unused_settings.items()),
        "labels": ", ".join(usage.labels),
        "licence": found.licence,
        "unknown keys": ", ".join(found.unread_keys),
        "unused": ", ".join(found.ignored),
    }
    return {title: text for title, text in rows.items() if text}


def _tokenizer(found: CheckpointInfo) -> str:
    tokenizer = found.tokenizer
    if tokenizer is None:
        return "none" if found.vocabularies else ""
    special = ", ".join(f"{role} {token} {tokenizer.id_of(token)}" for role, token in tokenizer.names.items())
    return f"{tokenizer.kind}, {tokenizer.vocabulary_size:,} tokens" + (f"\n{special}" if special else "")


def _writing(found: CheckpointInfo) -> str:
    """With which tokens a decoder begins and ends."""
    usage = found.usage
    if found.config.decoder is None or usage.start is None:
        return ""
    end = " or ".join(map(str, usage.end))
    return f"begins with token {usage.start}" + (f", ends with {end}" if end else "")


def _settings(found: CheckpointInfo) -> str:
    """How its makers want texts to be written."""
    if found.config.decoder is None:
        return ""
    return ", ".join(f"{key} {shortened(value)}" for key, value in settings_of_usage(found.usage).items())


def _natural(name: str) -> list[tuple[int, str]]:
    """For sorting: block 10 after block 9."""
    return [(-1 if (number := parse_int(step)) is None else number, step) for step in name.split(".")]


def tensor_record(stored: StoredTensor) -> dict[str, Any]:
    dtype = str(stored.dtype).removeprefix("torch.")
    return {"theirs": stored.theirs, "ours": list(stored.ours), "shape": list(stored.shape), "dtype": dtype}


def _line(stored: StoredTensor, width: int) -> str:
    """Their name, shape and dtype; ours below, if it is another."""
    ours = joined(stored.ours)
    name = stored.theirs or ours
    facts = f"{list(stored.shape)} {str(stored.dtype).removeprefix('torch.')}"
    room = width - len(facts) - 2
    line = f"{name:{room}}  {facts}" if len(name) <= room else f"{name}\n{facts:>{width}}"
    if stored.theirs in (None, ours):
        return line
    return f"{line}\n  {'→ ' + ours if ours else 'unused'}"


def joined(names: tuple[str, ...]) -> str:
    """Names that differ in one step, as one: `self_attention.{q,k,v}.weight`."""
    steps = [name.split(".") for name in names]
    if len({len(parts) for parts in steps}) == 1:
        columns = [list(dict.fromkeys(column)) for column in zip(*steps, strict=True)]
        if sum(len(column) > 1 for column in columns) <= 1:
            return ".".join(column[0] if len(column) == 1 else f"{{{','.join(column)}}}" for column in columns)
    return ", ".join(names)
