"""Words that must occur: beams are dealt to banks by how much of the words they hold, so that all of them are reached.

Post & Vilar, 2018: fast lexically constrained decoding with dynamic beam allocation.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

import torch
from torch import Tensor

from cutaway.decoding.candidates import Candidates, is_alive

Words = Sequence[Sequence[int]]


@dataclass(frozen=True)
class ConstraintProgress:
    """How many forced tokens a text holds, and which tokens would add one more."""

    bank: int
    next_tokens: frozenset[int]


def progress(ids: Sequence[int], words: Words) -> ConstraintProgress:
    """Words that occur count whole. Of the others the one that is furthest counts, if the text ends in its beginning:
    going on with it adds one token at every step, until all words are there."""
    bank, furthest = 0, 0
    next_tokens = set()
    for word in words:
        if occurs(ids, word):
            bank += len(word)
            continue
        begun = max((n for n in range(1, len(word)) if tuple(ids[-n:]) == tuple(word[:n])), default=0)
        furthest = max(furthest, begun)
        next_tokens |= {word[0], word[begun]}
    return ConstraintProgress(bank + furthest, frozenset(next_tokens))


def occurs(ids: Sequence[int], word: Sequence[int]) -> bool:
    n = len(word)
    return any(tuple(ids[i : i + n]) == tuple(word) for i in range(len(ids) - n + 1))


class ConstraintBanks:
    """The forced words of all texts, and what each candidate of this step holds of them."""

    def __init__(self, words: Words) -> None:
        self.words = words
        self.n_tokens = sum(map(len, words))

    def extended(
        self, found: Candidates, scores_BWV: Tensor, histories: Sequence[Sequence[Sequence[int]]]
    ) -> Candidates:
        """With a candidate for every forced token that some beam could take next, however unlikely it is.

        `histories`: of each text the tokens of each beam. `scores_BWV`: of each beam and token, the sum so far.
        """
        known = [
            set(zip(parents, tokens, strict=True))
            for parents, tokens in zip(found.parents.tolist(), found.tokens.tolist(), strict=True)
        ]
        more = [
            [
                (beam, token)
                for beam, ids in enumerate(beams)
                for token in sorted(progress(ids, self.words).next_tokens)
                if (beam, token) not in known[text]
            ]
            for text, beams in enumerate(histories)
        ]
        n_more = max(map(len, more))
        if n_more == 0:
            return found
        pairs_BXP = torch.tensor(
            [[*pairs, *[(-1, 0)] * (n_more - len(pairs))] for pairs in more], device=scores_BWV.device
        )  # fmt: skip
        beams_BX, tokens_BX = pairs_BXP.unbind(-1)
        texts_B1 = torch.arange(len(more), device=scores_BWV.device)[:, None]
        totals_BX = scores_BWV[texts_B1, beams_BX, tokens_BX].masked_fill(beams_BX < 0, -torch.inf)
        added = (totals_BX, beams_BX.clamp(min=0), tokens_BX)
        return Candidates(*(torch.cat(pair, 1) for pair in zip(found.parts, added, strict=True)))

    def held(self, found: Candidates, histories: Sequence[Sequence[Sequence[int]]]) -> list[list[int]]:
        """The bank of every candidate."""
        return [
            [progress([*beams[parent], token], self.words).bank for parent, token in zip(parents, tokens, strict=True)]
            for beams, parents, tokens in zip(histories, found.parents.tolist(), found.tokens.tolist(), strict=True)
        ]

    def dealt(self, scores_BK: Tensor, held: Sequence[Sequence[int]], width: int) -> Tensor:
        """The places [B, W] of the beams to go on with: the best of each bank, the fullest first, then the second best
        of each, and so on."""
        return torch.tensor(
            [_deal(scores, banks, width) for scores, banks in zip(scores_BK.tolist(), held, strict=True)],
            device=scores_BK.device,
        )


def _deal(scores: Sequence[float], banks: Sequence[int], width: int) -> list[int]:
    order = sorted(range(len(scores)), key=lambda place: -scores[place])
    by_bank: dict[int, list[int]] = {}
    for place in order:
        if is_alive(scores[place]):
            by_bank.setdefault(banks[place], []).append(place)
    rounds = zip_longest(*(by_bank[bank] for bank in sorted(by_bank, reverse=True)))
    dealt = [place for each in rounds for place in each if place is not None][:width]
    return dealt + [place for place in order if place not in dealt][: width - len(dealt)]
