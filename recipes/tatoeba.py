"""Tatoeba's English-French pairs, made ready to learn from: `python recipes/tatoeba.py train.tsv.gz tatoeba.tsv`

The sentences know few names (Tom is in every eleventh), so a model learns "Tom" by heart and not how names are copied.
To every pair that has the same word with a capital letter on both sides a copy is added in which that word is a
made-up name. Two columns in, two columns out; the same output for the same input.
"""

import gzip
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path

NAME = re.compile(r"\b[A-Z][a-zé]{2,}\b")
ONSETS = ("b br c ch cl d dr f fl g gr h j k kl l m n p pl qu r s sh st t tr v w x y z").split()
VOWELS = "a e i o u y ai au ea ee ie o oo ou".split()
ENDS = ["", "", "", "n", "r", "s", "l", "ck", "tz", "nd", "rt", "x"]


def made_up(chance: random.Random) -> str:
    """A name that nobody has: Brouzik, Talean, …"""
    syllables = (chance.choice(ONSETS) + chance.choice(VOWELS) for _ in range(chance.choice((1, 2, 2, 2, 3))))
    return ("".join(syllables) + chance.choice(ENDS)).capitalize()


def renamed(source: str, target: str, chance: random.Random) -> tuple[str, str] | None:
    """The pair about somebody else; None if it is about nobody."""
    shared = [name for name in dict.fromkeys(NAME.findall(source)) if re.search(rf"\b{name}\b", target)]
    if not shared:
        return None
    for name in shared:
        other = made_up(chance)
        source, target = (re.sub(rf"\b{name}\b", other, text) for text in (source, target))
    return source, target


def pairs(path: Path) -> Iterator[tuple[str, str]]:
    opened = gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8")
    with opened as file:
        for line in file:
            source, target = line.rstrip("\n").split("\t")[:2]
            yield source, target


def main() -> None:
    given, out = Path(sys.argv[1]), Path(sys.argv[2])
    chance = random.Random(1)
    n = added = 0
    with out.open("w", encoding="utf-8") as file:
        for source, target in pairs(given):
            n += 1
            file.write(f"{source}\t{target}\n")
            other = renamed(source, target, chance)
            if other is not None:
                added += 1
                file.write(f"{other[0]}\t{other[1]}\n")
    print(f"{n:,} pairs, and {added:,} about somebody else")


if __name__ == "__main__":
    main()
