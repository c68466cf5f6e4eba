"""Beam search: the likeliest beginnings of each text are written on side by side, and the best finished texts kept."""

from collections.abc import Callable, Sequence
from typing import Self

import torch
from torch import Tensor

from cutaway.decoding.candidates import NEG_INF, Candidates, HypothesisPool, is_alive
from cutaway.decoding.constraints import ConstraintBanks
from cutaway.decoding.plan import Plan, Request
from cutaway.decoding.processors import process_logits
from cutaway.decoding.results import finished, stopped, tokens_of
from cutaway.decoding.state import IDS, LOGPROBS, Finished, Search
from cutaway.decoding.stops import Stop, find_stop
from cutaway.decoding.top import LogProbs, top
from cutaway.errors import InputError
from cutaway.generation import Written

Stops = dict[tuple[int, int], Stop]
"""By text and place among its candidates."""
OnCandidates = Callable[[int, Candidates, Tensor, Candidates, LogProbs], None]
"""Hears of a group's candidates at each step: its number, the candidates, which of them end, the beams chosen, and
the step's log-probabilities."""


class Beams(Search):
    """Texts that are searched for side by side, each with all its beams.

    A search ends when no beam can become better than the worst text kept, were it to end now (`early_stopping`: as soon
    as there are as many texts as beams; "never": even if it became as long as it may), or when all its likeliest
    continuations end. These are the rules of transformers, so that the texts are too.
    """

    def __init__(self, plan: Plan, requests: Sequence[Request], on_candidates: OnCandidates | None = None) -> None:
        super().__init__(plan, requests)
        self.on_candidates = on_candidates
        self.groups = plan.options.beam_groups
        self.width = plan.beams // self.groups  # beams of a group
        self.n_looked_at = max(2, 1 + len(plan.ends)) * self.width  # enough to go on with if all ends are among them
        self.banks = ConstraintBanks(plan.options.force) if plan.options.force else None
        self.pools = [[HypothesisPool(self.width) for _ in range(self.groups)] for _ in requests]
        self.scores_BW = torch.zeros(len(requests), 1, device=plan.device)
        self.done_BG = torch.zeros(len(requests), self.groups, dtype=torch.bool, device=plan.device)
        self.is_end_V = torch.zeros(plan.vocabulary, dtype=torch.bool, device=plan.device)
        self.is_end_V[sorted(plan.ends)] = True

    @torch.inference_mode()
    def join(self, other: Self) -> None:
        super().join(other)
        self.pools = self.pools + other.pools
        self.scores_BW = torch.cat((self.scores_BW, other.scores_BW))
        self.done_BG = torch.cat((self.done_BG, other.done_BG))

    @torch.inference_mode()
    def take_finished(self) -> list[Finished]:
        ended = [text for text, done in enumerate(self.done_BG.all(1).tolist()) if done]
        answers: list[Finished] = [(self.requests[text], self._best(text)) for text in ended]
        if ended:
            order = self.state.drop(ended)
            self.requests, self.pools = [self.requests[i] for i in order], [self.pools[i] for i in order]
            kept = torch.tensor(order, device=self.plan.device, dtype=torch.long)
            self.scores_BW, self.done_BG = self.scores_BW[kept], self.done_BG[kept]
        return answers

    def _best(self, text: int) -> list[Written]:
        texts = sorted((each for pool in self.pools[text] for each in pool.texts), key=lambda each: -each.score)
        if not texts and self.banks is not None:
            raise InputError(
                f"prompt {self.requests[text].index}: no text of {self.state.room[text]} tokens was found that holds "
                "all that is forced; allow more with max_new_tokens, or force less"
            )
        return texts[: self.plan.options.n_best]

    def write_next(self, logits_RV: Tensor) -> None:
        """Writes the next token of every beam, keeps texts that end with it, and marks the searches that are over."""
        options, state = self.plan.options, self.state
        is_first = state.written(0) == len(options.prefix)
        if is_first:
            self.scores_BW = state.history[LOGPROBS].sum(1, keepdim=True)  # of the forced prefix
        logprobs = LogProbs(logits_RV, options.alternatives)
        if self._only_hides():  # hiding tokens and normalising commute
            scores_RV, missing_RV = process_logits(state, logits_RV), logprobs.total_R1
        else:
            scores_RV = process_logits(state, logits_RV - logprobs.total_R1)
            missing_RV = torch.zeros_like(logprobs.total_R1)
            if options.renormalize:
                scores_RV = scores_RV.log_softmax(-1)
        chosen: list[Candidates] = []
        for group in range(self.groups):
            found = self._candidates(group, scores_RV, missing_RV, chosen)
            chosen.append(self._advance(group, found, logprobs))
        scores, parents, tokens = (torch.cat(parts, 1) for parts in zip(*(each.parts for each in chosen), strict=True))
        texts_B1 = torch.arange(self.n_texts, device=parents.device)[:, None]
        order_R, tokens_R = (texts_B1 * state.width + parents).flatten(), tokens.flatten()
        columns = [tokens_R, logprobs.of(order_R, tokens_R), *(each[order_R] for each in logprobs.others)]
        if is_first:
            state.widen(self.plan.beams)  # beams begin alike
        else:
            state.reorder(order_R)
        state.append(columns)
        self.scores_BW = scores

    def _only_hides(self) -> bool:
        """Whether the scores of this step are as they are or -inf."""
        plan, state = self.plan, self.state
        forces_first = plan.usage.first is not None and any(state.first_places())
        forces_last = plan.usage.last is not None and any(state.last_places())
        return not (plan.reweighs or forces_first or forces_last)

    def _candidates(
        self, group: int, scores_RV: Tensor, missing_R1: Tensor, before: Sequence[Candidates]
    ) -> Candidates:
        """The likeliest continuations of a group's beams; what groups before it chose at this step is less likely.

        A score lacks `missing` to be a log-probability. At the first step each text has one beam.
        """
        B, K = self.n_texts, self.n_looked_at
        beams = slice(0, 1) if self.state.width == 1 else slice(group * self.width, (group + 1) * self.width)
        scores_BWV = scores_RV.view(B, self.state.width, -1)[:, beams]
        if before and self.plan.options.diversity:
            tokens_BX = torch.cat([each.tokens for each in before], 1)
            open_BX = (~self.done_BG[:, :group]).repeat_interleave(self.width, dim=1).to(scores_BWV)
            times_BV = torch.zeros_like(scores_BWV[:, 0]).scatter_add_(1, tokens_BX, open_BX)
            scores_BWV = scores_BWV - self.plan.options.diversity * times_BV[:, None]
        so_far_BW1 = (self.scores_BW[:, beams] - missing_R1.view(B, -1)[:, beams]).unsqueeze(-1)
        values_XN, ids_XN = top(scores_BWV.flatten(0, 1), K)
        totals_BK, places_BK = (values_XN.view(*so_far_BW1.shape[:2], -1) + so_far_BW1).flatten(1).topk(K)
        n_each = values_XN.shape[1]
        found = Candidates(totals_BK, places_BK // n_each + beams.start, ids_XN.view(B, -1).gather(1, places_BK))
        return found if self.banks is None else self.banks.extended(found, scores_BWV + so_far_BW1, self._histories())

    def _advance(self, group: int, found: Candidates, logprobs: LogProbs) -> Candidates:
        """Candidates that end go to the group's pool, if among the best; the best others are its next beams."""
        ends_BK, stops = self._ends(found)
        open_BK = found.scores + ends_BK * NEG_INF
        if self.banks is None:
            scores_BW, places_BW = open_BK.topk(self.width)
            ended_BK = ends_BK[:, : self.width]
        else:
            held = self.banks.held(found, self._histories())
            places_BW = self.banks.dealt(open_BK, held, self.width)
            scores_BW = open_BK.gather(1, places_BW)
            ended_BK = ends_BK & (torch.tensor(held, device=ends_BK.device) == self.banks.n_tokens)
        self._collect(group, found, ended_BK & ~self.done_BG[:, group : group + 1], stops, logprobs)
        self._settle(group, scores_BW.amax(1), ends_BK.all(1))
        chosen = Candidates(scores_BW, found.parents.gather(1, places_BW), found.tokens.gather(1, places_BW))
        if self.on_candidates is not None:
            self.on_candidates(group, found, ends_BK, chosen, logprobs)
        return chosen

    def _ends(self, found: Candidates) -> tuple[Tensor, Stops]:
        """Which candidates end their text [B, K]: by an end token, for want of room, or by a stop string."""
        ends_BK = self.is_end_V[found.tokens]
        if any(full := self.state.last_places()):
            ends_BK |= torch.tensor(full, device=ends_BK.device)[:, None]
        stops: Stops = {}
        if self.plan.options.stop:
            assert self.plan.decode is not None
            histories = self._histories()
            for text, places in enumerate(zip(found.parents.tolist(), found.tokens.tolist(), strict=True)):
                for place, (parent, token) in enumerate(zip(*places, strict=True)):
                    ids = [*histories[text][parent], *([] if token in self.plan.ends else [token])]
                    if ids and (stop := find_stop(ids, self.plan.options.stop, self.plan.decode)) is not None:
                        stops[text, place] = stop
                        ends_BK[text, place] = True
        return ends_BK, stops

    def _histories(self) -> list[list[list[int]]]:
        """What is written of each beam of each text."""
        ids, width = self.state.history[IDS].tolist(), self.state.width
        return [
            [row[start:] for row in ids[text * width : (text + 1) * width]]
            for text, start in enumerate(self.state.start)
        ]

    def _collect(self, group: int, found: Candidates, ended_BK: Tensor, stops: Stops, logprobs: LogProbs) -> None:
        """Puts candidates that ended into the pool."""
        ended = ended_BK.nonzero().tolist()
        if not ended:
            return
        scores, parents, tokens = (part.tolist() for part in found.parts)
        plan, state = self.plan, self.state
        for text, place in ended:
            pool = self.pools[text][group]
            score = scores[text][place] / (state.written(text) + 1) ** plan.options.length_penalty
            if not is_alive(scores[text][place]) or not pool.takes(score):
                continue
            row = text * state.width + parents[text][place]
            last = logprobs.token(row, tokens[text][place])
            written = finished((*tokens_of(state, row, state.start[text]), last), score, plan, state.room[text])
            stop = stops.get((text, place))
            pool.add(written if stop is None else stopped(written, stop))

    def _settle(self, group: int, best_B: Tensor, all_end_B: Tensor) -> None:
        """Which searches are over; `best` is the score of the best beam that goes on."""
        options, device = self.plan.options, best_B.device
        pools = [pools[group] for pools in self.pools]
        lengths = [self._reachable(text) ** options.length_penalty for text in range(self.n_texts)]
        worst_B = torch.tensor([pool.worst for pool in pools], device=device)
        over_B = (best_B / torch.tensor(lengths, device=device) <= worst_B) | all_end_B
        if options.early_stopping is True:
            over_B |= torch.tensor([pool.is_full for pool in pools], device=device)
        self.done_BG[:, group] |= over_B

    def _reachable(self, text: int) -> int:
        """The length at which a text that goes on is compared with those that are finished."""
        options = self.plan.options
        if options.early_stopping == "never" and options.length_penalty > 0:
            return self.state.room[text]  # the longest, which lowers its score least
        return self.state.written(text) + 1
