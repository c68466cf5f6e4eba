"""Integrated gradients: how much each token adds to an output, along the path from a neutral baseline."""

from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cutaway.checks import Count, Size, check
from cutaway.errors import InputError
from cutaway.generation import Generation
from cutaway.models.config import MaskedLanguageModel
from cutaway.models.network import Network
from cutaway.parts.embedding import Embedding
from cutaway.parts.tap import Listener
from cutaway.seeing.attribution.importance import blanks_of, logprob_of, rows_at_once, run_rows
from cutaway.seeing.interventions.compare import choices_of, probabilities
from cutaway.seeing.trace.inputs import ModelInputs, prepare, run_traced
from cutaway.seeing.trace.labels import Words

if TYPE_CHECKING:
    from cutaway.model import Model
    from cutaway.tasks.recognize import Image

FEWEST_STEPS, MOST_STEPS = 32, 512
GAP = 0.01
"""The share of the whole that the integral's steps may miss; where it is more, they are doubled."""


@dataclass(frozen=True)
class Attribution:
    """How much each token of the source, and of the target, adds to the log-probability of `text` at a place.

    They sum to `logprob - baseline`, but for the `gap` that the steps of the integral leave.
    """

    words: Words
    source: tuple[float, ...]
    target: tuple[float, ...]
    place: int
    text: str
    logprob: float
    baseline: float
    steps: int
    gap: float


def integrated_gradients(
    model: "Model",
    given: "str | Image",
    target: str | None = None,
    place: int | None = None,
    *,
    choice: int | None = None,
    baseline: int | None = None,
    pair: str | None = None,
    generation: Generation | None = None,
    steps: int | None = None,
) -> Attribution:
    """Gradients with respect to the embedding's vectors, integrated from a baseline to them (Sundararajan et al. 2017),
    by captum.

    The output is the log-probability of `choice` (a token or class by its number; None: the likeliest) at `place`
    (None: the first blank of a masked language model, else the last place). The baseline has the average word, or the
    token `baseline`, at every place; that of an image is grey. `steps` None: as many as it takes to miss at most 1 %.
    """
    attr = _captum()
    check("steps", steps, Size | None)
    prepared = prepare(model, given, target, pair=pair, generation=generation)
    full = run_traced(model, prepared, "*.embedding.output")
    empty = run_traced(model, _baseline(prepared, baseline), "*.embedding.output", _average(model.network, baseline))
    assert full.output is not None
    where, which = _chosen(model, prepared, full.output[0], place, choice)
    names = list(full)

    def logprob(*vectors: Tensor) -> Tensor:
        put = {name: _put(value) for name, value in zip(names, vectors, strict=True)}
        return logprob_of(model, run_rows(model, prepared, len(vectors[0]), put), ((where, which),))

    ends = tuple(full[name] for name in names), tuple(empty[name] for name in names)
    with torch.no_grad():
        at_input, at_baseline = (float(logprob(*end)) for end in ends)
    at_once = rows_at_once(model, prepared)
    n = FEWEST_STEPS if steps is None else steps
    while True:
        found = attr.IntegratedGradients(logprob).attribute(*ends, n_steps=n, internal_batch_size=at_once)
        scores = [each[0].double().sum(-1) for each in found]
        gap = float(sum(each.sum() for each in scores)) - (at_input - at_baseline)
        if steps is not None or n >= MOST_STEPS or abs(gap) <= GAP * abs(at_input - at_baseline):
            break
        n *= 2
    sides = {name.partition(".")[0]: tuple(each.tolist()) for name, each in zip(names, scores, strict=True)}
    choices = choices_of(model, prepared.words)
    return Attribution(
        prepared.words, sides.get("encoder", ()), sides.get("decoder", ()),
        where, choices[which] if choices else str(which), at_input, at_baseline, n, gap,
    )  # fmt: skip


def _captum() -> Any:
    try:
        return import_module("captum.attr")
    except ImportError:
        raise InputError("integrated gradients are captum's, which is not installed: pip install captum") from None


def _put(vectors_BTD: Tensor) -> Listener:
    return lambda value, _: vectors_BTD.to(value)


def _baseline(prepared: ModelInputs, token: int | None) -> ModelInputs:
    """The network's inputs for the baseline: these tokens, or an image that is grey all over."""
    if prepared.words.patches is not None:
        if token is not None:
            raise InputError(f"baseline={token} is a token; the baseline of an image is grey, so leave it out")
        return replace(prepared, inputs=tuple(torch.zeros_like(each) for each in prepared.inputs))
    inputs = prepared.inputs if token is None else tuple(torch.full_like(each, token) for each in prepared.inputs)
    return replace(prepared, inputs=inputs)


def _average(network: Network, token: int | None) -> dict[str, Listener]:
    """Without a token for the baseline, every word is the average of all."""
    embeddings = {name: part for name, part in network.named_modules() if isinstance(part, Embedding)}
    means = {name: part.tokens.weight.detach().mean(0) * part.scale for name, part in embeddings.items()}
    return {f"{name}.token_vectors": _put_everywhere(mean) for name, mean in means.items() if token is None}


def _put_everywhere(vector_D: Tensor) -> Listener:
    return lambda value, _: vector_D.expand_as(value)


def _chosen(
    model: "Model", prepared: ModelInputs, output: Tensor, place: int | None, choice: int | None
) -> tuple[int, int]:
    """The position, and the choice there."""
    probs = probabilities(model, output)
    if probs is None:
        raise InputError(f"{model.name} predicts no words and no classes, so there is no probability to explain")
    check("place", place, int | None)
    check("choice", choice, Count | None)
    n, m = probs.shape
    if place is None:
        blanks = blanks_of(model, prepared) if isinstance(model.config.head, MaskedLanguageModel) else []
        place = blanks[0] if blanks else n - 1
    if not -n <= place < n:
        raise InputError(f"there is no place {place} among {n}")
    if choice is not None and choice >= m:
        raise InputError(f"there is no choice {choice} among {m}, counted from 0")
    return place % n, int(probs[place].argmax()) if choice is None else choice
