"""Beam search: the likeliest beginnings of each text are written on side by side, and the best finished texts kept."""

from collections.abc import Sequence

import torch
from torch import Tensor

from cutaway.decoding.candidates import NEG_INF, Candidates, HypothesisPool, is_alive
from cutaway.decoding.constraints import ConstraintBanks
from cutaway.decoding.plan import Plan, Request
from cutaway.decoding.processors import process_logits
from cutaway.decoding.results import finished, stopped, tokens_of
from cutaway.decoding.state import IDS, LOGPROBS, DecodingState
from cutaway.decoding.stops import Stop, find_stop
from cutaway.decoding.top import LogProbs, top
from cutaway.errors import InputError
from cutaway.generation import Written

Stops = dict[tuple[int, int], Stop]
"""By text and place among its candidates."""


class Beams:
    """Texts that are searched for side by side, each with all its beams; others may join at any step.

    A search ends when no beam can become better than the worst text kept, were it to end now (`early_stopping`: as soon
    as there are as many texts as beams; "never": even if it became as long as it may), or when all its likeliest
    continuations end. These are the rules of transformers, so that the texts are too.
    """

    @torch.inference_mode()
    def __init__(self, plan: Plan, asked: Sequence[Request]) -> None:
        """Reads the prompts and writes the first token of every beam."""
        self.plan, self.asked = plan, list(asked)
        self.groups = plan.options.beam_groups
        self.width = plan.beams // self.groups  # beams of a group
        self.n_looked_at = max(2, 1 + len(plan.ends)) * self.width  # enough to go on with if all ends are among them
        self.banks = ConstraintBanks(plan.options.force) if plan.options.force else None
        self.rows = DecodingState(plan, asked)
        self.pools = [[HypothesisPool(self.width) for _ in range(self.groups)] for _ in asked]
        self.scores_BW = self.rows.tracks[LOGPROBS].sum(1, keepdim=True)  # of the forced prefix
        self.done_BG = torch.zeros(len(asked), self.groups, dtype=torch.bool, device=plan.device)
        self.is_end_V = torch.zeros(plan.vocabulary, dtype=torch.bool, device=plan.device)
        self.is_end_V[sorted(plan.ends)] = True
        self._choose()

    @property
    def n_texts(self) -> int:
        return len(self.asked)

    @torch.inference_mode()
    def step(self) -> None:
        """Writes one token of every beam."""
        self.rows.step()
        self._choose()

    @torch.inference_mode()
    def join(self, other: "Beams") -> None:
        """The texts of `other` are searched for along with these."""
        self.rows.join(other.rows)
        self.asked, self.pools = self.asked + other.asked, self.pools + other.pools
        self.scores_BW = torch.cat((self.scores_BW, other.scores_BW))
        self.done_BG = torch.cat((self.done_BG, other.done_BG))

    @torch.inference_mode()
    def take_finished(self) -> list[tuple[Request, list[Written]]]:
        """The prompts whose search ended at this step, with their texts; they are searched for no further."""
        ended = [text for text, done in enumerate(self.done_BG.all(1).tolist()) if done]
        answers = [(self.asked[text], self._best(text)) for text in ended]
        if ended:
            order = self.rows.drop(ended)
            self.asked, self.pools = [self.asked[i] for i in order], [self.pools[i] for i in order]
            kept = torch.tensor(order, device=self.plan.device, dtype=torch.long)
            self.scores_BW, self.done_BG = self.scores_BW[kept], self.done_BG[kept]
        return answers

    def _best(self, text: int) -> list[Written]:
        texts = sorted((each for pool in self.pools[text] for each in pool.texts), key=lambda each: -each.score)
        if not texts and self.banks is not None:
            raise InputError(
                f"prompt {self.asked[text].index}: no text of {self.rows.room[text]} tokens was found that holds all "
                "that is forced; allow more with max_new_tokens, or force less"
            )
        return texts[: self.plan.options.n_best]

    def _choose(self) -> None:
        """The next token of every beam, which texts end with it, and which searches are over."""
        options, rows = self.plan.options, self.rows
        logits_RV = rows.logits_RV
        told = LogProbs(logits_RV, options.alternatives)
        if self._only_hides():
            scores_RV, missing_RV = (
                process_logits(rows, logits_RV),
                told.total_R1,
            )  # hiding tokens and normalising commute
        else:
            scores_RV, missing_RV = process_logits(rows, logits_RV - told.total_R1), torch.zeros_like(told.total_R1)
            if options.renormalize:
                scores_RV = scores_RV.log_softmax(-1)
        chosen: list[Candidates] = []
        for group in range(self.groups):
            found = self._candidates(group, scores_RV, missing_RV, chosen)
            chosen.append(self._advance(group, found, told))
        scores, parents, tokens = (torch.cat(parts, 1) for parts in zip(*(each.parts for each in chosen), strict=True))
        texts_B1 = torch.arange(self.n_texts, device=parents.device)[:, None]
        order_R = (texts_B1 * rows.width + parents).flatten()
        columns = [tokens.flatten(), told.logprobs(order_R, tokens.flatten()), *(each[order_R] for each in told.others)]
        if rows.width == 1:
            rows.widen(self.plan.beams)  # the first step: beams begin alike
        else:
            rows.reorder(order_R)
        rows.append(columns)
        self.scores_BW = scores

    def _only_hides(self) -> bool:
        """Whether the scores of this step are as they are or -inf."""
        plan, rows = self.plan, self.rows
        forces_first = plan.usage.first is not None and any(rows.first_places())
        forces_last = plan.usage.last is not None and any(rows.last_places())
        return not (plan.reweighs or forces_first or forces_last)

    def _candidates(
        self, group: int, scores_RV: Tensor, missing_R1: Tensor, before: Sequence[Candidates]
    ) -> Candidates:
        """The likeliest continuations of a group's beams; what groups before it chose at this step is less likely.

        A score lacks `missing` to be a log-probability. At the first step each text has one beam.
        """
        B, K = self.n_texts, self.n_looked_at
        beams = slice(0, 1) if self.rows.width == 1 else slice(group * self.width, (group + 1) * self.width)
        scores_BWV = scores_RV.view(B, self.rows.width, -1)[:, beams]
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

    def _advance(self, group: int, found: Candidates, told: LogProbs) -> Candidates:
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
        self._collect(group, found, ended_BK & ~self.done_BG[:, group : group + 1], stops, told)
        self._settle(group, scores_BW.amax(1), ends_BK.all(1))
        return Candidates(scores_BW, found.parents.gather(1, places_BW), found.tokens.gather(1, places_BW))

    def _ends(self, found: Candidates) -> tuple[Tensor, Stops]:
        """Which candidates end their text [B, K]: by an end token, for want of room, or by a stop string."""
        ends_BK = self.is_end_V[found.tokens]
        if any(full := self.rows.last_places()):
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
        ids, width = self.rows.tracks[IDS].tolist(), self.rows.width
        return [
            [row[start:] for row in ids[text * width : (text + 1) * width]]
            for text, start in enumerate(self.rows.start)
        ]

    def _collect(self, group: int, found: Candidates, ended_BK: Tensor, stops: Stops, told: LogProbs) -> None:
        """Puts candidates that ended into the pool."""
        ended = ended_BK.nonzero().tolist()
        if not ended:
            return
        scores, parents, tokens = (part.tolist() for part in found.parts)
        plan, rows = self.plan, self.rows
        for text, place in ended:
            pool = self.pools[text][group]
            score = scores[text][place] / (rows.written(text) + 1) ** plan.options.length_penalty
            if not is_alive(scores[text][place]) or not pool.takes(score):
                continue
            row = text * rows.width + parents[text][place]
            last = told.token(row, tokens[text][place])
            written = finished((*tokens_of(rows, row, rows.start[text]), last), score, plan, rows.room[text])
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
            return self.rows.room[text]  # the longest, which lowers its score least
        return self.rows.written(text) + 1
