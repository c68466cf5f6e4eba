"""Tatoeba's English-French pairs, made ready to learn from: `python recipes/tatoeba.py train.tsv.gz tatoeba.tsv`

The sentences know few names (Tom is in every eleventh) and few numbers, begin with a capital letter and end with a full
stop, so a model learns "Tom" by heart, not how names are copied, and nothing of texts that are written carelessly.
Added are copies of pairs

- in which a name, or a number, that stands on both sides is another one: made up of syllables, or of digits
- without capital letter and full stop

Two columns in, two columns out; the same output for the same input.
"""

import gzip
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path

NAME = re.compile(r"\b[A-Z][a-zé]{2,}\b")
NUMBER = re.compile(r"\b\d+\b")
ONSETS = """b bl br c ch cl cr d dr f fl fr g gl gr h j k kl kn kr l m n p ph pl pr qu r s sch sh sk sl sn sp st str sw
    t th tr v w wh x y z zh""".split()
VOWELS = "a e i o u y ai au ay ea ee ei eu ie o oe oo ou ow ue".split()
ENDS = "b ck d ff k l ll m n nd ng nk r rg rt s sch sky son ss t th tt tz wood x z".split() + [""] * 4
NAMES = 2  # made-up names for each pair that has one
CARELESS = 0.05  # share of the pairs that are learnt without capital letter and full stop too


def made_up(chance: random.Random) -> str:
    """A name that nobody has: Brouzik, Talean, Schoewood, …"""
    syllables = (
        chance.choice(ONSETS) + chance.choice(VOWELS) + chance.choice(("", "", "", "", "", "n", "r", "l"))
        for _ in range(chance.choice((1, 2, 2, 2, 2, 3)))
    )
    return ("".join(syllables) + chance.choice(ENDS)).capitalize()


def number_like(number: str, chance: random.Random) -> str:
    """With about as many digits."""
    n = max(1, len(number) + chance.choice((-1, 0, 0, 1)))
    return str(chance.randrange(10 ** (n - 1), 10**n))


def otherwise(source: str, target: str, chance: random.Random) -> tuple[str, str] | None:
    """The pair about somebody else, or of another number; None if there is neither."""
    changed = False
    for pattern in (NAME, NUMBER):
        for word in dict.fromkeys(pattern.findall(source)):
            if re.search(rf"\b{word}\b", target):
                other = made_up(chance) if pattern is NAME else number_like(word, chance)
                source, target = (re.sub(rf"\b{word}\b", other, text) for text in (source, target))
                changed = True
    return (source, target) if changed else None


def careless(text: str) -> str:
    """i don't know"""
    keeps = text.startswith(("I ", "I'")) or text[1:2].isupper()
    return (text if keeps else text[:1].lower() + text[1:]).rstrip(" .\u00a0\u202f")


def pairs(path: Path) -> Iterator[tuple[str, str]]:
    opened = gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8")
    with opened as file:
        for line in file:
            source, target = line.rstrip("\n").split("\t")[:2]
            yield source, target


def main() -> None:
    given, out = Path(sys.argv[1]), Path(sys.argv[2])
    chance = random.Random(1)
    counts = {"pairs": 0, "with other names or numbers": 0, "without capital letter and full stop": 0}
    with out.open("w", encoding="utf-8") as file:
        for source, target in pairs(given):
            rows = [(source, target)]
            rows += [found for _ in range(NAMES) if (found := otherwise(source, target, chance))]
            counts["pairs"] += 1
            counts["with other names or numbers"] += len(rows) - 1
            if chance.random() < CARELESS:
                rows.append((careless(source), careless(target)))
                counts["without capital letter and full stop"] += 1
            file.writelines(f"{one}\t{other}\n" for one, other in rows)
    print(", ".join(f"{n:,} {what}" for what, n in counts.items()))


if __name__ == "__main__":
    main()
