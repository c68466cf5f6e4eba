"""Greedy search and sampling: one row for each text takes the likeliest token, or one drawn by its probability."""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Self

import torch
from torch import Tensor

from cutaway.decoding import filters
from cutaway.decoding.plan import Plan, Request
from cutaway.decoding.processors import process_logits
from cutaway.decoding.results import finished, score_of, stopped, tokens_of
from cutaway.decoding.state import IDS, Finished, Search
from cutaway.decoding.stops import Stop, find_stop
from cutaway.decoding.top import LogProbs, top
from cutaway.generation import Generation, Token, Written

NO_NUMBER = float("nan")
DRAWN_AT_ONCE = 64


class Sampling(Search):
    """Texts of one row each, written until each ends."""

    def __init__(self, plan: Plan, requests: Sequence[Request]) -> None:
        super().__init__(plan, requests)
        self.noise = [uniform(plan.seed, request) for request in requests] if plan.options.sample else []
        self.ended: dict[int, Stop | None] = {}

    def join(self, other: Self) -> None:
        super().join(other)
        self.noise = self.noise + other.noise

    @torch.inference_mode()
    def take_finished(self) -> list[Finished]:
        done: list[Finished] = [(self.requests[text], [self._text(text)]) for text in self.ended]
        if done:
            order = self.state.drop(list(self.ended))
            self.requests = [self.requests[i] for i in order]
            self.noise = [self.noise[i] for i in order] if self.noise else []
            self.ended = {}
        return done

    @torch.inference_mode()
    def tokens(self) -> tuple[Token, ...]:
        """What is written of the first text."""
        return tokens_of(self.state, 0, self.state.start[0])

    def _text(self, text: int) -> Written:
        plan = self.plan
        tokens = tokens_of(self.state, text, self.state.start[text])
        written = finished(tokens, score_of(tokens, plan.options.length_penalty), plan, self.state.room[text])
        stop = self.ended[text]
        return written if stop is None else stopped(written, stop)

    def write_next(self, logits_RV: Tensor) -> None:
        options, state = self.plan.options, self.state
        last = state.last_places()
        logprobs = LogProbs(logits_RV, options.alternatives) if options.scores else None
        scores_RV = process_logits(state, logits_RV)
        if options.sample:
            numbers = [next(noise) for noise in self.noise]
            chosen_R = draw(warp_logits(scores_RV, options), torch.tensor(numbers, dtype=torch.float64))
        else:
            chosen_R = top(scores_RV, 1)[1].squeeze(1)
        if logprobs is None:
            state.append([chosen_R, torch.full_like(chosen_R, NO_NUMBER, dtype=torch.float32)])
        else:
            each_R = torch.arange(len(chosen_R), device=chosen_R.device)
            state.append([chosen_R, logprobs.of(each_R, chosen_R), *logprobs.others])
        ids, ends = chosen_R.tolist(), self.plan.ends
        self.ended = {text: None for text, token in enumerate(ids) if last[text] or token in ends}
        if options.stop:
            self._look_for_stops(ids)

    def _look_for_stops(self, ids: list[int]) -> None:
        decode = self.plan.decode
        assert decode is not None
        for text in range(len(ids)):
            written = self.state.history[IDS][text, self.state.start[text] :].tolist()
            if written[-1] in self.plan.ends:
                written.pop()
            if written and (stop := find_stop(written, self.plan.options.stop, decode)) is not None:
                self.ended[text] = stop


def warp_logits(scores_RV: Tensor, options: Generation) -> Tensor:
    """The logits whose softmax is drawn from: by the temperature first, then -inf for what is left out."""
    if options.temperature != 1.0:
        scores_RV = filters.temperature(scores_RV, options.temperature)
    if options.top_h is not None:
        scores_RV = filters.top_h(scores_RV, options.top_h)
    if options.top_k is not None:
        scores_RV = filters.top_k(scores_RV, options.top_k)
    if options.top_p is not None and options.top_p < 1.0:
        scores_RV = filters.top_p(scores_RV, options.top_p)
    if options.min_p is not None:
        scores_RV = filters.min_p(scores_RV, options.min_p)
    if options.typical_p is not None and options.typical_p < 1.0:
        scores_RV = filters.typical_p(scores_RV, options.typical_p)
    if options.epsilon_cutoff:
        scores_RV = filters.epsilon_cutoff(scores_RV, options.epsilon_cutoff)
    if options.eta_cutoff:
        scores_RV = filters.eta_cutoff(scores_RV, options.eta_cutoff)
    return scores_RV


def draw(scores_RV: Tensor, numbers_R: Tensor) -> Tensor:
    """One token for each row: where a number between 0 and 1 falls if the probabilities are laid end to end."""
    if scores_RV.device.type == "mps":  # which has no float64
        return draw(scores_RV.cpu(), numbers_R).to(scores_RV.device)
    until_RV = scores_RV.double().softmax(-1).cumsum(-1)
    whole_R = until_RV[:, -1]
    place_R = torch.minimum(numbers_R.to(whole_R) * whole_R, whole_R.nextafter(torch.zeros_like(whole_R)))
    return torch.searchsorted(until_RV, place_R[:, None], right=True).squeeze(1).clamp(max=scores_RV.shape[1] - 1)


def uniform(seed: int, request: Request) -> Iterator[float]:
    """The numbers between 0 and 1 of one text, by a generator of its own."""
    name = f"{seed} {request.index} {request.copy}".encode()
    generator = torch.Generator().manual_seed(int.from_bytes(hashlib.blake2b(name, digest_size=8).digest()) >> 1)
    while True:
        yield from torch.rand(DRAWN_AT_ONCE, generator=generator, dtype=torch.float64).tolist()
