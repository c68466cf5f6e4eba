"""What the studio can do, in plain calls: traces, next words, the notes. `server.py` puts them on the network."""

import base64
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache
from itertools import islice
from math import exp
from typing import TYPE_CHECKING, Any

import torch

from cutaway.decoding.sample import warp_logits
from cutaway.decoding.search import stream
from cutaway.errors import InputError
from cutaway.generation import Generation, Prompt, limited
from cutaway.parts.tap import listening
from cutaway.seeing.explain import explain_at
from cutaway.seeing.interventions.edits import listeners, read_edits
from cutaway.seeing.notes import notes, quiz
from cutaway.seeing.render import html
from cutaway.seeing.render.model_json import longest, model_to_json
from cutaway.seeing.render.serialize import top_of, trace_to_json
from cutaway.seeing.trace.inputs import ModelInputs, default_generation, prepare, run_traced
from cutaway.seeing.trace.labels import Spelling
from cutaway.seeing.trace.search_trace import next_logits, quickest, search
from cutaway.seeing.trace.trace import Trace
from cutaway.studio import slicing
from cutaway.studio.limits import Limits
from cutaway.studio.requests import BeamsRequest, GenerateRequest, NextRequest, NotesPageRequest, RunRequest, Writing
from cutaway.studio.trace_store import StoredTrace, TraceStore
from cutaway.studio.work_queue import HTTPRefusal
from cutaway.tasks.requirements import reads_images

if TYPE_CHECKING:
    from cutaway.model import Model

Check = Callable[[], None]
"""Called from time to time; raises when nobody waits for the result any more."""


class Studio:
    """A few models and the traces made of them. Calls may come from several threads at once."""

    def __init__(self, models: Sequence["Model"], limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.models = {model.name: model for model in models}
        self.traces = TraceStore(self.limits)
        self.described = [model_to_json(model, self.limits.tokens) for model in models]

    def model(self, name: str) -> "Model":
        if name not in self.models:
            raise HTTPRefusal(404, f"no model {name[:100]!r} here; this studio has {', '.join(self.models)}")
        return self.models[name]

    def run(self, asked: RunRequest, check: Check) -> dict[str, Any]:
        """TraceInfo."""
        begin = time.perf_counter()
        model = self.model(asked.model)
        self._check_length(model, asked.text, asked.pair)
        self._check_length(model, asked.target)
        trace = self._traced(model, asked, check)
        info = trace_to_json(model, trace, text=asked.text) | {
            "edits": asked.edits,
            "seconds": time.perf_counter() - begin,
        }
        return self.traces.add(StoredTrace(trace, model.name, info)).info

    def _traced(self, model: "Model", asked: RunRequest, check: Check) -> Trace:
        """With edits a text is written under them, each word from the start: what its trace shows is what it did."""
        edits = read_edits(asked.edits, self._patches(asked.edits))
        if not edits:
            given = self._given(model, asked, check)
            return run_traced(model, given, replace={"*": lambda *_: check()})
        with listening(model.network, listeners(model.network, edits, writes=True)):
            given = self._given(model, asked, check, cached=False)
        changes = listeners(model.network, edits, writes=given.search is not None)
        return run_traced(model, given, replace={"*": lambda *_: check(), **changes})

    def _given(self, model: "Model", asked: RunRequest, check: Check, *, cached: bool = True) -> ModelInputs:
        if reads_images(model):  # and a text must not be taken for the path of one
            if asked.image is None or asked.model_fields_set - {"model", "image", "edits"}:
                raise InputError(f"{model.name} reads an image and nothing else: give image, a file in base64")
            try:
                return prepare(model, base64.b64decode(asked.image, validate=True))
            except ValueError:  # of its length or letters
                raise InputError("the image is not base64; encode the bytes of the file") from None
        if asked.image is not None:
            raise InputError(f"{model.name} reads text; an image is for models that see")
        if asked.text is None:
            raise InputError(f"{model.name} reads text; give text")
        if asked.pair is not None and not asked.pair.strip():
            raise InputError("the second text (pair) is blank; write something or leave it out")
        if asked.target is not None and asked.prefix is not None:
            raise InputError("target and prefix both say what was written; give one of them")
        return prepare(
            model, asked.text, asked.target, pair=asked.pair, so_far=asked.prefix,
            generation=self._generation(model, asked, cached=cached), check=check,
        )  # fmt: skip

    def _generation(self, model: "Model", asked: RunRequest, *, cached: bool) -> Generation | None:
        """How the model writes what it is not given; None if it shall not.

        Changed, it may never come to an end, and without a cache each word takes longer than the last: it gets less
        room.
        """
        if asked.generate is None and not (model.network.has_encoder and model.network.has_decoder):
            return None
        wish, plain = asked.generate or Writing(), default_generation(model)
        room = wish.max_new_tokens or longest(model, self.limits.tokens)
        if not cached and wish.max_new_tokens is None and model.tokenizer is not None:
            room = min(room, 2 * len(model.tokenizer.encode(asked.text or "").ids) + 16)
        if wish.beams is not None:
            plain = replace(plain, beams=wish.beams, length_penalty=wish.length_penalty, beam_groups=1, diversity=0.0)
        return replace(limited(plain, room), cached=cached)

    def _patches(self, edits: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The traces that edits take values from."""
        named = (edit.get("trace") for edit in edits)
        return {name: self.traces.get(name).trace for name in named if isinstance(name, str)}

    def _check_length(self, model: "Model", text: str | None, pair: str | None = None) -> None:
        """Before a model writes from it."""
        if model.tokenizer is None or text is None:
            return
        most = longest(model, self.limits.tokens)
        if (n := len(model.tokenizer.encode(text, pair).ids)) > most:
            what = "the text has" if pair is None else "the two texts have"
            raise HTTPRefusal(413, f"{what} {n} tokens; at most {most} are taken here")

    def explain(self, number: str, name: str, at: str) -> dict[str, Any]:
        trace = self.traces.get(number).trace
        return explain_at(trace, name, slicing.position(trace, name, at)).to_json()

    def lens(self, number: str) -> dict[str, Any]:
        kept = self.traces.get(number)
        return html.lens(self.model(kept.model), kept.trace)

    def rollout(self, number: str) -> dict[str, Any]:
        kept = self.traces.get(number)
        return html.rolled(self.model(kept.model), kept.trace)

    def html(self, number: str, view: str) -> str:
        kept = self.traces.get(number)
        return html.page(kept.trace, view=view, info=kept.info)

    def next(self, asked: NextRequest) -> dict[str, Any]:
        """The distribution of the next token, before and after what sampling does to it."""
        model = self._writer(asked.model)
        self._check_ids(model, asked.prefix)
        prompt = self._prompt(model, asked.text)
        logits_V, possible_V = next_logits(model.network, prompt, asked.prefix, model.usage, default_generation(model))
        options = Generation(
            sample=True, temperature=asked.temperature, top_k=asked.top_k, top_p=asked.top_p, min_p=asked.min_p
        )  # fmt: skip
        warped_V = warp_logits(possible_V[None], options)[0]
        vocabulary = self._spelling(model)
        [plain], [left] = (top_of(each[None].softmax(-1), vocabulary, asked.n) for each in (logits_V, warped_V))
        return {
            "written": model.tokenizer.decode(asked.prefix) if model.tokenizer else "",
            "tokens": [{"id": number, "text": vocabulary[number]} for number in asked.prefix],
            "plain": plain,
            "warped": [each for each in left if each["p"] > 0],
            "left": int((warped_V > -torch.inf).sum()),
            "end": list(model.usage.end),
        }

    def beams(self, asked: BeamsRequest, check: Check) -> dict[str, Any]:
        model = self._writer(asked.model)
        self._check_ids(model, asked.prefix)
        options = replace(
            self._usual(model, asked.max_new_tokens, asked.prefix), beams=asked.beams, n_best=asked.beams,
            length_penalty=asked.length_penalty,
        )  # fmt: skip
        found = search(model, self._prompt(model, asked.text), options, check)
        spelled, tokenizer = self._spelling(model), model.tokenizer
        assert tokenizer is not None
        return {
            "steps": [
                [asdict(each) | {"token": {"id": each.token, "text": spelled[each.token]}} for each in step]
                for step in found.steps
            ],
            "texts": [
                {"text": tokenizer.decode(text.ids), "ids": list(text.ids), "score": text.score, "ended": text.ended,
                 "tokens": [{"id": token.id, "text": spelled[token.id], "logprob": token.logprob}
                            for token in text.tokens]}
                for text in found.written
            ],
        }  # fmt: skip

    def generate(self, asked: GenerateRequest, check: Check) -> Iterator[dict[str, Any]]:
        model = self._writer(asked.model)
        self._check_ids(model, asked.prefix)
        options = replace(
            self._usual(model, asked.max_new_tokens, asked.prefix), beams=1, alternatives=asked.alternatives
        )  # fmt: skip
        if asked.sample:
            options = replace(
                options, sample=True, seed=asked.seed, temperature=asked.temperature, top_k=asked.top_k,
                top_p=asked.top_p, min_p=asked.min_p,
            )  # fmt: skip
        spelled, tokenizer = self._spelling(model), model.tokenizer
        assert tokenizer is not None
        prompt, ids = self._prompt(model, asked.text), list(asked.prefix)
        written = stream(quickest(model), prompt, options, model.usage, tokenizer.decode)
        for token in islice(written, len(ids), None):  # it begins with the prefix, which the client knows
            check()
            ids.append(token.id)
            top = [{"id": i, "text": spelled[i], "p": exp(logprob)} for i, logprob in token.alternatives]
            yield {"event": "token", "id": token.id, "text": spelled[token.id], "logprob": token.logprob, "top": top}
        ended = len(ids) < (options.max_new_tokens or 0)
        yield {"event": "done", "text": tokenizer.decode(ids), "tokens": len(ids), "ended": ended}

    def _usual(self, model: "Model", new: int, prefix: Sequence[int]) -> Generation:
        """The model's own way to write, from a prefix; its groups of beams would not fit any number of them."""
        plain = limited(default_generation(model), self._room(new, prefix))
        return replace(plain, prefix=tuple(prefix), beam_groups=1, diversity=0.0)

    def _room(self, new: int, prefix: Sequence[int]) -> int:
        """A prefix counts as written; one token more there may always be."""
        return max(min(new + len(prefix), self.limits.tokens), len(prefix) + 1)

    def _writer(self, name: str) -> "Model":
        model = self.model(name)
        if not model.network.has_decoder or model.tokenizer is None:
            raise InputError(f"{name} does not write: it has no decoder")
        return model

    def _prompt(self, model: "Model", text: str) -> Prompt:
        assert model.tokenizer is not None
        self._check_length(model, text)
        return Prompt(tuple(model.tokenizer.encode(text).ids))

    def _check_ids(self, model: "Model", ids: Sequence[int]) -> None:
        size = len(self._spelling(model))
        for number in ids:
            if number >= size:
                raise InputError(f"{number} is no token of {model.name}: ids count from 0 to {size - 1}")

    def _spelling(self, model: "Model") -> Sequence[str]:
        stack = model.config.decoder
        assert stack is not None
        assert stack.vocabulary is not None
        assert model.tokenizer is not None
        return Spelling(model.tokenizer, stack.vocabulary)

    @cache  # noqa: B019  # a studio lives as long as its process
    def notes(self) -> dict[str, Any]:
        examples = []
        for record in notes.data()["examples"]:
            worked = notes.to_json(notes.example(record["number"]))
            examples.append(worked | {"inputs": record["inputs"], "compute": record["compute"]})
        asked = [asdict(each) | {"demonstration": quiz.demonstrate(each.number)} for each in quiz.questions()]
        return {"examples": examples, "quiz": asked}

    def notes_page(self, asked: NotesPageRequest) -> str:
        other = None if asked.other is None else self.note(asked.other.number, asked.other.inputs)
        return html.filled(
            {"models": [], "traces": [], "notes": self.notes() | {"other": other}, "address": asked.view}
        )

    def note(self, number: int, inputs: Mapping[str, Any]) -> dict[str, Any]:
        return notes.to_json(notes.reworked(number, inputs)) | {"inputs": dict(inputs)}
