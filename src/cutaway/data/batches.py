"""Batches of examples of similar length, bounded by their number of tokens, in an order that a seed decides.

Padding is wasted work: of Multi30k's targets 99 % are real tokens in these batches, 39 % in random ones.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from cutaway.errors import InputError


def batches_of(lengths: Tensor, n_tokens: int, seed: int) -> list[Tensor]:
    """The rows of every example, once each, in batches of at most `n_tokens` tokens, padding included.

    `lengths` [n] or [n, sides]: the longest side counts; the last one is the first sort key. The seed decides the order
    of examples of equal lengths, and of the batches.
    """
    generator = torch.Generator().manual_seed(seed)
    sides = lengths if lengths.dim() == 2 else lengths.unsqueeze(1)
    order = torch.randperm(len(sides), generator=generator)
    for side in range(sides.shape[1]):  # stable sorts: the last is the main one
        order = order[torch.sort(sides[order, side], stable=True).indices]
    check_fits(lengths, n_tokens)
    costs = sides[order].max(dim=1).values.tolist()
    found, start, longest = [], 0, 0
    for i, cost in enumerate(costs):
        if max(longest, cost) * (i + 1 - start) > n_tokens:
            found.append(order[start:i])
            start, longest = i, 0
        longest = max(longest, cost)
    if costs:
        found.append(order[start:])
    return [found[i] for i in torch.randperm(len(found), generator=generator).tolist()]


def check_fits(lengths: Tensor, n_tokens: int) -> None:
    """Checks that no example is longer than a batch."""
    if lengths.numel() and (most := int(lengths.max())) > n_tokens:
        raise InputError(
            f"an example has {most} tokens, and a micro-batch holds {n_tokens}: raise batches.tokens, or leave "
            f"such examples out with a lower data.max_tokens"
        )


@dataclass
class Sampler:
    """Endless batches, epoch after epoch. Its state is two numbers: a resumed run goes on with the next batch."""

    lengths: Tensor
    n_tokens: int
    seed: int
    epoch: int = 0
    place: int = 0

    def __post_init__(self) -> None:
        if not len(self.lengths):
            raise InputError("there are no examples to learn from")
        self._batches = self._shuffled()

    def _shuffled(self) -> list[Tensor]:
        return batches_of(self.lengths, self.n_tokens, self.seed * 1_000_003 + self.epoch)

    def __next__(self) -> Tensor:
        if self.place >= len(self._batches):  # more than all: a run that is resumed with less data
            self.epoch, self.place = self.epoch + 1, 0
            self._batches = self._shuffled()
        self.place += 1
        return self._batches[self.place - 1]

    @property
    def per_epoch(self) -> int:
        """Batches of this epoch; others may have one more or less."""
        return len(self._batches)

    @property
    def epochs(self) -> float:
        """Epochs done, with the fraction of the current one."""
        return self.epoch + self.place / len(self._batches)
