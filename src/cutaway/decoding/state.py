"""Texts that are written side by side: their tokens, the decoder's cache and the encoder's memory, kept in step."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from cutaway.decoding.batch_cache import BatchCache
from cutaway.decoding.history import TokenHistory
from cutaway.decoding.plan import Plan, Request
from cutaway.generation import Written
from cutaway.parts import masks
from cutaway.parts.cache import Memory
from cutaway.parts.tap import anybody_listens

IDS, LOGPROBS, OTHER_IDS, OTHER_LOGPROBS = range(4)  # the columns of a TokenHistory
WORTH_TRIMMING = 8  # columns that no row needs any more


class DecodingState:
    """Some texts, each of `width` neighbouring rows (its beams). All end in the same column: younger ones begin later.

    column        0  1  2  3  4  5
    an old text   a  b  c  d  e  f      first = 0
    one that joined after 3 steps
                  ·  ·  ·  u  v  w      first = 3: the mask hides what is before
    """

    def __init__(self, plan: Plan, requests: Sequence[Request]) -> None:
        self.plan = plan
        self.width = 1
        begun = [plan.beginning(request) for request in requests]
        length, n_prefix = max(map(len, begun)), len(plan.options.prefix)
        self.first = [length - len(ids) for ids in begun]
        self.start = [length - n_prefix] * len(requests)  # the column of the first written token
        self.room = [request.room for request in requests]
        self.least = [request.least for request in requests]
        self.sources = [request.ids for request in requests]
        ids_RT = torch.tensor([ids[:1] * (length - len(ids)) + ids for ids in begun], device=plan.device)
        room = min(max(self.room), max(32, 2 * max(map(len, self.sources))))
        self.memory: Memory | None = None
        self.cache = BatchCache(capacity=length + room) if plan.options.cached else None
        self.begun = False
        self._fed = 0  # columns that are in the cache
        logprobs_RT, n_others = torch.zeros_like(ids_RT, dtype=torch.float32), plan.options.alternatives
        columns = [ids_RT, logprobs_RT]
        if n_others:
            columns += [each[..., None].expand(-1, -1, n_others) for each in (torch.zeros_like(ids_RT), logprobs_RT)]
        self.history = TokenHistory(columns, length + room)

    def read(self) -> Tensor:
        """Reads the prompts at first, then the newest token of every row. Gives the logits of the next one [R, V], in
        float32."""
        network, n = self.plan.network, 1
        if not self.begun:
            n += len(self.plan.options.prefix)
            if network.config.encoder is not None:
                self.memory = network.encode(*_padded(self.sources, self.plan.device))
        elif self.plan.context is not None and self.length > self.plan.context:
            self._forget(min(self.first))  # learned positions are counted by column, hidden ones too
        ids_RT = self.ids()
        new_RT = ids_RT if self.cache is None else ids_RT[:, self._fed :]
        mask = None
        if self._fed == 0 and any(self.first):
            columns = torch.arange(ids_RT.shape[1], device=ids_RT.device)
            mask = columns >= self.first_columns()[:, None]
        hidden_RTD = network.decode_hidden(new_RT, self.memory, self.cache, mask)
        if self.cache is not None:
            self._fed = ids_RT.shape[1]
        logits_RTV = network.apply_head(hidden_RTD[:, -n:])
        if not self.begun:
            self.begun = True
            self._score_prefix(logits_RTV[:, :-1])
        logits_RV = logits_RTV[:, -1]
        kept = logits_RV.dtype == torch.float32 and anybody_listens()  # by a listener; filters write in place
        return logits_RV.clone() if kept else logits_RV.float()

    def _score_prefix(self, logits_RPV: Tensor) -> None:
        """The log-probabilities of a forced prefix; a prompt has none."""
        if n := logits_RPV.shape[1]:
            logprobs_RPV = logits_RPV.float().log_softmax(-1)
            ids_RP1 = self.ids()[:, -n:, None]
            self.history[LOGPROBS][:, -n:] = logprobs_RPV.gather(-1, ids_RP1).squeeze(-1)
            if n_others := self.plan.options.alternatives:
                values, ids = logprobs_RPV.topk(n_others)
                self.history[OTHER_LOGPROBS][:, -n:], self.history[OTHER_IDS][:, -n:] = values, ids

    @property
    def n_texts(self) -> int:
        return len(self.first)

    @property
    def length(self) -> int:
        return self.history.length

    def written(self, text: int) -> int:
        """How many tokens of a text are written, the prefix included."""
        return self.length - self.start[text]

    def last_places(self) -> list[bool]:
        """Of each text whether its next token takes the last place."""
        return [self.length - start + 1 >= room for start, room in zip(self.start, self.room, strict=True)]

    def first_places(self) -> list[bool]:
        """Of each text whether its next token comes after a single one."""
        return [self.length - first == 1 for first in self.first]

    def begins_to_choose(self, text: int) -> bool:
        """Whether the next token is the first that is not forced."""
        begun = self.start[text] - self.first[text]
        return self.written(text) == (1 if begun == 1 and self.plan.usage.first is not None else 0)

    def ids(self) -> Tensor:
        """All tokens so far, [R, T]."""
        return self.history[IDS]

    def append(self, columns: Sequence[Tensor]) -> None:
        """The next token of every row, its log-probability, and what else was likely, if that is asked for."""
        self.history.append(columns)

    def first_columns(self) -> Tensor:
        """Of each row the column where it begins."""
        first = [column for column in self.first for _ in range(self.width)]
        return torch.tensor(first, device=self.plan.device)

    def sources_by_row(self) -> Tensor:
        """The source of each row, or its prompt; shorter ones repeat their first token."""
        longest = max(map(len, self.sources))
        padded = [ids[:1] * (longest - len(ids)) + ids for ids in self.sources]
        return torch.tensor(padded, device=self.plan.device).repeat_interleave(self.width, dim=0)

    def widen(self, width: int) -> None:
        """Each text becomes so many rows, all alike, which share its memory."""
        self.history.select(torch.arange(self.n_texts, device=self.plan.device).repeat_interleave(width))
        if self.cache is not None:
            self.cache.widen(width)
        if self.memory is not None:
            self.memory = Memory(self.memory.states, self.memory.mask, self.memory.final, repeats=width)
        self.width = width

    def reorder(self, rows: Tensor) -> None:
        """Rows go to other rows of their text: row i becomes what row rows[i] was."""
        if len(rows) == self.n_texts * self.width and torch.equal(rows, torch.arange(len(rows), device=rows.device)):
            return
        self.history.select(rows)
        if self.cache is not None:
            self.cache.reorder(rows)

    def drop(self, gone: Sequence[int]) -> list[int]:
        """These texts leave; gives those that stay in their new order. The last ones take the free places, so that
        little is copied."""
        n, leaving = self.n_texts - len(gone), set(gone)
        here = [text for text in sorted(leaving) if text < n]
        there = [text for text in range(n, self.n_texts) if text not in leaving]
        order = list(range(n))
        for to, from_ in zip(here, there, strict=True):
            order[to] = from_
        device = self.plan.device
        wide = [text * self.width + i for text in order for i in range(self.width)]
        self.history.select(torch.tensor(wide, device=device, dtype=torch.long))
        self.first, self.start, self.room, self.least = (
            [each[text] for text in order] for each in (self.first, self.start, self.room, self.least)
        )
        self.sources = [self.sources[text] for text in order]
        if n == 0:
            return order
        if self.cache is not None:
            holes, fillers = (torch.tensor(texts, device=device, dtype=torch.long) for texts in (here, there))
            self.cache.move(holes, fillers, n, self.width)
        if self.memory is not None:
            self.memory = self.memory.select(torch.tensor(order, device=device))
        self._trim()
        return order

    def _trim(self) -> None:
        """Columns before the oldest text's first, and of the memory after the longest source, are of no use."""
        if min(self.first) >= max(WORTH_TRIMMING, self.length // 4):
            self._forget(min(self.first))
        if self.memory is not None and (longest := max(map(len, self.sources))) < self.memory.states.shape[1]:
            self.memory = self.memory.padded(longest)
            if self.cache is not None:
                self.cache.trim_memory(longest)

    def _forget(self, n_columns: int) -> None:
        self.history.trim(n_columns)
        self.first = [column - n_columns for column in self.first]
        self.start = [column - n_columns for column in self.start]
        if self.cache is not None:
            self._fed -= n_columns
            self.cache.trim(n_columns)

    def join(self, other: "DecodingState") -> None:
        """The texts of `other` are written along with these."""
        length = max(self.length, other.length)
        for part in (self, other):
            shift = length - part.length
            part.first = [column + shift for column in part.first]
            part.start = [column + shift for column in part.start]
            part._fed += shift if part.cache is not None else 0
        self.history.join(other.history)
        self.first, self.start = self.first + other.first, self.start + other.start
        self.room, self.least = self.room + other.room, self.least + other.least
        self.sources = self.sources + other.sources
        if self.cache is not None and other.cache is not None:
            self.cache.join(other.cache)
        if self.memory is not None and other.memory is not None:
            self.memory = self.memory.join(other.memory)
        self._trim()


def _padded(rows: Sequence[tuple[int, ...]], device: torch.device) -> tuple[Tensor, Tensor | None]:
    """Ids as one tensor [B, S], 0 on the right of short rows, and the mask of real ones if there are such."""
    lengths = [len(ids) for ids in rows]
    longest = max(lengths)
    ids_BS = torch.tensor([ids + (0,) * (longest - len(ids)) for ids in rows], device=device)
    if min(lengths) == longest:
        return ids_BS, None
    return ids_BS, masks.of_lengths(torch.tensor(lengths, device=device), longest)


Finished = tuple[Request, Sequence[Written]]
"""A request and its texts."""


class Search(ABC):
    """Texts in the making, side by side; others may join at any step."""

    @torch.inference_mode()
    def __init__(self, plan: Plan, requests: Sequence[Request]) -> None:
        self.plan, self.requests = plan, list(requests)
        self.state = DecodingState(plan, requests)

    @property
    def n_texts(self) -> int:
        return len(self.requests)

    @torch.inference_mode()
    def step(self) -> None:
        """Reads what is new, the prompts at first, and writes one token of every text (in all its beams)."""
        self.write_next(self.state.read())

    @abstractmethod
    def write_next(self, logits_RV: Tensor) -> None:
        """Writes the next token of every row, from the logits after its last one."""

    @torch.inference_mode()
    def join(self, other: Self) -> None:
        """The texts of `other`, which has made its first step, are written along with these."""
        self.state.join(other.state)
        self.requests = self.requests + other.requests

    @abstractmethod
    def take_finished(self) -> Sequence[Finished]:
        """The requests that were finished at this step, with their texts; they are written no further."""
