"""A model run twice, without and with edits: two traces, two outputs, and how they differ."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cutaway.generation import Generation, limited
from cutaway.models.config import AnswerSpan, Classifier, LanguageModel, MaskedLanguageModel
from cutaway.models.network import Network
from cutaway.parts.norms import upcast
from cutaway.parts.tap import listening
from cutaway.seeing.interventions.edits import Edit, Editable, edits_of, listeners
from cutaway.seeing.trace.inputs import ModelInputs, default_generation, prepare, run_traced
from cutaway.seeing.trace.labels import Words
from cutaway.seeing.trace.trace import Trace
from cutaway.text.streaming import text_after

if TYPE_CHECKING:
    from cutaway.model import Model
    from cutaway.tasks.recognize import Image


@dataclass(frozen=True)
class Prediction:
    """A word or class and its probability."""

    id: int
    text: str
    p: float


@dataclass(frozen=True)
class Place:
    """The output at one position: `label` is the token there, `side` its side (None: the whole input), `top` the
    likeliest words or classes, best first."""

    label: str
    side: str | None
    top: tuple[Prediction, ...]


@dataclass(frozen=True)
class Difference:
    """A position in both runs: the KL divergence of their distributions, Σ p · log(p / q) in nats, and the probability
    that each run gives to the word that is likeliest in the first."""

    place: int
    label: str
    divergence: float
    text: str
    before: float
    after: float


@dataclass(frozen=True)
class ModelOutput:
    """The output of a run: the text it wrote (None: it did not write), and the head's output at each position."""

    text: str | None
    places: tuple[Place, ...]


@dataclass(frozen=True)
class Comparison:
    """A run without and a run with edits: their traces and outputs. `differences`: of the outputs, at each position
    that both runs reached by the same tokens."""

    edits: tuple[Edit, ...]
    original: Trace
    changed: Trace
    before: ModelOutput
    after: ModelOutput
    differences: tuple[Difference, ...]

    @cached_property
    def moved(self) -> dict[str, float]:
        """The relative change of each value, |after - before| / |before|, in the order of computation.

        Values whose shape has changed, because the second text is longer or shorter, are left out.
        """
        known = set(self.changed)
        pairs = {name: (self.original[name], self.changed[name]) for name in self.original if name in known}
        return {name: _distance(a, b) for name, (a, b) in pairs.items() if a.shape == b.shape}

    @property
    def first(self) -> str | None:
        """The first value that changed."""
        return next((name for name, distance in self.moved.items() if distance > 0), None)

    def to_json(self) -> dict[str, Any]:
        return {
            "edits": [edit.to_json() for edit in self.edits],
            "before": asdict(self.before),
            "after": asdict(self.after),
            "differences": [asdict(each) for each in self.differences],
        }

    def __str__(self) -> str:
        """The two texts; without texts, the likeliest word or class at each position."""
        if self.before.text is not None:
            return f"before  {self.before.text}\nafter   {self.after.text}"
        lines = []
        for a, b in zip(self.before.places, self.after.places, strict=True):
            best, now = a.top[0], b.top[0]
            lines.append(f"{a.label}: {best.text} {best.p:.4f} → {now.text} {now.p:.4f}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        from cutaway.seeing.render.notebook import edit_text

        text = f"{self.before.text!r} → {self.after.text!r}" if self.before.text is not None else ""
        furthest = max(self.differences, key=lambda each: each.divergence, default=None)
        if furthest is not None:
            compared = f"{len(self.differences)} places compared"
            text += f"{', ' * bool(text)}{compared}, at most {furthest.divergence:.4f} nats apart at {furthest.label!r}"
        return f"Comparison({', '.join(map(edit_text, self.edits)) or 'no edits'}{': ' * bool(text)}{text})"

    def _repr_html_(self) -> str:
        """The comparison in a notebook."""
        from cutaway.seeing.render.notebook import comparison_html

        return comparison_html(self)


def run(
    model: "Model",
    given: "str | Image",
    edits: Editable | Iterable[Editable] = (),
    target: str | None = None,
    *,
    pair: str | None = None,
    keep: str | Sequence[str] = "*",
    generation: Generation | None = None,
    top: int = 5,
) -> Comparison:
    """See Model.run. A text is written under its edits and without a cache: each token is computed from exactly the
    values of the trace. Without a limit it may be twice as long as the other and 10 tokens more: an edited network may
    never end."""
    network, edits = model.network, edits_of(edits)
    listeners(network, edits)  # an error for those that do not fit this model
    if isinstance(generation, Generation) and generation.sample and generation.seed is None:
        generation = replace(generation, seed=int.from_bytes(os.urandom(7)))  # the same draws in both
    first = second = prepare(model, given, target, pair=pair, generation=generation)
    original = run_traced(model, first, keep)
    writes = first.search is not None
    if writes and edits:
        uncached = replace(generation or default_generation(model), cached=False)
        if uncached.max_new_tokens is None:
            uncached = limited(uncached, _max_new_tokens(model, first))
        with listening(network, listeners(network, edits, writes=True)):
            second = prepare(model, given, target, pair=pair, generation=uncached)
    changed = run_traced(model, second, keep, listeners(network, edits, writes=writes))
    before, after = (
        ModelOutput(_text(model, each), places(model, _output(trace), trace.words, top))
        for each, trace in ((first, original), (second, changed))
    )
    return Comparison(edits, original, changed, before, after, _differences(model, original, changed, before.places))


def _max_new_tokens(model: "Model", given: ModelInputs) -> int:
    assert given.search is not None
    n = len(given.search.written[0].ids)
    longest = model.usage.max_length  # it counts the start token, or the prompt
    before = given.inputs[-1].shape[1] - n
    return 2 * n + 10 if longest is None else max(1, min(2 * n + 10, longest - before))


def places(model: "Model | Network", output: Tensor, words: Words, top: int = 5) -> tuple[Place, ...]:
    """A head's output for one text by position: the next word, the masked word, the class, or the start and the end of
    an answer; empty if it is a vector."""
    found = probabilities(model, output)
    if found is None:
        return ()
    labels, choices, side = _labels_of(model, words)
    best = found.topk(min(top, found.shape[-1]))
    return tuple(
        Place(
            labels[i] if labels else str(i), side,
            tuple(Prediction(n, choices[n] if choices else str(n), p) for n, p in zip(ids, numbers, strict=True)),
        )
        for i, (ids, numbers) in enumerate(zip(best.indices.tolist(), best.values.tolist(), strict=True))
    )  # fmt: skip


def choices_of(model: "Model | Network", words: Words) -> Sequence[str]:
    """The labels of the choices at each position, by number; empty if they are not known."""
    return _labels_of(model, words)[1]


def _labels_of(model: "Model | Network", words: Words) -> tuple[Sequence[str], Sequence[str], str | None]:
    """The labels of the positions, of the choices there, and the positions' side."""
    head, tokens = model.config.head, words.target or words.source
    if isinstance(head, Classifier):
        return ("class",), words.classes, None
    if isinstance(head, AnswerSpan):
        return ("begins at", "ends at"), [f"{token} ({place})" for place, token in enumerate(tokens)], None
    return tokens, words.vocabulary, "target" if words.target else "source"


def probabilities(model: "Model | Network", output: Tensor) -> Tensor | None:
    """Probabilities [positions, choices] from a head's output for one text; None if it is a vector."""
    head = model.config.head
    if isinstance(head, LanguageModel | MaskedLanguageModel):
        return upcast(output).softmax(-1)
    if isinstance(head, AnswerSpan):
        return upcast(output).mT.softmax(-1)
    if not isinstance(head, Classifier):
        return None
    if isinstance(model, Network):
        return (output.sigmoid() if output.shape[-1] == 1 else output.softmax(-1)).unsqueeze(0)
    from cutaway.tasks.classify import probabilities as of_classes

    return of_classes(model, output.unsqueeze(0))


def _output(trace: Trace) -> Tensor:
    assert trace.output is not None
    return trace.output[0]


def _text(model: "Model", given: ModelInputs) -> str | None:
    if given.search is None or model.tokenizer is None:
        return None
    written = given.search.written[0].ids
    prompt = () if len(given.inputs) > 1 else given.inputs[0][0].tolist()[: -len(written) or None]
    return text_after(model.tokenizer, prompt, written)


def _differences(model: "Model", original: Trace, changed: Trace, places: Sequence[Place]) -> tuple[Difference, ...]:
    before, after = (probabilities(model, _output(trace)) for trace in (original, changed))
    if before is None or after is None:
        return ()
    n = _common_prefix(original.run.inputs, changed.run.inputs) if model.network.has_decoder else len(before)
    found = []
    for i, (p, q) in enumerate(zip(before[:n].double(), after[:n].double(), strict=True)):
        divergence = float(torch.where(p == 0, 0.0, p * (p / q).log()).sum())  # 0 · log 0 = 0
        best = places[i].top[0]
        found.append(
            Difference(i, places[i].label, 0.0 if divergence < 0 else divergence, best.text, best.p, float(q[best.id]))
        )
    return tuple(found)


def _common_prefix(a: Mapping[str, Any], b: Mapping[str, Any]) -> int:
    """The number of tokens that two decoders read alike, from the first on."""
    read = [inputs.get("target", inputs["tokens"])[0].tolist() for inputs in (a, b)]
    return next((i for i, (x, y) in enumerate(zip(*read, strict=False)) if x != y), min(map(len, read)))


def _distance(before: Tensor, after: Tensor) -> float:
    """|after - before| / |before|; masked scores, -∞, count as 0."""
    a, b = (value.double().nan_to_num(neginf=0.0, posinf=0.0) for value in (before, after))
    moved = float((b - a).norm())
    return moved / (float(a.norm()) or 1.0) if moved else 0.0
