"""BPE-dropout (Provilkov 2020): each word is cut in other places each time, which makes a model more robust."""

import json
import random
from collections.abc import Sequence
from itertools import pairwise

from cutaway.errors import ConfigError
from cutaway.text.fast import FastTokenizer
from cutaway.text.tokenizer import Tokenizer

_MOST = 200_000  # words whose ways are remembered: they are the same when they are found again
_WAYS = 16  # of cutting one word, drawn once; an epoch draws among them


class BPEDropout:
    """ids of a text -> ids of the same text, each word cut as BPE does when a share of its merges is left out.

    The `tokenizers` library can do it too, but not twice the same: a run that goes on could not be exact.
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

    def __call__(self, ids: Sequence[int], chance: random.Random) -> list[int]:
        found: list[int] = []
        for word in self._words(ids):
            ways = self._known.get(word)
            if ways is None:
                if len(self._known) >= _MOST:
                    self._known.clear()
                ways = self._known.setdefault(word, self._cut(word))
            found += ways[int(chance.random() * len(ways))]
        return found

    def _words(self, ids: Sequence[int]) -> list[tuple[int, ...]]:
        """Pieces that belong together: a word begins where its first letter is a space ("Ġ"); no merge crosses that."""
        words: list[list[int]] = []
        for number in ids:
            alone = number in self._special
            if alone or not words or self._pieces[number].startswith("Ġ") or words[-1][-1] in self._special:
                words.append([number])
            else:
                words[-1].append(number)
        return [tuple(word) for word in words]

    def _cut(self, word: tuple[int, ...]) -> list[tuple[int, ...]]:
        """_WAYS ways, the same for a word whenever and wherever it is met."""
        if word[0] in self._special:
            return [word]
        text = "".join(self._pieces[number] for number in word)
        chance = random.Random(f"{self._seed} {text}")
        return [tuple(self._ids[piece] for piece in self._merged(text, chance)) for _ in range(_WAYS)]

    def _merged(self, text: str, chance: random.Random) -> list[str]:
        """BPE, where each merge that could be made is left out with probability `share`, anew after each that is."""
        pieces = list(text)
        while len(pieces) > 1:
            possible = [
                (self._ranks[pair], i)
                for i, pair in enumerate(pairwise(pieces))
                if pair in self._ranks and chance.random() >= self._share
            ]
            if not possible:
                break
            _, i = min(possible)
            pieces[i : i + 2] = [pieces[i] + pieces[i + 1]]
        return pieces
