"""The engine `ctranslate2`: the same model, run by CTranslate2's kernels for CPUs.

It is faster where a step is bound by the overhead of calls (small models, one sentence at a time). An extra:
`pip install cutaway[ctranslate2]`.
"""

import math
import os
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cutaway.decoding.batches import request_windows
from cutaway.decoding.plan import Decode, Plan, Request
from cutaway.decoding.results import finished, stopped
from cutaway.decoding.stops import Stop, find_stop, n_streamable_tokens
from cutaway.engines.ctranslate2_files import opened
from cutaway.engines.ctranslate2_options import NATIVE, arguments, differs
from cutaway.engines.ctranslate2_spec import library, places
from cutaway.engines.engine import Engine, EngineName, Precision
from cutaway.errors import InputError
from cutaway.generation import Generation, Prompt, Token, Written
from cutaway.models.network import Network
from cutaway.models.transformer import Transformer
from cutaway.models.usage import Usage

WINDOW = 16  # batches whose texts are sorted by length together


class CTranslate2(Engine):
    """Where `otherwise` makes another engine, that one writes what CTranslate2 can't, or would write differently."""

    name: EngineName = "ctranslate2"

    def __init__(
        self,
        network: Network,
        usage: Usage | None = None,
        precision: Precision = "float32",
        *,
        keep: bool = False,
        otherwise: Callable[[], Engine] | None = None,
        workers: int | None = None,
        threads: int = 1,
    ) -> None:
        """`keep`: the converted model goes into the cache, and the next one with the same weights is there at once.

        `workers` batches are computed at a time, with `threads` each; None: one for each core. On 2 cores that
        was faster than two threads, one text at a time too: GPT-2 in int8 wrote 78 tokens a second with 1, 52 with 2.
        """
        self.network, self.usage, self.precision = network.eval(), usage or Usage(), precision
        supported = library().get_supported_compute_types("cpu")
        if precision not in supported:
            raise InputError(
                f"CTranslate2 has no {precision} on this CPU; choose float32 or int8, or the native engine's "
                f"{precision}"
            )
        kind = "Generator" if not network.has_encoder else "Translator" if network.has_decoder else "Encoder"
        compute = "int8_float32" if precision == "int8" else precision
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        workers = max(1, cores // threads) if workers is None else workers

        def load(folder: Path) -> Any:
            make, n = getattr(library(), kind), torch.get_num_threads()
            try:
                return make(str(folder), compute_type=compute, inter_threads=workers, intra_threads=threads)
            finally:
                torch.set_num_threads(n)  # it sets the caller's too, and torch would go on with one core

        # Its ends are said with each call. A model that knows one gives nothing for a source of ends alone, unasked.
        start = Usage(start=self.usage.start)
        self.model = opened(network, start, "int8" if precision == "int8" else "float32", keep, load)
        assert isinstance(network, Transformer)
        self.encoder, self.decoder, self.last = network.config.encoder, network.config.decoder, network.config.last
        self.otherwise = otherwise
        self.tokens = [Token(i, math.nan) for i in range(self.last.vocabulary or 0)]

    # Writing

    def generate(self, plan: Plan, prompts: Iterable[Prompt | None]) -> Iterator[list[Written]]:
        return self._written(plan, prompts, arguments(plan))

    def engine_for(self, generation: Generation) -> Engine:
        if self.otherwise is None or differs(generation, self.usage, self.network) is None:
            return self
        return self.otherwise()

    def _written(
        self, plan: Plan, prompts: Iterable[Prompt | None], options: dict[str, Any]
    ) -> Iterator[list[Written]]:
        for window in request_windows(plan, prompts, WINDOW * plan.options.batch_tokens):
            requests = [self._checked(request) for request in window if request is not None]
            texts = iter(self._write(plan, requests, options) if requests else ())
            yield from ([] if request is None else next(texts) for request in window)

    def _checked(self, request: Request) -> Request:
        stack, n = (self.encoder, len(request.ids)) if self.encoder is not None else (self.decoder, 0)
        assert stack is not None
        if n > places(stack):
            raise InputError(
                f"prompt {request.index} has {n} tokens, more than {places(stack)} positions; {NATIVE} take it"
            )
        return request

    def _write(self, plan: Plan, window: Sequence[Request], options: dict[str, Any]) -> list[list[Written]]:
        """One call for all texts that may become equally long; CTranslate2 sorts them by length and cuts batches.

        It forces what a prompt has more than the shortest of its batch. Two ways in which that goes wrong are kept out:
        beside a prompt of one token it gives the others' prompts back as text, and a beam search that begins so does
        not end at once, even if that were best.
        """
        alike: dict[tuple[int, int], list[int]] = {}
        for i, request in enumerate(window):
            n = 0 if self.encoder is not None else len(request.ids) if plan.beams > 1 else min(len(request.ids), 2)
            alike.setdefault((request.room, n), []).append(i)
        found: dict[int, list[Written]] = {}
        for (room, _), rows in alike.items():
            prompts = [window[i] for i in rows]
            results = self._call(plan, prompts, room, options)(
                max_batch_size=max(plan.options.batch_tokens, *(len(request.ids) for request in prompts)),
                batch_type="tokens",
            )
            for i, result in zip(rows, results, strict=True):
                found[i] = self._results(plan, result, room)
        texts = [found[i] for i in range(len(window))]
        return self._scored(plan, window, texts) if plan.options.scores else texts

    def _scored(self, plan: Plan, window: Sequence[Request], texts: list[list[Written]]) -> list[list[Written]]:
        """The same texts, with the log-probability of each token: CTranslate2 tells it of a text that is there."""
        pairs = [(request, text) for request, written in zip(window, texts, strict=True) for text in written]
        prompts = [[str(i) for i in request.ids] for request, _ in pairs]
        said = [[str(i) for i in text.ids] for _, text in pairs]
        longest = max(len(a) + len(b) for a, b in zip(prompts, said, strict=True))
        how = {"max_batch_size": max(plan.options.batch_tokens, longest), "batch_type": "tokens", "max_input_length": 0}
        if self.encoder is not None:
            results = self.model.score_batch(prompts, said, **how)
            rows = [result.log_probs for result in results]  # and one of the end that it adds
        else:
            results = self.model.score_batch([a + b for a, b in zip(prompts, said, strict=True)], **how)
            rows = [
                row.log_probs[len(a) - 1 :] for row, a in zip(results, prompts, strict=True)
            ]  # of all but the first
        scored = iter(
            replace(text, tokens=tuple(Token(i, logprob) for i, logprob in zip(text.ids, row, strict=False)))
            for (_, text), row in zip(pairs, rows, strict=True)
        )
        return [[next(scored) for _ in written] for written in texts]

    def _call(
        self, plan: Plan, prompts: Sequence[Request], room: int, options: dict[str, Any]
    ) -> Callable[..., Sequence[Any]]:
        """translate_batch or generate_batch with everything but how to batch and whether to wait."""
        prefix = [str(i) for i in plan.options.prefix]
        least = min(prompts[0].least, room) if plan.ends else 0  # alike for all: see `refused`
        if self.encoder is not None:
            assert self.decoder is not None
            if room > places(self.decoder):
                raise InputError(f"max_new_tokens={room} is more than {places(self.decoder)} positions; {NATIVE} do it")
            source = [[str(i) for i in request.ids] for request in prompts]
            lengths = {"max_decoding_length": room, "min_decoding_length": least, "max_input_length": 0}  # 0: no limit
            given = [prefix] * len(source) if prefix else None
            return lambda **how: self.model.translate_batch(source, given, **options, **lengths, **how)
        begun = [[str(i) for i in request.ids] + prefix for request in prompts]
        rest = {"max_length": room - len(prefix), "min_length": max(0, least - len(prefix))}
        return lambda **how: self.model.generate_batch(begun, include_prompt_in_result=False, **options, **rest, **how)

    def _results(self, plan: Plan, result: Any, room: int) -> list[Written]:
        """A result of CTranslate2's as our records. The token that a full text must end with is put there."""
        if self.encoder is not None:
            texts = [[int(word) for word in words] for words in result.hypotheses]
        else:
            texts = [[*plan.options.prefix, *ids] for ids in result.sequences_ids]
        records = []
        for ids, score in zip(texts, result.scores or [math.nan] * len(texts), strict=True):
            if plan.usage.last is not None and len(ids) == room and ids[-1] not in plan.ends:
                ids[-1] = plan.usage.last
            written = finished(tuple(self.tokens[i] for i in ids), score, plan, room)
            if plan.options.stop and plan.decode is not None:
                stop = _first_stop(written.ids, plan.options.stop, plan.decode)
                written = written if stop is None else stopped(written, stop)
            records.append(written)
        return records

    def generate_stream(self, plan: Plan, prompt: Prompt) -> Iterator[Token]:
        options = arguments(plan) | {"return_scores": True}
        if plan.beams > 1 or plan.options.n_best > 1:
            raise InputError("only one text can be streamed, by greedy search or sampling; ask for beams=1, n_best=1")
        request = self._checked(plan.request(0, prompt))
        return self._streamed(plan, self._call(plan, [request], request.room, options), request.room)

    def _streamed(self, plan: Plan, ask: Callable[..., Sequence[Any]], room: int) -> Iterator[Token]:
        """Tokens that may be the beginning of a stop string wait until it is known."""
        tokens = [self.tokens[i] for i in plan.options.prefix] if self.encoder is None else []
        stops, decode, given = plan.options.stop, plan.decode, 0
        for step in _steps(ask):
            id_ = step.token_id
            if plan.usage.last is not None and len(tokens) + 1 == room:
                id_ = plan.usage.last
            if id_ in plan.ends:
                break
            tokens.append(Token(id_, step.log_prob))
            n = len(tokens)
            if stops and decode is not None:
                ids = [token.id for token in tokens]
                if (stop := find_stop(ids, stops, decode)) is not None:
                    yield from tokens[given : stop.n_tokens]
                    return
                n = n_streamable_tokens(ids, stops, decode)
            yield from tokens[given:n]
            given = max(given, n)
        yield from tokens[given:]

    # Reading

    def read(self, inputs: Tensor, mask: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        found = self._forward(inputs, mask, segments)
        return found if self.encoder is None else self.network.apply_head(found.to(self._dtype()), mask)

    def hidden(self, inputs: Tensor, mask: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        if self.encoder is None:
            raise InputError("CTranslate2 tells the logits of a decoder, not its hidden states; the native engine does")
        return self._forward(inputs, mask, segments)

    def _forward(self, inputs: Tensor, mask: Tensor | None, segments: Tensor | None) -> Tensor:
        """The hidden states of an encoder, the logits of a decoder."""
        if self.encoder is not None and self.decoder is not None:
            raise InputError("an encoder-decoder needs two inputs; CTranslate2 reads with one-sided models only")
        if segments is not None and (self.encoder is None or not self.encoder.n_segments):
            raise InputError("segments were given, but this model has no segment embedding; leave them out")
        stack = self.last
        if inputs.dim() != 2 or inputs.is_floating_point() or 0 in inputs.shape:
            raise InputError(f"tokens have shape {list(inputs.shape)} ({inputs.dtype}); expected ids, [batch, length]")
        real = torch.ones_like(inputs, dtype=torch.bool) if mask is None else mask
        if real.shape != inputs.shape or real.dtype != torch.bool or not bool(real.any(1).all()):
            raise InputError("the mask must be boolean, shaped as the tokens, and show at least one of each row")
        if int(inputs.min()) < 0 or int(inputs.max()) >= (stack.vocabulary or 0):
            raise InputError(f"token ids must be from 0 to {(stack.vocabulary or 0) - 1}")
        if inputs.shape[1] > places(stack):
            raise InputError(f"{inputs.shape[1]} tokens, but this model has only {places(stack)} positions")
        rows = _rows(inputs, real)
        more = {} if segments is None else {"token_type_ids": _rows(segments, real)}
        if self.encoder is None:
            out = self.model.forward_batch(rows, return_log_probs=False)
        else:
            out = self.model.forward_batch(rows, **more).last_hidden_state
        packed = torch.from_numpy(_array(out))
        if bool(real[:, : packed.shape[1]].all()) and packed.shape[1] == inputs.shape[1]:
            found = packed
        else:  # back to where the tokens stood
            found = packed.new_zeros(*inputs.shape, packed.shape[-1])
            found[real] = packed[torch.arange(packed.shape[1]) < real.sum(1, keepdim=True)]
        return found

    def _dtype(self) -> torch.dtype:
        return next(self.network.parameters()).dtype


def _array(view: Any) -> Any:
    """A StorageView as a numpy array of its own, which outlives it."""
    import numpy as np

    return np.array(view)


def _rows(ids: Tensor, real: Tensor) -> list[list[int]]:
    return [row[keep].tolist() for row, keep in zip(ids, real, strict=True)]


def _first_stop(ids: Sequence[int], stops: Sequence[str], decode: Decode) -> Stop | None:
    """The first stop string in a whole text; the tokens up to it are what a search would have stopped at."""
    if not any(stop in decode(ids) for stop in stops):
        return None
    return next(found for n in range(1, len(ids) + 1) if (found := find_stop(ids[:n], stops, decode)) is not None)


def _steps(ask: Callable[..., Sequence[Any]]) -> Iterator[Any]:
    """Each token as soon as it is written; whoever stops listening (or presses Ctrl-C) stops the work too."""
    written: queue.SimpleQueue[Any] = queue.SimpleQueue()
    left = threading.Event()

    def tell(step: Any) -> bool:
        written.put(step)
        return left.is_set()

    try:
        result = ask(asynchronous=True, callback=tell)[0]
        while True:
            try:
                step = written.get(timeout=0.2)
            except queue.Empty:
                if result.done() and written.empty():
                    result.result()  # tells why there is no more
                    return
                continue
            yield step
            if step.is_last:
                return
    finally:
        left.set()
