"""How a model came to what it wrote: the likeliest words at each step, and beam search as the tree that it is."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cutaway.decoding.beam import Beams
from cutaway.decoding.candidates import Candidates, is_alive
from cutaway.decoding.plan import Plan, Request
from cutaway.decoding.processors import process_logits
from cutaway.decoding.sample import Sampling
from cutaway.decoding.state import DecodingState
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
    """One continuation that beam search looked at.

    `parent` is the number of the candidate it continues, None at the first step; `score` the sum of log-probabilities.
    `kept`: it is a beam of the next step; `ended`: it is a finished text.
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
    """`written`: the texts, best first, with the alternatives of each of their tokens. `steps`: of beam search, what
    was looked at, step by step; empty for one beam."""

    written: tuple[Written, ...]
    steps: tuple[tuple[Candidate, ...], ...] = ()


def search(
    model: "Model", prompt: Prompt, generation: Generation, check: Callable[[], None] = lambda: None
) -> SearchTrace:
    """What the native engine writes for this prompt, and the way to it. `check` is called before each step and may
    raise."""
    if not generation.alternatives:
        generation = replace(generation, alternatives=ALTERNATIVES)
    decode = None if model.tokenizer is None else model.tokenizer.decode
    plan = Plan(quickest(model), replace(generation, scores=True), model.usage, decode)
    asked = [plan.ask(0, prompt)]
    texts = Sampling(plan, asked) if plan.beams == 1 else _SeenBeams(plan, asked)
    while not (found := texts.take_finished()):
        check()
        texts.step()
    [(_, written)] = found
    if not written or math.isnan(written[0].score):
        raise InputError("it can't write: what it computes has become infinite or no number at all; change less of it")
    return SearchTrace(tuple(written), tuple(texts.steps) if isinstance(texts, _SeenBeams) else ())


def quickest(model: "Model") -> Network:
    """The native engine's network, whose weights and taps are the model's own: what is changed or heard in one is in
    both. The model's itself, where that is not so."""
    network = model.network
    hooked = any(module._forward_hooks or module._forward_pre_hooks for module in network.modules())
    if network.training or hooked or any(weight.dtype != torch.float32 for weight in network.parameters()):
        return network
    engine = model.engine("native")
    assert isinstance(engine, Native)
    return engine.network


class _SeenBeams(Beams):
    """Beam search that takes down its candidates."""

    def __init__(self, plan: Plan, asked: Sequence[Request]) -> None:
        self.steps: list[tuple[Candidate, ...]] = []
        self._continued: list[int | None] = [None]  # of each beam the candidate that it is
        self._next: list[int | None] = []
        self._count = 0
        super().__init__(plan, asked)

    def _advance(self, group: int, found: Candidates, told: LogProbs) -> Candidates:
        if group == 0:
            self.steps.append(())
            self._next = []
        ends, _ = self._ends(found)
        chosen = super()._advance(group, found, told)
        looked_at = [part[0].tolist() for part in (*found.parts, ends)]
        logprobs = told.logprobs(found.parents[0], found.tokens[0]).tolist()
        beams = list(zip(chosen.parents[0].tolist(), chosen.tokens[0].tolist(), strict=True))
        numbers: dict[tuple[int, int], int] = {}
        for score, parent, token, ended, logprob in zip(*looked_at, logprobs, strict=True):
            if not is_alive(score):
                continue
            kept = not ended and (parent, token) in beams
            candidate = Candidate(self._count, self._continued[parent], token, logprob, score, kept, ended)
            self.steps[-1] = (*self.steps[-1], candidate)
            numbers[parent, token] = self._count
            self._count += 1
        self._next += [numbers.get(beam) for beam in beams]
        if group == self.groups - 1:
            self._continued = self._next
        return chosen


@torch.inference_mode()
def next_logits(
    network: Network, prompt: Prompt, prefix: Sequence[int], usage: Usage, usual: Generation
) -> tuple[Tensor, Tensor]:
    """The logits [V] of the token that comes after a prompt and what is written so far, and what `usual` makes of them;
    on the CPU."""
    usage = replace(usage, end=tuple(token for token in usage.end if token not in prefix))  # one may look beyond it
    room = max(len(prefix) + 2, usual.min_new_tokens or 0)
    usual = replace(usual, prefix=tuple(prefix), max_new_tokens=room, stop=(), beams=1, beam_groups=1, diversity=0.0)
    plan = Plan(network, usual, usage)
    rows = DecodingState(plan, [plan.ask(0, prompt)])
    logits_V = rows.logits_RV[0].float().cpu()
    return logits_V, process_logits(rows, rows.logits_RV.clone())[0].float().cpu()
