"""The studio as plain calls: traces, next tokens, beam search, the notes. `routes.py` puts them on the network."""

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
from cutaway.seeing.trace.search_trace import next_logits, running_network, search
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
"""Called now and then; raises when the result is no longer wanted."""


class Studio:
    """A few models and their traces. Calls may come from several threads at once."""

    def __init__(self, models: Sequence["Model"], limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.models = {model.name: model for model in models}
        self.traces = TraceStore(self.limits)
        self.described = [model_to_json(model, self.limits.tokens) for model in models]

    def model(self, name: str) -> "Model":
        if name not in self.models:
            raise HTTPRefusal(404, f"no model {name[:100]!r} here; this studio has {', '.join(self.models)}")
        return self.models[name]

    def run(self, request: RunRequest, check: Check) -> dict[str, Any]:
        """Runs the model, keeps the trace, and describes it (TraceInfo in types.ts)."""
        begin = time.perf_counter()
        model = self.model(request.model)
        self._check_length(model, request.text, request.pair)
        self._check_length(model, request.target)
        trace = self._traced(model, request, check)
        info = trace_to_json(model, trace, text=request.text) | {
            "edits": request.edits,
            "seconds": time.perf_counter() - begin,
        }
        return self.traces.add(StoredTrace(trace, model.name, info)).info

    def _traced(self, model: "Model", request: RunRequest, check: Check) -> Trace:
        """With edits, the model also writes under them, without a cache, so that the trace shows what it computed."""
        edits = read_edits(request.edits, self._patches(request.edits))
        if not edits:
            given = self._given(model, request, check)
            return run_traced(model, given, replace={"*": lambda *_: check()})
        with listening(model.network, listeners(model.network, edits, writes=True)):
            given = self._given(model, request, check, cached=False)
        changes = listeners(model.network, edits, writes=given.search is not None)
        return run_traced(model, given, replace={"*": lambda *_: check(), **changes})

    def _given(self, model: "Model", request: RunRequest, check: Check, *, cached: bool = True) -> ModelInputs:
        if reads_images(model):  # and a text must not be taken for the path of one
            if request.image is None or request.model_fields_set - {"model", "image", "edits"}:
                raise InputError(f"{model.name} reads an image and nothing else: give image, a file in base64")
            try:
                return prepare(model, base64.b64decode(request.image, validate=True))
            except ValueError:  # of its length or letters
                raise InputError("the image is not base64; encode the bytes of the file") from None
        if request.image is not None:
            raise InputError(f"{model.name} reads text; an image is for vision models")
        if request.text is None:
            raise InputError(f"{model.name} reads text; give text")
        if request.pair is not None and not request.pair.strip():
            raise InputError("the second text (pair) is blank; write something or leave it out")
        if request.target is not None and request.prefix is not None:
            raise InputError("target and prefix are both the decoder's text; give one of them")
        return prepare(
            model, request.text, request.target, pair=request.pair, so_far=request.prefix,
            generation=self._generation(model, request, cached=cached), check=check,
        )  # fmt: skip

    def _generation(self, model: "Model", request: RunRequest, *, cached: bool) -> Generation | None:
        """How the model writes its text; None if it does not.

        Under edits it may never end, and without a cache each token takes longer than the last: its room is smaller.
        """
        if request.generate is None and not (model.network.has_encoder and model.network.has_decoder):
            return None
        wish, plain = request.generate or Writing(), default_generation(model)
        room = wish.max_new_tokens or longest(model, self.limits.tokens)
        if not cached and wish.max_new_tokens is None and model.tokenizer is not None:
            room = min(room, 2 * len(model.tokenizer.encode(request.text or "").ids) + 16)
        if wish.beams is not None:
            plain = replace(plain, beams=wish.beams, length_penalty=wish.length_penalty, beam_groups=1, diversity=0.0)
        return replace(limited(plain, room), cached=cached)

    def _patches(self, edits: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The traces that patches take values from."""
        named = (edit.get("trace") for edit in edits)
        return {name: self.traces.get(name).trace for name in named if isinstance(name, str)}

    def _check_length(self, model: "Model", text: str | None, pair: str | None = None) -> None:
        """Refuses texts of too many tokens."""
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

    def next(self, request: NextRequest) -> dict[str, Any]:
        """The distribution of the next token, before and after what sampling does to it."""
        model = self._writer(request.model)
        self._check_ids(model, request.prefix)
        prompt = self._prompt(model, request.text)
        logits_V, possible_V = next_logits(
            model.network, prompt, request.prefix, model.usage, default_generation(model)
        )
        options = Generation(
            sample=True, temperature=request.temperature, top_k=request.top_k, top_p=request.top_p, min_p=request.min_p
        )  # fmt: skip
        warped_V = warp_logits(possible_V[None], options)[0]
        vocabulary = self._spelling(model)
        [plain], [left] = (top_of(each[None].softmax(-1), vocabulary, request.n) for each in (logits_V, warped_V))
        return {
            "written": model.tokenizer.decode(request.prefix) if model.tokenizer else "",
            "tokens": [{"id": number, "text": vocabulary[number]} for number in request.prefix],
            "plain": plain,
            "warped": [each for each in left if each["p"] > 0],
            "left": int((warped_V > -torch.inf).sum()),
            "end": list(model.usage.end),
        }

    def beams(self, request: BeamsRequest, check: Check) -> dict[str, Any]:
        model = self._writer(request.model)
        self._check_ids(model, request.prefix)
        options = replace(
            self._usual(model, request.max_new_tokens, request.prefix), beams=request.beams, n_best=request.beams,
            length_penalty=request.length_penalty,
        )  # fmt: skip
        found = search(model, self._prompt(model, request.text), options, check)
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

    def generate(self, request: GenerateRequest, check: Check) -> Iterator[dict[str, Any]]:
        model = self._writer(request.model)
        self._check_ids(model, request.prefix)
        options = replace(
            self._usual(model, request.max_new_tokens, request.prefix), beams=1, alternatives=request.alternatives
        )  # fmt: skip
        if request.sample:
            options = replace(
                options, sample=True, seed=request.seed, temperature=request.temperature, top_k=request.top_k,
                top_p=request.top_p, min_p=request.min_p,
            )  # fmt: skip
        spelled, tokenizer = self._spelling(model), model.tokenizer
        assert tokenizer is not None
        prompt, ids = self._prompt(model, request.text), list(request.prefix)
        written = stream(running_network(model), prompt, options, model.usage, tokenizer.decode)
        for token in islice(written, len(ids), None):  # it begins with the prefix, which the client knows
            check()
            ids.append(token.id)
            top = [{"id": i, "text": spelled[i], "p": exp(logprob)} for i, logprob in token.alternatives]
            yield {"event": "token", "id": token.id, "text": spelled[token.id], "logprob": token.logprob, "top": top}
        ended = len(ids) < (options.max_new_tokens or 0)
        yield {"event": "done", "text": tokenizer.decode(ids), "tokens": len(ids), "ended": ended}

    def _usual(self, model: "Model", new: int, prefix: Sequence[int]) -> Generation:
        """The model's generation defaults, from a prefix; no beam groups, which need a multiple of beams."""
        plain = limited(default_generation(model), self._room(new, prefix))
        return replace(plain, prefix=tuple(prefix), beam_groups=1, diversity=0.0)

    def _room(self, new: int, prefix: Sequence[int]) -> int:
        """How many tokens in all: the prefix counts, and there is always room for one more."""
        return max(min(new + len(prefix), self.limits.tokens), len(prefix) + 1)

    def _writer(self, name: str) -> "Model":
        model = self.model(name)
        if not model.network.has_decoder or model.tokenizer is None:
            raise InputError(f"{name} has no decoder, so it cannot generate text")
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
        questions = [asdict(each) | {"demonstration": quiz.demonstrate(each.number)} for each in quiz.questions()]
        return {"examples": examples, "quiz": questions}

    def notes_page(self, request: NotesPageRequest) -> str:
        other = None if request.other is None else self.note(request.other.number, request.other.inputs)
        return html.filled(
            {"models": [], "traces": [], "notes": self.notes() | {"other": other}, "address": request.view}
        )

    def note(self, number: int, inputs: Mapping[str, Any]) -> dict[str, Any]:
        return notes.to_json(notes.reworked(number, inputs)) | {"inputs": dict(inputs)}
