"""A trace on disk: trace.safetensors for the numbers, trace.json for their metadata."""

import json
import os
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from cutaway.checkpoints.weights import tensor_to_write, write_weights
from cutaway.errors import CheckpointError
from cutaway.files import read_json
from cutaway.generation import Token, Written
from cutaway.models.config import config_from_json
from cutaway.seeing.render.serialize import json_safe
from cutaway.seeing.trace.labels import Words
from cutaway.seeing.trace.search_trace import Candidate, SearchTrace
from cutaway.seeing.trace.trace import Run, TapInfo, Trace

VALUES, METADATA = "trace.safetensors", "trace.json"
FORMAT = 1
LARGEST = 200_000_000
_OUTPUT = "output"  # no value has this name: all have dots
_INPUT = "input:"


def write(trace: Trace, folder: Path) -> Path:
    """Writes both files, whole or not at all."""
    tensors = {name: trace[name] for name in trace}
    if trace.output is not None:
        tensors[_OUTPUT] = trace.output
    for name, value in trace.run.inputs.items():
        if isinstance(value, torch.Tensor):
            tensors[_INPUT + name] = value
    metadata = {
        "format": FORMAT,
        "config": None if trace.run.config is None else trace.run.config.to_json(),
        "words": vars(trace.words) | {"vocabulary": list(trace.words.vocabulary)},
        "search": None if trace.search is None else json_safe(asdict(trace.search)),
        "values": {name: asdict(trace.info(name)) for name in trace},
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".trace.", dir=folder) as aside:
            write_weights(Path(aside) / VALUES, {name: tensor_to_write(value) for name, value in tensors.items()})
            (Path(aside) / METADATA).write_text(
                json.dumps(metadata, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8"
            )
            for name in (VALUES, METADATA):
                os.replace(Path(aside) / name, folder / name)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"can't write the trace to {folder}: {getattr(error, 'strerror', None) or error}"
        ) from None
    return folder


def read(folder: Path) -> Trace:
    metadata = read_json(folder / METADATA, LARGEST)
    if metadata.get("format") != FORMAT:
        raise CheckpointError(f"{folder / METADATA} has format {metadata.get('format')}; this version reads {FORMAT}")
    try:
        tensors = load_file(folder / VALUES)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{folder / VALUES} can't be read: {error}; save the trace again") from None
    try:
        trace = Trace({name: TapInfo(**info) for name, info in metadata["values"].items()})
        config = None if metadata["config"] is None else config_from_json(metadata["config"])
        trace.words = Words(**{name: _tuple(value) for name, value in metadata["words"].items()})
        trace.search = None if metadata["search"] is None else _search(metadata["search"])
        for name in metadata["values"]:
            trace.hear(tensors[name], name)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise CheckpointError(f"{folder / METADATA} does not describe a trace ({error}); save it again") from None
    trace.output = tensors.get(_OUTPUT)
    inputs = {name.removeprefix(_INPUT): value for name, value in tensors.items() if name.startswith(_INPUT)}
    trace.run = Run(config=config, inputs=inputs)
    return trace


def _tuple(value: Any) -> Any:
    return tuple(map(_tuple, value)) if isinstance(value, list) else value


def _search(data: dict[str, Any]) -> SearchTrace:
    written = tuple(Written(**_real(text) | {"tokens": tuple(map(_token, text["tokens"]))}) for text in data["written"])
    return SearchTrace(written, tuple(tuple(Candidate(**_real(each)) for each in step) for step in data["steps"]))


def _token(data: dict[str, Any]) -> Token:
    return Token(**_real(data) | {"alternatives": tuple((i, float(p)) for i, p in data["alternatives"])})


def _real(data: dict[str, Any]) -> dict[str, Any]:
    """Numbers from text: JSON has no infinities."""
    return data | {name: float(data[name]) for name in ("logprob", "score") if name in data}
