"""Head importance by ablation: how much less likely the output gets without each head."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cutaway.errors import InputError
from cutaway.generation import Generation
from cutaway.models.config import AnswerSpan, Classifier, LanguageModel, MaskedLanguageModel
from cutaway.parts.attention import Attention
from cutaway.parts.tap import Listener, listening
from cutaway.seeing.interventions.compare import probabilities
from cutaway.seeing.trace.inputs import ModelInputs, prepare

if TYPE_CHECKING:
    from cutaway.model import Model
    from cutaway.tasks.recognize import Image

Wanted = tuple[tuple[int, int], ...]
"""Positions, and the number of the choice at each."""
MOST_ROWS, NUMBERS_AT_ONCE = 32, 16_000_000
"""Rows of one batch, and numbers of its output, at most; more are computed in several."""


@dataclass(frozen=True)
class HeadImportance:
    """`drops[i][h]`: how much less likely the output gets, in log-probability, without head h of `attentions[i]`; below
    0, it gets likelier. `logprob` is that of the output as it is."""

    attentions: tuple[str, ...]
    drops: tuple[tuple[float, ...], ...]
    logprob: float

    def ranked(self) -> list[tuple[str, int, float]]:
        """Attention, head and drop, the most important first."""
        each = [
            (name, h, drop) for name, row in zip(self.attentions, self.drops, strict=True) for h, drop in enumerate(row)
        ]
        return sorted(each, key=lambda one: -one[2])


def head_importance(
    model: "Model",
    given: "str | Image",
    target: str | None = None,
    *,
    pair: str | None = None,
    generation: Generation | None = None,
) -> HeadImportance:
    """For each head, the loss of log-probability when the head is zeroed (Michel et al. 2019, by ablation).

    The output is the target (written by the model itself if there is none), the text of a decoder, the words that a
    masked language model puts in its blanks (of a text without blanks, its own), the class, or the answer.
    """
    network = model.network
    heads = {name: part.n_heads for name, part in network.named_modules() if isinstance(part, Attention)}
    if not heads:
        raise InputError(f"{model.name} has no attention heads")
    prepared = prepare(model, given, target, pair=pair, generation=generation)
    with torch.no_grad():
        output = network(*prepared.inputs, **prepared.options)
        wanted = output_of(model, prepared, output)
        logprob = float(logprob_of(model, output, wanted))
        drops = tuple(
            tuple(logprob - x for x in _without_heads(model, prepared, name, n, wanted)) for name, n in heads.items()
        )
    return HeadImportance(tuple(heads), drops, logprob)


def _without_heads(model: "Model", prepared: ModelInputs, name: str, n: int, wanted: Wanted) -> Iterator[float]:
    """The log-probability without each head in turn: row by row of one batch, another head is zeroed."""
    all_but_one_HH, rows = 1.0 - torch.eye(n), rows_at_once(model, prepared)
    for first in range(0, n, rows):
        keep_RH = all_but_one_HH[first : first + rows]
        output = run_rows(model, prepared, len(keep_RH), {f"{name}.heads": _times(keep_RH[:, :, None, None])})
        yield from logprob_of(model, output, wanted).tolist()


def run_rows(model: "Model", prepared: ModelInputs, rows: int, listeners: Mapping[str, Listener]) -> Tensor:
    """The output for `rows` copies of the same text."""
    inputs = [each.expand(rows, *each.shape[1:]) for each in prepared.inputs]
    options = {key: each.expand(rows, *each.shape[1:]) for key, each in prepared.options.items()}
    with listening(model.network, listeners):
        return model.network(*inputs, **options)


def _times(factor: Tensor) -> Listener:
    return lambda value, _: value * factor.to(value)


def rows_at_once(model: "Model", prepared: ModelInputs) -> int:
    stack = model.config.decoder or model.config.encoder
    words = 1 if stack is None else stack.vocabulary or 1
    return max(1, min(MOST_ROWS, NUMBERS_AT_ONCE // (prepared.inputs[-1].shape[1] * words)))


def output_of(model: "Model", prepared: ModelInputs, output: Tensor) -> Wanted:
    """The output of a run, position by position; see `head_importance`."""
    probs, head = probabilities(model, output[0]), model.config.head
    if probs is None:
        raise InputError(f"{model.name} predicts no words and no classes, so there is no probability to explain")
    best = probs.argmax(-1).tolist()
    if isinstance(head, Classifier | AnswerSpan):
        return tuple(enumerate(best))
    ids = prepared.inputs[-1][0].tolist()
    if isinstance(head, MaskedLanguageModel):
        return tuple((t, best[t]) for t in blanks_of(model, prepared)) or tuple(enumerate(ids))
    end = None if prepared.search is None else prepared.search.written[0].end
    following = [*ids[1:], *([] if end is None else [end])]
    return tuple(enumerate(following)) or ((0, best[0]),)


def blanks_of(model: "Model", prepared: ModelInputs) -> list[int]:
    """The places of mask tokens."""
    mask = None if model.tokenizer is None else model.tokenizer.special.mask
    return [t for t, number in enumerate(prepared.inputs[0][0].tolist()) if number == mask]


def logprob_of(model: "Model", output: Tensor, wanted: Wanted) -> Tensor:
    """The log-probability of all `wanted` choices together, for each row of a batch [B]; on the CPU, in float64."""

    output = output.cpu()
    where, which = (torch.tensor(each) for each in zip(*wanted, strict=True))
    if isinstance(model.config.head, LanguageModel | MaskedLanguageModel):
        said_BNV = output[:, where].double().log_softmax(-1)
        return said_BNV[:, torch.arange(len(which)), which].sum(-1)
    found = [probabilities(model, row.double()) for row in output]
    return torch.stack([probs[where, which].log().sum() for probs in found if probs is not None])
