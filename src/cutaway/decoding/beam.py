"""Beam search: the likeliest beginnings of each text are written on side by side, and the best finished texts kept."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from cutaway.decoding.generation import Token, Written
from cutaway.decoding.plan import Asked, Plan
from cutaway.decoding.rows import IDS, Rows
from cutaway.decoding.stops import Stop, find_stop
from cutaway.decoding.texts import finished, stopped, tokens_of

OUT = -1.0e9  # the score of what must not be chosen, but may be if there is nothing else


@dataclass
class Pool:
    """The best finished texts of one prompt (or of one group of its beams), at most `size`, best first."""

    size: int
    texts: list[Written] = field(default_factory=list)

    def takes(self, score: float) -> bool:
        return score > OUT and (len(self.texts) < self.size or score > self.texts[-1].score)

    def add(self, written: Written) -> None:
        self.texts = sorted([*self.texts, written], key=lambda each: -each.score)[: self.size]

    @property
    def worst(self) -> float:
        """What a text must be better than to be taken."""
        return self.texts[-1].score if len(self.texts) == self.size else OUT


@dataclass
class Candidates:
    """The K likeliest continuations of each text, best first, [B, K] each: which row of the text, and which token."""

    scores: Tensor
    parents: Tensor
    tokens: Tensor

    @property
    def parts(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.scores, self.parents, self.tokens


class Beams:
    """Texts that are searched for side by side, each with all its beams; others may join at any step.

    A search ends when no beam can become better than the worst text kept, were it to end now (`early_stopping`: as soon
    as there are as many texts as beams), or when all its likeliest continuations end.
    """

    @torch.inference_mode()
    def __init__(self, plan: Plan, asked: Sequence[Asked]) -> None:
        """Reads the prompts and writes the first token of every beam."""
        self.plan, self.asked = plan, list(asked)
        self.groups = plan.options.beam_groups
        self.width = plan.beams // self.groups  # beams of a group
        self.n_looked_at = max(2, 1 + len(plan.ends)) * self.width  # enough to go on with if all ends are among them
        self.rows = Rows(plan, asked)
        self.rows.widen(plan.beams)
        self.room = [plan.room(each) for each in asked]
        self.pools = [[Pool(self.width) for _ in range(self.groups)] for _ in asked]
        n_prefix = len(plan.options.prefix)
        told = self.rows.tracks[1][:, self.rows.length - n_prefix :].sum(1)
        self.scores_BW = told.view(len(asked), plan.beams).clone()
        self.scores_BW.view(len(asked), self.groups, self.width)[:, :, 1:] = (
            OUT  # beams begin alike: one of them counts
        )
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
        self.asked, self.room, self.pools = self.asked + other.asked, self.room + other.room, self.pools + other.pools
        self.scores_BW = torch.cat((self.scores_BW, other.scores_BW))
        self.done_BG = torch.cat((self.done_BG, other.done_BG))

    @torch.inference_mode()
    def take_finished(self) -> Iterator[tuple[Asked, list[Written]]]:
        """The prompts whose search ended at this step, with their texts."""
        ended = [text for text, done in enumerate(self.done_BG.all(1).tolist()) if done]
        answers = [(self.asked[text], self._best(self.pools[text])) for text in ended]
        if ended:
            order = self.rows.drop(ended)
            self.asked, self.room = [self.asked[i] for i in order], [self.room[i] for i in order]
            self.pools = [self.pools[i] for i in order]
            kept = torch.tensor(order, device=self.plan.device, dtype=torch.long)
            self.scores_BW, self.done_BG = self.scores_BW[kept], self.done_BG[kept]
        return iter(answers)

    def _best(self, pools: Sequence[Pool]) -> list[Written]:
        texts = sorted((text for pool in pools for text in pool.texts), key=lambda each: -each.score)
        return texts[: self.plan.options.n_best]

    def _choose(self) -> None:
        """The next token of every beam, which texts end with it, and which searches are over."""
        B, W = self.n_texts, self.plan.beams
        logprobs_RV = self.rows.logits_RV.float().log_softmax(-1)
        scores_BWV = self.rows.filtered(logprobs_RV).view(B, W, -1)
        told = self._told(logprobs_RV)
        chosen: list[Candidates] = []
        for group in range(self.groups):
            found = self._candidates(group, scores_BWV, chosen)
            ends_BK, stops = self._ends(found)
            self._collect(group, found, ends_BK, stops, told)
            chosen.append(self._continued(found, ends_BK))
            self._settle(group, chosen[-1], ends_BK)
        scores, parents, tokens = (torch.cat(parts, 1) for parts in zip(*(each.parts for each in chosen), strict=True))
        order_R = (torch.arange(B, device=parents.device)[:, None] * W + parents).flatten()
        columns = [tokens.flatten(), logprobs_RV[order_R, tokens.flatten()], *(each[order_R] for each in told.others)]
        self.rows.reorder(order_R)
        self.rows.append(columns)
        self.scores_BW = scores

    def _told(self, logprobs_RV: Tensor) -> "Told":
        n = self.plan.options.alternatives
        if not n:
            return Told(logprobs_RV)
        values_RA, ids_RA = logprobs_RV.topk(n)
        return Told(logprobs_RV, (ids_RA, values_RA))

    def _candidates(self, group: int, scores_BWV: Tensor, before: Sequence[Candidates]) -> Candidates:
        """The likeliest continuations of a group's beams; what groups before it chose at this step is less likely."""
        beams = slice(group * self.width, (group + 1) * self.width)
        scores_BWV = scores_BWV[:, beams]
        if before and self.plan.options.diversity:
            tokens_BX = torch.cat([each.tokens for each in before], 1)
            open_BX = (~self.done_BG[:, :group]).repeat_interleave(self.width, dim=1).to(scores_BWV)
            times_BV = torch.zeros_like(scores_BWV[:, 0]).scatter_add_(1, tokens_BX, open_BX)
            scores_BWV = scores_BWV - self.plan.options.diversity * times_BV[:, None]
        n_each = min(self.n_looked_at, scores_BWV.shape[-1])
        values_BWN, ids_BWN = scores_BWV.topk(n_each)
        totals_BX = (values_BWN + self.scores_BW[:, beams, None]).flatten(1)
        totals_BK, places_BK = totals_BX.topk(self.n_looked_at)
        return Candidates(totals_BK, places_BK // n_each + beams.start, ids_BWN.flatten(1).gather(1, places_BK))

    def _ends(self, found: Candidates) -> tuple[Tensor, dict[tuple[int, int], Stop]]:
        """Which candidates end their text [B, K]: by an end token, for want of room, or by a stop string."""
        ends_BK = self.is_end_V[found.tokens]
        full = [self.rows.written(text) + 1 >= room for text, room in enumerate(self.room)]
        if any(full):
            ends_BK |= torch.tensor(full, device=ends_BK.device)[:, None]
        stops: dict[tuple[int, int], Stop] = {}
        if self.plan.options.stop:
            assert self.plan.decode is not None
            pairs = zip(found.parents.tolist(), found.tokens.tolist(), strict=True)
            for text, (parents, tokens) in enumerate(pairs):
                for place, (parent, token) in enumerate(zip(parents, tokens, strict=True)):
                    row = text * self.plan.beams + parent
                    ids = [*self.rows.tracks[IDS][row, self.rows.start[text] :].tolist(), token]
                    if token in self.plan.ends:
                        ids.pop()
                    if ids and (stop := find_stop(ids, self.plan.options.stop, self.plan.decode)) is not None:
                        stops[text, place] = stop
                        ends_BK[text, place] = True
        return ends_BK, stops

    def _collect(
        self, group: int, found: Candidates, ends_BK: Tensor, stops: dict[tuple[int, int], Stop], told: "Told"
    ) -> None:
        """Candidates that end, if they are among the best, go to the pool."""
        ending_BW = ends_BK[:, : self.width] & ~self.done_BG[:, group : group + 1]
        ended = ending_BW.nonzero().tolist()
        if not ended:
            return
        scores, parents, tokens = (part[:, : self.width].tolist() for part in found.parts)
        plan, rows = self.plan, self.rows
        for text, place in ended:
            pool = self.pools[text][group]
            score = scores[text][place] / (rows.written(text) + 1) ** plan.options.length_penalty
            if not pool.takes(score):
                continue
            row = text * plan.beams + parents[text][place]
            last = told.token(row, tokens[text][place])
            written = finished((*tokens_of(rows, row, rows.start[text]), last), score, plan.ends, plan.usage.end)
            stop = stops.get((text, place))
            pool.add(written if stop is None else stopped(written, stop))

    def _continued(self, found: Candidates, ends_BK: Tensor) -> Candidates:
        """The best candidates that do not end: the group's beams at the next step."""
        open_BK = found.scores + ends_BK * OUT
        scores_BW, places_BW = open_BK.topk(self.width)
        return Candidates(scores_BW, found.parents.gather(1, places_BW), found.tokens.gather(1, places_BW))

    def _settle(self, group: int, chosen: Candidates, ends_BK: Tensor) -> None:
        """Which searches are over."""
        options, device = self.plan.options, ends_BK.device
        pools = [pools[group] for pools in self.pools]
        lengths = [(self.rows.written(text) + 1) ** options.length_penalty for text in range(self.n_texts)]
        worst_B = torch.tensor([pool.worst for pool in pools], device=device)
        hopeless_B = chosen.scores[:, 0] / torch.tensor(lengths, device=device) <= worst_B
        over_B = hopeless_B | ends_BK.all(1)
        if options.early_stopping:
            over_B |= torch.tensor([len(pool.texts) == pool.size for pool in pools], device=device)
        self.done_BG[:, group] |= over_B


@dataclass(frozen=True)
class Told:
    """What is told of each token: its log-probability before any filter, and the likeliest tokens (ids, values)."""

    logprobs: Tensor  # [R, V]
    others: tuple[Tensor, ...] = ()

    def token(self, row: int, id: int) -> Token:  # noqa: A002
        if not self.others:
            return Token(id, float(self.logprobs[row, id]))
        ids, values = (part[row].tolist() for part in self.others)
        return Token(id, float(self.logprobs[row, id]), tuple(zip(ids, values, strict=True)))
