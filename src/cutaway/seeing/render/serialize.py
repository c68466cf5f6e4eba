"""A trace as plain data: its tokens, the output at each position, and the list of its values."""

import base64
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cutaway.seeing.interventions.compare import places
from cutaway.seeing.trace.trace import Trace
from cutaway.tasks.image_processing import to_picture

if TYPE_CHECKING:
    from cutaway.model import Model

TOP = 10


def json_safe(value: Any) -> Any:
    """The same data with infinities and NaN as text: JSON has no such numbers."""
    if isinstance(value, Tensor):
        return json_safe(value.tolist())
    if isinstance(value, Mapping):
        return {key: json_safe(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_safe(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def trace_to_json(model: "Model", trace: Trace, number: str = "", text: str | None = None) -> dict[str, Any]:
    """The answer of `POST /api/run` for a trace; `number`: its id in the studio."""
    words, written = trace.words, None
    given = trace.run.inputs
    assert trace.output is not None
    if model.network.has_decoder and model.tokenizer is not None and trace.search is not None:
        written = model.tokenizer.decode(trace.search.written[0].ids)
    sides: dict[str, list[dict[str, Any]]] = {"source": [], "target": []}
    ids = {"source": given["tokens"]} if words.source and words.patches is None else {}
    if words.target:
        ids["target"] = given["target"] if words.source else given["tokens"]
    for side, numbers in ids.items():
        spelled, of = getattr(words, side), getattr(words, f"of_{side}")
        sides[side] = [
            {"id": number, "text": token, "word": word}
            for number, token, word in zip(numbers[0].tolist(), spelled, of, strict=True)
        ]
    if words.patches is not None:
        sides["source"] = [{"id": i, "text": token, "word": i} for i, token in enumerate(words.source)]
    return {
        "id": number,
        "model": model.name,
        "text": text,
        "tokens": sides,
        "image": picture(model, given["tokens"][0], words.patches) if words.patches is not None else None,
        "written": written,
        "cut": trace.search is not None and trace.search.written[0].ended == "length",
        "places": json_safe([asdict(place) for place in places(model, trace.output[0], words, TOP)]),
        "values": [{"name": name, "shape": list(trace[name].shape), **asdict(trace.info(name))} for name in trace],
        "precision": precision(trace),
    }


def precision(trace: Trace) -> dict[str, float]:
    """The machine epsilon and the smallest number above 0 of the coarsest values."""

    each = [torch.finfo(trace[name].dtype) for name in trace if trace[name].is_floating_point()]
    return {
        "epsilon": max((one.eps for one in each), default=0.0),
        "smallest": max((one.tiny * one.eps for one in each), default=0.0),
    }


def top_of(probabilities_RV: Tensor, names: Sequence[str], n: int = TOP) -> list[list[dict[str, Any]]]:
    """The likeliest few of each row, with their names."""
    values, ids = probabilities_RV.topk(min(n, probabilities_RV.shape[-1]))
    return [
        [
            {"id": i, "text": names[i] if i < len(names) else f"<{i}>", "p": json_safe(p)}
            for i, p in zip(*row, strict=True)
        ]
        for row in zip(ids.tolist(), values.tolist(), strict=True)
    ]


def picture(model: "Model", pixels_CIJ: Tensor, patches: tuple[int, int]) -> dict[str, Any]:
    """The network's image, in colours again."""
    channels = pixels_CIJ.shape[0]
    mean = torch.tensor(model.usage.image_mean or (0.5,) * channels).view(-1, 1, 1)
    std = torch.tensor(model.usage.image_std or (0.5,) * channels).view(-1, 1, 1)
    shown = ((pixels_CIJ * std + mean).clamp(0, 1) * 255).round().to(torch.uint8)
    file = io.BytesIO()
    to_picture(shown[: 1 if channels == 1 else 3]).save(file, "PNG")
    data = base64.b64encode(file.getvalue()).decode()
    return {"rows": patches[0], "columns": patches[1], "pixels": f"data:image/png;base64,{data}"}
