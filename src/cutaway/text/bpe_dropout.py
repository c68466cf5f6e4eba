"""BPE-dropout (Provilkov 2020): each word is cut in other places each time, which makes a model more robust."""

import json
import random
from collections.abc import Sequence
from itertools import pairwise

from cutaway.errors import ConfigError
from cutaway.text.fast import FastTokenizer
from cutaway.text.tokenizer import Tokenizer

_MOST = 200_000  # words whose variants are kept in memory: they are the same when computed again
_VARIANTS = 16  # segmentations of a word, drawn once; an epoch draws among them


class BPEDropout:
    """ids of a text -> ids of the same text, each word segmented by BPE with a share of its merges left out.

    The `tokenizers` library can do it too, but not reproducibly: a resumed run could not be exact.
    """

    def __init__(self, tokenizer: Tokenizer, share: float, seed: int) -> None:
        if not isinstance(tokenizer, FastTokenizer) or tokenizer.kind != "byte-level BPE":
            raise ConfigError(
                f"regularization.bpe_dropout needs a byte-level BPE vocabulary, and this one is {tokenizer.kind}; "
                f'learn one (tokenizer.kind = "bpe"), or set it to 0'
            )
        model = json.loads(tokenizer.backend.to_str())["model"]
        pairs = [tuple(pair.split(" ")) if isinstance(pair, str) else tuple(pair) for pair in model["merges"]]
        self._ranks = {pair: rank for rank, pair in enumerate(pairs)}
        self._ids: dict[str, int] = model["vocab"]
        self._pieces = {number: piece for piece, number in self._ids.items()}
        self._special = {number for number in vars(tokenizer.special).values() if number is not None}
        self._share, self._seed = share, seed
        self._known: dict[tuple[int, ...], list[tuple[int, ...]]] = {}

    def __call__(self, ids: Sequence[int], rng: random.Random) -> list[int]:
        found: list[int] = []
        for word in self._words(ids):
            variants = self._known.get(word)
            if variants is None:
                if len(self._known) >= _MOST:
                    self._known.clear()
                variants = self._known.setdefault(word, self._cut(word))
            found += variants[int(rng.random() * len(variants))]
        return found

    def _words(self, ids: Sequence[int]) -> list[tuple[int, ...]]:
        """Pieces grouped into words: a word begins with a space ("Ġ"), which no merge crosses."""
        words: list[list[int]] = []
        for number in ids:
            alone = number in self._special
            if alone or not words or self._pieces[number].startswith("Ġ") or words[-1][-1] in self._special:
                words.append([number])
            else:
                words[-1].append(number)
        return [tuple(word) for word in words]

    def _cut(self, word: tuple[int, ...]) -> list[tuple[int, ...]]:
        """_VARIANTS segmentations of a word, the same at every occurrence."""
        if word[0] in self._special:
            return [word]
        text = "".join(self._pieces[number] for number in word)
        rng = random.Random(f"{self._seed} {text}")
        return [tuple(self._ids[piece] for piece in self._merged(text, rng)) for _ in range(_VARIANTS)]

    def _merged(self, text: str, rng: random.Random) -> list[str]:
        """BPE in which each possible merge is left out with probability `share`, drawn anew after every merge."""
        pieces = list(text)
        while len(pieces) > 1:
            possible = [
                (self._ranks[pair], i)
                for i, pair in enumerate(pairwise(pieces))
                if pair in self._ranks and rng.random() >= self._share
            ]
            if not possible:
                break
            _, i = min(possible)
            pieces[i : i + 2] = [pieces[i] + pieces[i + 1]]
        return pieces
