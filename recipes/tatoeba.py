"""Tatoeba's English-French pairs, made ready to learn from: `python recipes/tatoeba.py train.tsv.gz tatoeba.tsv`

The sentences know few names (Tom is in every eleventh) and few numbers, begin with a capital letter and end with a
sign, so a model learns "Tom" by heart, not how a name is copied, and nothing of texts that are written otherwise.
French signs are set in one way throughout: a no-break space before ? ! ; : and », one after «, straight apostrophes.
Added are copies of pairs

- in which each name and number that stands on both sides is another one: a name that nobody has, of parts of other
  words or of letters in turn; other digits;
- in small letters, half of them without the full stop; in capital letters; with the apostrophes of a text processor;
- that follow each other: texts of two sentences.

Two columns in, two columns out; the same output for the same input.
"""

import gzip
import random
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

NAME = re.compile(r"\b[A-Z][a-zé]{2,}\b")
NUMBER = re.compile(r"\b\d+\b")
WORD = re.compile(r"\b[a-z]{4,9}\b")
VOWELS, CONSONANTS = "aaeeiioouy", "bbcddffghjkkllmmnnppqrrssttvwxzz"
COPIES = 2  # with other names, of each pair that has one
SMALL, CAPITAL, CURLY, TWO = 0.06, 0.02, 0.04, 0.1  # shares of the pairs that are learnt in these ways too


def set_well(french: str) -> str:
    """Vraiment? -> Vraiment ?"""
    french = re.sub(r"\s*([?!;:]+)(?=[\s\"»]|$)", "\u00a0\\1", french.replace("’", "'"))
    return re.sub(r"\s*»", "\u00a0»", re.sub(r"«\s*", "«\u00a0", french))


def made_up(words: Sequence[str], chance: random.Random) -> str:
    """A name that nobody has: the head of one word and the tail of another, or letters in turn."""
    if chance.random() < 0.6:
        head, tail = chance.choice(words), chance.choice(words)
        name = head[: chance.randint(2, 5)] + tail[-chance.randint(2, 5) :]
    else:
        first = chance.randrange(2)
        name = "".join(chance.choice((VOWELS, CONSONANTS)[(first + i) % 2]) for i in range(chance.randint(3, 8)))
        at = chance.randrange(len(name))
        name = name[:at] + name[at] + name[at:] if chance.random() < 0.3 else name  # Anneliese, Zorblatt
    return name.capitalize()


def number_like(number: str, chance: random.Random) -> str:
    """With about as many digits."""
    n = max(1, len(number) + chance.choice((-1, 0, 0, 1)))
    return str(chance.randrange(10 ** (n - 1), 10**n))


def otherwise(source: str, target: str, words: Sequence[str], chance: random.Random) -> tuple[str, str] | None:
    """The pair about somebody else, or of another number; None if there is neither."""
    changed = False
    for pattern in (NAME, NUMBER):
        for word in dict.fromkeys(pattern.findall(source)):
            if re.search(rf"\b{word}\b", target):
                other = made_up(words, chance) if pattern is NAME else number_like(word, chance)
                source, target = (re.sub(rf"\b{word}\b", other, text) for text in (source, target))
                target = elided(target, other)
                changed = True
    return (source, target) if changed else None


def elided(french: str, name: str) -> str:
    """que Anna -> qu'Anna, d'Zorblatt -> de Zorblatt"""
    if name[0] in "AEIOU":
        return re.sub(rf"\b(qu|d)e {name}\b", rf"\1'{name}", french, flags=re.IGNORECASE)
    return re.sub(rf"\b(qu|d)'{name}\b", rf"\1e {name}", french, flags=re.IGNORECASE)


def small(source: str, target: str, chance: random.Random) -> tuple[str, str]:
    """i don't know / je ne sais pas"""
    source, target = source.lower(), target.lower()
    if chance.random() < 0.5 and source.endswith(".") and target.endswith("."):
        source, target = source.rstrip("."), target.rstrip(".")
    return source, target


def read(path: Path) -> Iterator[tuple[str, str]]:
    opened = gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8")
    with opened as file:
        for line in file:
            source, target = line.rstrip("\n").split("\t")[:2]
            yield source, set_well(target)


def main() -> None:
    given, out = Path(sys.argv[1]), Path(sys.argv[2])
    chance = random.Random(1)
    pairs = list(read(given))
    words = sorted({word for source, _ in pairs for word in WORD.findall(source)})
    rows = list(pairs)
    for source, target in pairs:
        rows += [found for _ in range(COPIES) if (found := otherwise(source, target, words, chance))]
        if chance.random() < SMALL:
            rows.append(small(source, target, chance))
        if chance.random() < CAPITAL:
            rows.append((source.upper(), target.upper()))
        if "'" in source and chance.random() < CURLY:
            rows.append((source.replace("'", "’"), target))
        if chance.random() < TWO:
            next_source, next_target = chance.choice(pairs)
            rows.append((f"{source} {next_source}", f"{target} {next_target}"))
    out.write_text("".join(f"{source}\t{target}\n" for source, target in rows), encoding="utf-8")
    print(f"{len(pairs):,} pairs, {len(rows) - len(pairs):,} more written otherwise")


if __name__ == "__main__":
    main()
