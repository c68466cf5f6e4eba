"""Texts that are written side by side: their tokens, the decoder's cache and the encoder's memory, kept in step."""

from collections.abc import Sequence

import torch
from torch import Tensor

from cutaway.decoding.batch_cache import BatchCache
from cutaway.decoding.history import TokenHistory
from cutaway.decoding.plan import Plan, Request
from cutaway.parts.cache import Memory
from cutaway.parts.tap import anybody_listens

IDS, LOGPROBS, OTHER_IDS, OTHER_LOGPROBS = range(4)  # the tracks
WORTH_TRIMMING = 8  # columns that no row needs any more


class DecodingState:
    """Some texts, each of `width` neighbouring rows (its beams). All end in the same column: younger ones begin later.

    `logits_RV` are those of the next token of every row, in float32.

        column        0  1  2  3  4  5
        an old text   a  b  c  d  e  f      first = 0
        one that joined after 3 steps
                      ·  ·  ·  u  v  w      first = 3: the mask hides what is before
    """

    def __init__(self, plan: Plan, asked: Sequence[Request]) -> None:
        """Reads the prompts: the encoder's pass, and the decoder's over what each text begins with."""
        self.plan = plan
        self.width = 1
        network, device = plan.network, plan.device
        begun = [plan.beginning(each) for each in asked]
        length, n_prefix = max(map(len, begun)), len(plan.options.prefix)
        self.first = [length - len(ids) for ids in begun]
        self.start = [length - n_prefix] * len(asked)  # the column of the first written token
        self.room = [plan.room(each) for each in asked]  # how many tokens may be written
        self.least = [plan.least(each) for each in asked]  # how many must be written
        self.sources = [each.ids for each in asked]
        self.memory = None if network.config.encoder is None else read_sources(plan, asked)
        ids_RT = torch.tensor([ids[:1] * (length - len(ids)) + ids for ids in begun], device=device)
        room = min(max(self.room), max(32, 2 * max(map(len, self.sources))))
        self.cache = BatchCache(capacity=length + room) if plan.options.cached else None
        self._fed = 0  # columns that are in the cache
        logits_RTV = self._logits(ids_RT, 1 + n_prefix)
        self.logits_RV = _own(logits_RTV[:, -1])
        self.tracks = TokenHistory(self._first_tracks(ids_RT, logits_RTV[:, :-1]), length + room)

    def _first_tracks(self, ids_RT: Tensor, logits_RPV: Tensor) -> list[Tensor]:
        """Of a forced prefix we say how likely it was, of a prompt nothing."""
        R, n_all, n = *ids_RT.shape, logits_RPV.shape[1]
        n_others = self.plan.options.alternatives
        numbers = ids_RT.new_zeros(R, n_all, dtype=torch.float32)
        tracks = [ids_RT, numbers]
        if n_others:
            tracks += [ids_RT.new_zeros(R, n_all, n_others), numbers.new_zeros(R, n_all, n_others)]
        if n:
            logprobs_RPV = logits_RPV.float().log_softmax(-1)
            numbers[:, -n:] = logprobs_RPV.gather(-1, ids_RT[:, -n:, None]).squeeze(-1)
            if n_others:
                tracks[OTHER_LOGPROBS][:, -n:], tracks[OTHER_IDS][:, -n:] = logprobs_RPV.topk(n_others)
        return tracks

    @property
    def n_texts(self) -> int:
        return len(self.first)

    @property
    def length(self) -> int:
        return self.tracks.length

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
        return self.tracks[IDS]

    def append(self, columns: Sequence[Tensor]) -> None:
        """The next token of every row, its log-probability, and what else was likely, if that is asked for."""
        self.tracks.append(columns)

    def step(self) -> None:
        """Reads the newest token of every row."""
        if self.plan.context is not None and self.length > self.plan.context:
            self._forget(min(self.first))  # learned positions are counted by column, hidden ones too
        self.logits_RV = _own(self._logits(self.ids(), 1)[:, -1])

    def _logits(self, ids_RT: Tensor, n: int) -> Tensor:
        """Those after each of the last `n` tokens: of a long prompt nobody needs more."""
        network = self.plan.network
        new_RT = ids_RT if self.cache is None else ids_RT[:, self._fed :]
        mask = None
        if self._fed == 0 and any(self.first):
            columns = torch.arange(ids_RT.shape[1], device=ids_RT.device)
            mask = columns >= self.first_columns()[:, None]
        hidden_RTD = network.decode_hidden(new_RT, self.memory, self.cache, mask)
        if self.cache is not None:
            self._fed = ids_RT.shape[1]
        return network.read(hidden_RTD[:, -n:])

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
        self.tracks.select(torch.arange(self.n_texts, device=self.plan.device).repeat_interleave(width))
        if self.cache is not None:
            self.cache.widen(width)
        if self.memory is not None:
            self.memory = Memory(self.memory.states, self.memory.mask, self.memory.final, repeats=width)
        self.width = width

    def reorder(self, rows: Tensor) -> None:
        """Rows go to other rows of their text: row i becomes what row rows[i] was."""
        if len(rows) == self.n_texts * self.width and torch.equal(rows, torch.arange(len(rows), device=rows.device)):
            return
        self.tracks.select(rows)
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
        self.tracks.select(torch.tensor(wide, device=device, dtype=torch.long))
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
        self.tracks.trim(n_columns)
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
        self.tracks.join(other.tracks)
        self.first, self.start = self.first + other.first, self.start + other.start
        self.room, self.least = self.room + other.room, self.least + other.least
        self.sources = self.sources + other.sources
        if self.cache is not None and other.cache is not None:
            self.cache.join(other.cache)
        if self.memory is not None and other.memory is not None:
            self.memory = self.memory.join(other.memory)
        self._trim()


def read_sources(plan: Plan, asked: Sequence[Request]) -> Memory:
    """The encoder's pass over the prompts, padded on the right."""
    longest = max(len(each.ids) for each in asked)
    padded = [each.ids + (0,) * (longest - len(each.ids)) for each in asked]
    source_BS = torch.tensor(padded, device=plan.device)
    mask = None
    if any(len(each.ids) < longest for each in asked):
        lengths_B = torch.tensor([len(each.ids) for each in asked], device=plan.device)
        mask = torch.arange(longest, device=plan.device) < lengths_B[:, None]
    return plan.network.encode(source_BS, mask)


def _own(logits_RV: Tensor) -> Tensor:
    """Float32 logits that may be changed: a copy if somebody who listens may have kept them."""
    wide_RV = logits_RV.float()
    return wide_RV.clone() if wide_RV is logits_RV and anybody_listens() else wide_RV
