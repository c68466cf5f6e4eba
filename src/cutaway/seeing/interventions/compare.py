"""A model run twice, as it is and with edits: two traces, what each run says, and how the two differ."""

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
class Likely:
    """A word or class that a model can say, and how probable it finds it."""

    id: int
    text: str
    p: float


@dataclass(frozen=True)
class Place:
    """What a model says at one place: `label` is the token there, `side` whose it is (None: of the whole input);
    `top` what is likeliest, best first."""

    label: str
    side: str | None
    top: tuple[Likely, ...]


@dataclass(frozen=True)
class Difference:
    """One place in both runs: how far the second distribution is from the first (Σ p · log(p / q), in nats), and how
    probable each run finds what the first finds likeliest."""

    place: int
    label: str
    divergence: float
    text: str
    before: float
    after: float


@dataclass(frozen=True)
class ModelOutput:
    """What a run came to: the text it wrote (None: it did not write), and what the head says at each place."""

    text: str | None
    places: tuple[Place, ...]


@dataclass(frozen=True)
class Comparison:
    """`before` and `after` are what the two runs say. `differences`: of each place that both runs reached by the same
    words, how what they say there differs."""

    edits: tuple[Edit, ...]
    original: Trace
    changed: Trace
    before: ModelOutput
    after: ModelOutput
    differences: tuple[Difference, ...]

    @cached_property
    def moved(self) -> dict[str, float]:
        """How far each value is from what it was, |after - before| / |before|, in the order of computation.

        Values whose shape has changed, because the second text is longer or shorter, are left out.
        """
        known = set(self.changed)
        pairs = {name: (self.original[name], self.changed[name]) for name in self.original if name in known}
        return {name: _distance(a, b) for name, (a, b) in pairs.items() if a.shape == b.shape}

    @property
    def first(self) -> str | None:
        """The first value that is another."""
        return next((name for name, distance in self.moved.items() if distance > 0), None)

    def to_json(self) -> dict[str, Any]:
        return {
            "edits": [edit.to_json() for edit in self.edits],
            "before": asdict(self.before),
            "after": asdict(self.after),
            "differences": [asdict(each) for each in self.differences],
        }

    def __str__(self) -> str:
        """The two texts; without texts, what is likeliest at each place."""
        if self.before.text is not None:
            return f"before  {self.before.text}\nafter   {self.after.text}"
        lines = []
        for a, b in zip(self.before.places, self.after.places, strict=True):
            best, now = a.top[0], b.top[0]
            lines.append(f"{a.label}: {best.text} {best.p:.4f} → {now.text} {now.p:.4f}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        from cutaway.seeing.render.notebook import edit_text

        said = f"{self.before.text!r} → {self.after.text!r}" if self.before.text is not None else ""
        furthest = max(self.differences, key=lambda each: each.divergence, default=None)
        if furthest is not None:
            compared = f"{len(self.differences)} places compared"
            said += f"{', ' * bool(said)}{compared}, at most {furthest.divergence:.4f} nats apart at {furthest.label!r}"
        return f"Changed({', '.join(map(edit_text, self.edits)) or 'no edits'}{': ' * bool(said)}{said})"

    def _repr_html_(self) -> str:
        """How a notebook shows it."""
        from cutaway.seeing.render.notebook import changed_html

        return changed_html(self)


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
    """See Model.run. A run that writes does so under its edits and without a cache: each word is computed from just
    what the trace shows. Where nothing says how long its text may be, twice the other's and 10 tokens more: a network
    that lacks something may never end."""
    network, edits = model.network, edits_of(edits)
    listeners(network, edits)  # those that do not fit this model
    if isinstance(generation, Generation) and generation.sample and generation.seed is None:
        generation = replace(generation, seed=int.from_bytes(os.urandom(7)))  # one chance for both
    first = second = prepare(model, given, target, pair=pair, generation=generation)
    original = run_traced(model, first, keep)
    writes = first.search is not None
    if writes and edits:
        uncached = replace(generation or default_generation(model), cached=False)
        if uncached.max_new_tokens is None:
            uncached = limited(uncached, _room(model, first))
        with listening(network, listeners(network, edits, writes=True)):
            second = prepare(model, given, target, pair=pair, generation=uncached)
    changed = run_traced(model, second, keep, listeners(network, edits, writes=writes))
    said = [ModelOutput(_text(model, each), places(model, _output(seen), seen.words, top))
            for each, seen in ((first, original), (second, changed))]  # fmt: skip
    return Comparison(
        edits, original, changed, said[0], said[1], _differences(model, original, changed, said[0].places)
    )


def _room(model: "Model", given: ModelInputs) -> int:
    assert given.search is not None
    n = len(given.search.written[0].ids)
    longest = model.usage.max_length  # it counts the start token, or the prompt
    before = given.inputs[-1].shape[1] - n
    return 2 * n + 10 if longest is None else max(1, min(2 * n + 10, longest - before))


def places(model: "Model | Network", output: Tensor, words: Words, top: int = 5) -> tuple[Place, ...]:
    """What a head's output says of one text: the next word at each place, the word that stood there, the class, where
    an answer starts and ends; nothing if it is a vector."""
    found = probabilities(model, output)
    if found is None:
        return ()
    labels, choices, side = _around(model, words)
    best = found.topk(min(top, found.shape[-1]))
    return tuple(
        Place(
            labels[i] if labels else str(i), side,
            tuple(Likely(n, choices[n] if choices else str(n), p) for n, p in zip(ids, numbers, strict=True)),
        )
        for i, (ids, numbers) in enumerate(zip(best.indices.tolist(), best.values.tolist(), strict=True))
    )  # fmt: skip


def choices_of(model: "Model | Network", words: Words) -> Sequence[str]:
    """What there is to choose from at each place, by number; empty if only the numbers are known."""
    return _around(model, words)[1]


def _around(model: "Model | Network", words: Words) -> tuple[Sequence[str], Sequence[str], str | None]:
    """The names of the places and of the choices there, and whose places they are."""
    head, tokens = model.config.head, words.target or words.source
    if isinstance(head, Classifier):
        return ("class",), words.classes, None
    if isinstance(head, AnswerSpan):
        return ("begins at", "ends at"), [f"{token} ({place})" for place, token in enumerate(tokens)], None
    return tokens, words.vocabulary, "target" if words.target else "source"


def probabilities(model: "Model | Network", output: Tensor) -> Tensor | None:
    """Of each place and choice [places, choices], from a head's output for one text; None if it is a vector."""
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


def _output(seen: Trace) -> Tensor:
    assert seen.output is not None
    return seen.output[0]


def _text(model: "Model", given: ModelInputs) -> str | None:
    if given.search is None or model.tokenizer is None:
        return None
    written = given.search.written[0].ids
    prompt = () if len(given.inputs) > 1 else given.inputs[0][0].tolist()[: -len(written) or None]
    return text_after(model.tokenizer, prompt, written)


def _differences(model: "Model", original: Trace, changed: Trace, said: Sequence[Place]) -> tuple[Difference, ...]:
    before, after = (probabilities(model, _output(seen)) for seen in (original, changed))
    if before is None or after is None:
        return ()
    n = _alike(original.run.inputs, changed.run.inputs) if model.network.has_decoder else len(before)
    found = []
    for i, (p, q) in enumerate(zip(before[:n].double(), after[:n].double(), strict=True)):
        divergence = float(torch.where(p == 0, 0.0, p * (p / q).log()).sum())  # 0 · log 0 = 0
        best = said[i].top[0]
        found.append(
            Difference(i, said[i].label, 0.0 if divergence < 0 else divergence, best.text, best.p, float(q[best.id]))
        )
    return tuple(found)


def _alike(a: Mapping[str, Any], b: Mapping[str, Any]) -> int:
    """How many tokens two decoders have read in common."""
    read = [inputs.get("target", inputs["tokens"])[0].tolist() for inputs in (a, b)]
    return next((i for i, (x, y) in enumerate(zip(*read, strict=False)) if x != y), min(map(len, read)))


def _distance(before: Tensor, after: Tensor) -> float:
    """Hidden scores, -∞, count as 0."""
    a, b = (value.double().nan_to_num(neginf=0.0, posinf=0.0) for value in (before, after))
    moved = float((b - a).norm())
    return moved / (float(a.norm()) or 1.0) if moved else 0.0
