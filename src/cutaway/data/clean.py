"""Cleaning: rules that drop pairs; the dropped ones are counted by rule, with the place of the first."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Annotated

from cutaway.checks import NumberRule, Size, check_fields
from cutaway.data.pairs import Pair
from cutaway.data.rows import BadRow

RATIO_FROM = 30
"""Lengths are compared if the longer side has more characters: "Ja" for "Yes, I do indeed" is no mistake."""

WORDS = {
    "empty": "empty",
    "too long": "too long",
    "ratio": "with too different lengths",
    "duplicate": "repeated",
    "same text": "with the same text on both sides",
    "invalid UTF-8": "not UTF-8",
    "NUL byte": "with a NUL byte",
    "columns": "with missing or extra columns",
    "not text": "with a cell that is not text",
    "not JSON": "not JSON",
    "quotes": "with broken quotes",
}


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The rules for pairs. Pairs with an empty side, and rows that can't be read, are always dropped.

    max_characters: of either side. max_ratio: of the longer side's characters to the shorter's, where the longer has
    more than 30; 0 is any. duplicates, same: drop pairs that came before, and pairs of two equal texts.
    """

    max_characters: Size = 2000
    max_ratio: Annotated[float, NumberRule("at least 1, or 0 for any", lambda ratio: ratio == 0 or ratio >= 1)] = 9.0
    duplicates: bool = False
    same: bool = False

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass
class DropReport:
    """Counts of the pairs that `clean` has read, kept and dropped by each rule, and the place of the first by rule."""

    n_read: int = 0
    n_kept: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    first: dict[str, str] = field(default_factory=dict)

    def add(self, rule: str, where: str) -> None:
        self.counts[rule] = self.counts.get(rule, 0) + 1
        self.first.setdefault(rule, where)

    def __str__(self) -> str:
        """`kept 28,991 of 29,000 pairs; dropped 5 empty (first: train.en:17), 4 with …`; the most frequent first."""
        parts = [
            f"{n:,} {WORDS.get(rule, rule)} (first: {self.first[rule]})"
            for rule, n in sorted(self.counts.items(), key=lambda item: -item[1])
        ]
        dropped = f"; dropped {', '.join(parts)}" if parts else ""
        return f"kept {self.n_kept:,} of {self.n_read:,} pairs{dropped}"


def clean(pairs: Iterable[Pair | BadRow], rules: Rules, dropped: DropReport) -> Iterator[Pair]:
    """The pairs that keep the rules, stripped of white space at both ends; `dropped` counts the rest.

    To drop duplicates, 12 bytes of each pair are kept in memory.
    """
    seen: set[bytes] = set()
    for pair in pairs:
        dropped.n_read += 1
        if isinstance(pair, BadRow):
            dropped.add(pair.rule, pair.where)
            continue
        pair = Pair(pair.source.strip(), pair.target.strip(), pair.where)
        if rule := _broken_rule(pair, rules, seen):
            dropped.add(rule, pair.where)
            continue
        dropped.n_kept += 1
        yield pair


def _broken_rule(pair: Pair, rules: Rules, seen: set[bytes]) -> str | None:
    """The name of the first rule that a pair breaks, None if it keeps all. `seen`: digests of the pairs before it, to
    which this one's is added."""
    shorter, longer = sorted((len(pair.source), len(pair.target)))
    if not shorter:
        return "empty"
    if longer > rules.max_characters:
        return "too long"
    if rules.max_ratio and longer > RATIO_FROM and longer > rules.max_ratio * shorter:
        return "ratio"
    if rules.same and pair.source == pair.target:
        return "same text"
    if rules.duplicates:
        key = hashlib.blake2b(f"{pair.source}\0{pair.target}".encode(), digest_size=12).digest()  # no text has a NUL
        if key in seen:
            return "duplicate"
        seen.add(key)
    return None


def join_neighbours(pairs: Iterable[Pair], most: int) -> Iterator[Pair]:
    """The pairs joined with their neighbours: by one, by two, … up to `most`, each time all of the text."""
    groups: list[list[Pair]] = [[] for _ in range(most)]
    for pair in pairs:
        for size, group in enumerate(groups, start=1):
            group.append(pair)
            if len(group) == size:
                yield _together(group)
                group.clear()


def _together(group: list[Pair]) -> Pair:
    return Pair(" ".join(p.source for p in group), " ".join(p.target for p in group), group[0].where)
