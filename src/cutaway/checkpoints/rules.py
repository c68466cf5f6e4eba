"""Weights under other names: one table that loads and saves.

A rule pairs their name with ours. An operation between the two is a pair of exact inverses, so that file -> ours ->
file gives back the same bits; nothing is folded, centred or rescaled.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import product

from torch import Tensor, cat

from cutaway.errors import CheckpointError


@dataclass(frozen=True)
class Operation:
    """Theirs, one tensor, to ours, one or several; and back. `copies`: ours are not views of theirs."""

    load: Callable[[Tensor], tuple[Tensor, ...]]
    save: Callable[[tuple[Tensor, ...]], Tensor]
    copies: bool = False


SAME = Operation(lambda theirs: (theirs,), lambda ours: ours[0])
FLIP = Operation(lambda theirs: (theirs.mT,), lambda ours: ours[0].mT)  # [in, out], as GPT-2's Conv1D keeps its weights
ROW = Operation(lambda theirs: (theirs[0],), lambda ours: ours[0][None])  # [1, ...] to [...]


def split(n: int) -> Operation:
    """One tensor that is `n` of ours, one below the other."""
    return Operation(lambda theirs: theirs.chunk(n), lambda ours: _joined(ours, 0))


def split_columns(n: int) -> Operation:
    """`n` of ours side by side, each flipped: GPT-2's queries, keys and values.

    Ours are copies: views of a third of every row have gaps, and torch's fused optimisers misread such weights.
    """
    return Operation(
        lambda theirs: tuple(part.contiguous().mT for part in theirs.chunk(n, dim=1)),
        lambda ours: _joined(tuple(tensor.mT for tensor in ours), dim=1),
        copies=True,
    )


def _joined(tensors: tuple[Tensor, ...], dim: int) -> Tensor:
    if tensors[0].is_meta:  # cat on the meta device loads torch's compiler: a second, to add up a few sizes
        shape = list(tensors[0].shape)
        shape[dim] = sum(tensor.shape[dim] for tensor in tensors)
        return tensors[0].new_empty(shape)
    return cat(tensors, dim)


def flatten(*shape: int) -> Operation:
    """[D, *shape] to [D, product of shape]: a convolution whose windows do not overlap is a linear layer."""
    return Operation(lambda theirs: (theirs.flatten(1),), lambda ours: ours[0].view(-1, *shape))


def halves(n_heads: int) -> Operation:
    """Rotary pairs of neighbours (x_2i, x_2i+1), as llama2.c stores them, to pairs (x_i, x_i+K/2), in every head."""

    def load(theirs: Tensor) -> tuple[Tensor, ...]:
        return (theirs.reshape(n_heads, -1, 2, *theirs.shape[1:]).transpose(1, 2).flatten(0, 2),)

    def save(ours: tuple[Tensor, ...]) -> Tensor:
        return ours[0].reshape(n_heads, 2, -1, *ours[0].shape[1:]).transpose(1, 2).flatten(0, 2)

    return Operation(load, save, copies=True)


@dataclass(frozen=True)
class Rule:
    """Their name and ours.

    `{i}` is the number of a block. `{a,b}` on both sides stands for a pair of rules; `[q,k,v]` on our side for the
    several tensors that one of theirs holds.
    """

    theirs: str
    ours: str
    operation: Operation = SAME


@dataclass(frozen=True)
class ExpandedRule:
    """A rule with every name written out."""

    theirs: str
    ours: tuple[str, ...]
    operation: Operation
    in_head: bool


@dataclass(frozen=True)
class NameMap:
    """The names of a family's weights.

    `body` and `head` are kept apart because files with a head put a prefix before the names of the body (`bert.`).
    `copies` are tensors that may repeat another (an output table tied to the embedding). `ignored` are patterns of
    tensors that say nothing the config does not say. `spare`, and `spare_head`, are tensors of a body, and of a head,
    that were learnt but that no head of ours reads: saving gives them back as they came.
    """

    body: Sequence[Rule]
    head: Sequence[Rule] = ()
    copies: Mapping[str, str] = field(default_factory=dict)
    ignored: Sequence[str] = ()
    spare: Sequence[str] = ()
    spare_head: Sequence[str] = ()

    def pairs(self, names: Mapping[str, object]) -> list[ExpandedRule]:
        """The rules that apply to a network with these tensors; together they cover every tensor once."""
        found = [pair for rule in self.body for pair in _expand(rule, names, in_head=False)]
        found += [pair for rule in self.head for pair in _expand(rule, names, in_head=True)]
        covered = [name for pair in found for name in pair.ours]
        nameless = sorted(names.keys() - covered)
        if nameless:
            raise CheckpointError(f"there is no name for {', '.join(nameless[:3])}")
        assert len(covered) == len(names), "two rules for one tensor"
        return found

    @property
    def head_names(self) -> set[str]:
        """The names, in their files, of all weights of output heads (not attention's), of whichever architecture."""
        return {theirs for rule in self.head for theirs, _ in _written_out(rule.theirs, rule.ours)}

    def of_block(self, number: int) -> set[str]:
        """Their names of what a block may hold."""
        rules = [rule for rule in self.body if "{i}" in rule.theirs]
        written = (theirs for rule in rules for theirs, _ in _written_out(rule.theirs, rule.ours))
        return {theirs.replace("{i}", str(number)) for theirs in written}

    def is_unread(self, name: str) -> bool:
        return any(_matches(pattern, name) for pattern in self.ignored) or self.is_spare(name)

    def is_spare(self, name: str) -> bool:
        return any(_matches(pattern, name) for pattern in (*self.spare, *self.spare_head))

    def has_in_head(self, spare: str) -> bool:
        """Whether such a tensor belongs to a head, where no prefix stands before its name."""
        return any(_matches(pattern, spare) for pattern in self.spare_head)


def _matches(pattern: str, name: str) -> bool:
    """`*` is any text: h.*.attn.bias"""
    return re.fullmatch(re.escape(pattern).replace(r"\*", ".*"), name) is not None


def _expand(rule: Rule, names: Mapping[str, object], *, in_head: bool) -> Iterator[ExpandedRule]:
    for theirs, ours in _written_out(rule.theirs, rule.ours):
        for number in range(_blocks(names)) if "{i}" in ours else (0,):
            several = _several(ours.replace("{i}", str(number)))
            if all(name in names for name in several):
                yield ExpandedRule(theirs.replace("{i}", str(number)), several, rule.operation, in_head)


def _blocks(names: Mapping[str, object]) -> int:
    """The number of blocks of the deepest stack."""
    numbers = [int(match[1]) for name in names if (match := re.search(r"\.blocks\.(\d+)\.", name))]
    return max(numbers, default=-1) + 1


_CHOICES = re.compile(r"\{([^}i][^}]*|i[^}]+)\}")


def _written_out(theirs: str, ours: str) -> Iterator[tuple[str, str]]:
    """{a,b} on both sides: a with a, b with b; several such groups: every combination."""
    groups = [
        list(zip(mine.split(","), yours.split(","), strict=True))
        for mine, yours in zip(_CHOICES.findall(theirs), _CHOICES.findall(ours), strict=True)
    ]
    for choice in product(*groups):
        yield (
            reduce(lambda text, pair: _CHOICES.sub(pair[0], text, count=1), choice, theirs),
            reduce(lambda text, pair: _CHOICES.sub(pair[1], text, count=1), choice, ours),
        )


def _several(ours: str) -> tuple[str, ...]:
    """`a.[q,k].b` -> (`a.q.b`, `a.k.b`)"""
    match = re.fullmatch(r"(.*)\[(.*)\](.*)", ours)
    return (ours,) if match is None else tuple(match[1] + name + match[3] for name in match[2].split(","))
