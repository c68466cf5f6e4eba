"""The engine `ctranslate2`: the same model, run by CTranslate2's kernels for CPUs.

It is faster where a step is bound by the overhead of calls (small models, one sentence at a time). An extra:
`pip install cutaway[ctranslate2]`.
"""

import math
import os
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cutaway.decoding.generation import Generation, Prompt, Token, Written
from cutaway.engines.ctranslate2_files import opened
from cutaway.engines.ctranslate2_options import LONGEST, Call, arguments, beams_of
from cutaway.engines.ctranslate2_spec import library, places
from cutaway.engines.engine import Decode, Engine, Precision
from cutaway.errors import InputError
from cutaway.models.network import Network
from cutaway.models.transformer import Transformer
from cutaway.models.usage import Usage

WINDOW = 16  # batches whose texts are sorted by length together


class CTranslate2(Engine):
    """`write` tells the score of a text, but not of each token (their logprob is nan); `stream` tells both."""

    name = "ctranslate2"

    def __init__(
        self,
        network: Network,
        usage: Usage | None = None,
        precision: Precision = "float32",
        *,
        keep: bool = False,
        workers: int = 1,
        threads: int | None = None,
    ) -> None:
        """`keep`: the converted model goes into the cache, and the next one with the same weights is there at once.

        `workers` batches are computed at a time, with `threads` each; None: all cores.
        """
        self.network, self.usage, self.precision = network, usage or Usage(), precision
        supported = library().get_supported_compute_types("cpu")
        if precision not in supported:
            raise InputError(
                f"CTranslate2 has no {precision} on this CPU; choose float32 or int8, or the native engine's "
                f"{precision}"
            )
        kind = "Generator" if not network.has_encoder else "Translator" if network.has_decoder else "Encoder"
        compute = "int8_float32" if precision == "int8" else precision
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        threads = max(1, cores // workers) if threads is None else threads

        def load(folder: Path) -> Any:
            make = getattr(library(), kind)
            return make(str(folder), compute_type=compute, inter_threads=workers, intra_threads=threads)

        self.model = opened(network, self.usage, "int8" if precision == "int8" else "float32", keep, load)
        assert isinstance(network, Transformer)
        self.encoder, self.decoder, self.last = network.config.encoder, network.config.decoder, network.config.last
        self.words = [str(i) for i in range(self.last.vocabulary or 0)]
        self.tokens = [Token(i, math.nan) for i in range(len(self.words))]

    # Writing

    def write(
        self, prompts: Iterable[Prompt], generation: Generation, decode: Decode | None = None
    ) -> Iterator[list[Written]]:
        self._check_writes()
        call = arguments(generation, self.usage, self.network)
        for window in _windows(prompts, WINDOW * generation.batch_tokens):
            yield from self._write(window, generation, call, decode)

    def _write(
        self, window: Sequence[Prompt], generation: Generation, call: Call, decode: Decode | None
    ) -> list[list[Written]]:
        """One call for all texts that may become equally long; CTranslate2 sorts them by length and cuts batches.

        It forces what a prompt has more than the shortest of its batch. Two ways in which that goes wrong are kept out:
        beside a prompt of one token it gives the others' prompts back as text, and a beam search that begins so does
        not end at once, even if that were best.
        """
        beams = beams_of(generation, self.usage)
        alike: dict[tuple[int, int], list[int]] = {}
        for i, prompt in enumerate(window):
            n = 0 if self.encoder is not None else len(prompt.ids) if beams > 1 else min(len(prompt.ids), 2)
            alike.setdefault((self._room(prompt, generation), n), []).append(i)
        found: dict[int, list[Written]] = {}
        for (limit, _), rows in alike.items():
            prompts = [window[i] for i in rows]
            results = self._call(prompts, generation, limit, call)(
                max_batch_size=max(generation.batch_tokens, *(len(prompt.ids) for prompt in prompts)),
                batch_type="tokens",
            )
            for i, result in zip(rows, results, strict=True):
                found[i] = self._told(result, generation, call, decode)
        return [found[i] for i in range(len(window))]

    def _call(
        self, prompts: Sequence[Prompt], generation: Generation, limit: int, call: Call
    ) -> Callable[..., Sequence[Any]]:
        """translate_batch or generate_batch with everything but how to batch and whether to wait."""
        words, prefix = self.words, [self.words[i] for i in generation.prefix]
        least = min(generation.min_new_tokens, limit) if call.ends | call.stops else 0
        if self.encoder is not None:
            source = [[str(i) for i in prompt.ids] for prompt in prompts]
            options = call.options | {"max_decoding_length": limit, "min_decoding_length": least, "max_input_length": 0}
            given = [prefix] * len(source) if prefix else None
            return lambda **how: self.model.translate_batch(source, given, **options, **how)
        begun = [[words[i] for i in prompt.ids] + prefix for prompt in prompts]
        options = call.options | {
            "max_length": limit - len(prefix),
            "min_length": max(0, least - len(prefix)),
            "include_prompt_in_result": False,
        }
        return lambda **how: self.model.generate_batch(begun, **options, **how)

    def _told(self, result: Any, generation: Generation, call: Call, decode: Decode | None) -> list[Written]:
        """A result of CTranslate2's as our records."""
        if self.encoder is not None:
            texts = [[int(word) for word in words] for words in result.hypotheses]
        else:
            texts = [[*generation.prefix, *ids] for ids in result.sequences_ids]
        return [
            self._text(ids, score, call, generation, decode) for ids, score in zip(texts, result.scores, strict=True)
        ]

    def _text(self, ids: list[int], score: float, call: Call, generation: Generation, decode: Decode | None) -> Written:
        end = ids[-1] if ids and (ids[-1] in call.ends or ids[-1] in call.stops) else None
        if end is not None:
            ids = ids[:-1]
        if generation.stop:
            cut = _stopped(ids, generation.stop, decode)
            if cut is not None:
                return Written(tuple(self.tokens[i] for i in ids[:cut]), score, "stop")
        tokens = tuple(self.tokens[i] for i in ids)
        if end is None:
            return Written(tokens, score, "length")
        return Written(tokens, score, "end" if end in call.ends else "stop", end)

    def stream(self, prompt: Prompt, generation: Generation, decode: Decode | None = None) -> Iterator[Token]:
        self._check_writes()
        call = arguments(generation, self.usage, self.network)
        if beams_of(generation, self.usage) > 1 or generation.n_best > 1:
            raise InputError("only one text can be streamed, by greedy search or sampling; ask for beams=1, n_best=1")
        ask = self._call([prompt], generation, self._room(prompt, generation), call)
        if self.encoder is None:
            yield from (self.tokens[i] for i in generation.prefix)
        ids: list[int] = []
        for step in _steps(ask):
            if step.token_id in call.ends or step.token_id in call.stops:
                return
            ids.append(step.token_id)
            yield Token(step.token_id, step.log_prob)
            if generation.stop and _stopped(ids, generation.stop, decode) is not None:
                return

    def _check_writes(self) -> None:
        if self.decoder is None:
            raise InputError("this model has no decoder, so it writes nothing; read() its inputs")

    def _room(self, prompt: Prompt, generation: Generation) -> int:
        """How many tokens may be written after this prompt, which must fit the model."""
        assert self.decoder is not None
        ids = prompt.ids
        stack = self.decoder if self.encoder is None else self.encoder
        if not ids:
            raise InputError("a prompt has no tokens; give at least one (a start or end symbol)")
        if min(ids) < 0 or max(ids) >= (stack.vocabulary or 0):
            wrong = next(i for i in ids if not 0 <= i < (stack.vocabulary or 0))
            raise InputError(f"token id {wrong} is outside this model's {stack.vocabulary}")
        if len(ids) > places(stack):
            raise InputError(f"{len(ids)} tokens, but this model has only {places(stack)} positions in CTranslate2")
        used = 1 if self.encoder is not None else len(ids)  # the start token, or the prompt
        room = places(self.decoder) - used + 1  # the last token is written, but never read
        longest = generation.max_new_tokens
        if longest is None:
            longest = LONGEST if self.usage.max_length is None else max(1, self.usage.max_length - used)
            longest = min(longest, room)
        if longest > room or room < 1:
            most = places(self.decoder)
            raise InputError(f"max_new_tokens={longest} after {used} tokens is more than this model's {most} positions")
        if len(generation.prefix) >= longest:
            raise InputError(f"a prefix of {len(generation.prefix)} tokens leaves none of max_new_tokens={longest}")
        return longest

    # Reading

    def read(self, inputs: Tensor, mask: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
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
        return found if self.encoder is None else self.network.read(found.to(self._dtype()), mask)

    def _dtype(self) -> torch.dtype:
        return next(self.network.parameters()).dtype


def _array(view: Any) -> Any:
    """A StorageView as a numpy array of its own, which outlives it."""
    import numpy as np

    return np.array(view)


def _rows(ids: Tensor, real: Tensor) -> list[list[int]]:
    return [row[keep].tolist() for row, keep in zip(ids, real, strict=True)]


def _windows(prompts: Iterable[Prompt], n_tokens: int) -> Iterator[list[Prompt]]:
    """As many prompts at a time as have about `n_tokens` tokens."""
    window: list[Prompt] = []
    held = 0
    for prompt in prompts:
        window.append(prompt)
        held += len(prompt.ids)
        if held >= n_tokens:
            yield window
            window, held = [], 0
    if window:
        yield window


def _stopped(ids: Sequence[int], stops: Sequence[str], decode: Decode | None) -> int | None:
    """After how many tokens the first of the stop strings is there; None if none is."""
    if decode is None:
        raise InputError("stop strings need a tokenizer: give decode, or stop at ids (stop_ids)")

    def has_stop(n: int) -> bool:
        text = decode(ids[:n])
        return any(stop in text for stop in stops)

    if not has_stop(len(ids)):
        return None
    low, high = 1, len(ids)  # it stays once it is there
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if has_stop(middle) else (middle + 1, high)
    return low


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
