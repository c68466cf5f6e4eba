"""The search behind a written text: the likeliest tokens at each step, and the tree of beam search."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cutaway.decoding.beam import Beams
from cutaway.decoding.candidates import Candidates, is_alive
from cutaway.decoding.plan import Plan
from cutaway.decoding.processors import process_logits
from cutaway.decoding.sample import Sampling
from cutaway.decoding.state import DecodingState, Finished
from cutaway.decoding.top import LogProbs
from cutaway.engines.native import Native
from cutaway.errors import InputError
from cutaway.generation import Generation, Prompt, Written
from cutaway.models.network import Network
from cutaway.models.usage import Usage

if TYPE_CHECKING:
    from cutaway.model import Model

ALTERNATIVES = 8


@dataclass(frozen=True)
class Candidate:
    """A candidate of beam search.

    `parent`: the number of the candidate that it continues, None at the first step; `score`: the sum of
    log-probabilities; `kept`: whether it is a beam of the next step; `ended`: whether it is a finished text.
    """

    number: int
    parent: int | None
    token: int
    logprob: float
    score: float
    kept: bool
    ended: bool


@dataclass(frozen=True)
class SearchTrace:
    """`written`: the texts, best first, with the alternatives to each of their tokens. `steps`: the candidates of each
    step of beam search; empty for one beam."""

    written: tuple[Written, ...]
    steps: tuple[tuple[Candidate, ...], ...] = ()


def search(
    model: "Model", prompt: Prompt, generation: Generation, check: Callable[[], None] = lambda: None
) -> SearchTrace:
    """Writes from a prompt by the native engine, and records the search. `check` is called before each step and may
    raise."""
    if not generation.alternatives:
        generation = replace(generation, alternatives=ALTERNATIVES)
    decode = None if model.tokenizer is None else model.tokenizer.decode
    plan = Plan(running_network(model), replace(generation, scores=True), model.usage, decode)
    requests, recorder = [plan.request(0, prompt)], _CandidateRecorder(plan.options.beam_groups)
    search = Sampling(plan, requests) if plan.beams == 1 else Beams(plan, requests, recorder.record)
    found: Sequence[Finished] = ()
    while not found:
        check()
        search.step()
        found = search.take_finished()
    [(_, written)] = found
    if not written or math.isnan(written[0].score):
        raise InputError("the model can't write: its numbers have become infinite or NaN; change less of it")
    return SearchTrace(tuple(written), tuple(recorder.steps))


def running_network(model: "Model") -> Network:
    """The native engine's network where it shares the model's weights and taps, so that edits and listeners hold in
    both; else the model's own."""
    network = model.network
    hooked = any(module._forward_hooks or module._forward_pre_hooks for module in network.modules())
    if network.training or hooked or any(weight.dtype != torch.float32 for weight in network.parameters()):
        return network
    engine = model.engine("native")
    assert isinstance(engine, Native)
    return engine.network


class _CandidateRecorder:
    """The candidates of a beam search over one text, step by step."""

    def __init__(self, n_groups: int) -> None:
        self.n_groups = n_groups
        self.steps: list[tuple[Candidate, ...]] = []
        self._continued: list[int | None] = [None]  # each beam's number as a candidate
        self._next: list[int | None] = []
        self._count = 0

    def record(self, group: int, found: Candidates, ends: Tensor, chosen: Candidates, logprobs: LogProbs) -> None:
        if group == 0:
            self.steps.append(())
            self._next = []
        values = logprobs.of(found.parents[0], found.tokens[0]).tolist()
        rows = zip(*(part[0].tolist() for part in (*found.parts, ends)), values, strict=True)
        beams = list(zip(chosen.parents[0].tolist(), chosen.tokens[0].tolist(), strict=True))
        numbers: dict[tuple[int, int], int] = {}
        for score, parent, token, ended, logprob in rows:
            if not is_alive(score):
                continue
            kept = not ended and (parent, token) in beams
            candidate = Candidate(self._count, self._continued[parent], token, logprob, score, kept, ended)
            self.steps[-1] = (*self.steps[-1], candidate)
            numbers[parent, token] = self._count
            self._count += 1
        self._next += [numbers.get(beam) for beam in beams]
        if group == self.n_groups - 1:
            self._continued = self._next


@torch.inference_mode()
def next_logits(
    network: Network, prompt: Prompt, prefix: Sequence[int], usage: Usage, usual: Generation
) -> tuple[Tensor, Tensor]:
    """The logits [V] of the token after a prompt and `prefix`, and these logits processed as `usual` says; on the
    CPU."""
    usage = replace(usage, end=tuple(token for token in usage.end if token not in prefix))  # a prefix may go beyond it
    room = max(len(prefix) + 2, usual.min_new_tokens or 0)
    usual = replace(usual, prefix=tuple(prefix), max_new_tokens=room, stop=(), beams=1, beam_groups=1, diversity=0.0)
    plan = Plan(network, usual, usage)
    state = DecodingState(plan, [plan.request(0, prompt)])
    logits_RV = state.read()
    return logits_RV[0].cpu(), process_logits(state, logits_RV.clone())[0].cpu()
