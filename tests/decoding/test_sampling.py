"""Samples are distributed as the filtered probabilities say, and a seed says which they are."""

import math
from collections import Counter
from typing import Any

import pytest
import torch

from cutaway.decoding.sample import draw
from cutaway.decoding.search import stream, write
from cutaway.generation import Generation, Prompt
from cutaway.models.usage import Usage
from tests.support.scripted_network import Scripted

PROBABILITIES = [0.30, 0.22, 0.16, 0.12, 0.09, 0.06, 0.03, 0.02]
LOGITS = [math.log(p) for p in PROBABILITIES]
N = 4000


def kept(*tokens: int, power: float = 1.0) -> list[float]:
    weights = [p**power if token in tokens else 0.0 for token, p in enumerate(PROBABILITIES)]
    return [weight / sum(weights) for weight in weights]


# The exact distributions, worked out by hand.
WISHES: dict[str, tuple[dict[str, Any], list[float]]] = {
    "plain": ({}, PROBABILITIES),
    "temperature": ({"temperature": 0.5}, kept(*range(8), power=2.0)),
    "top_k": ({"top_k": 3}, kept(0, 1, 2)),
    "top_p": ({"top_p": 0.75}, kept(0, 1, 2, 3)),  # 0.68 is less, 0.80 is enough
    "min_p": ({"min_p": 0.25}, kept(0, 1, 2, 3, 4)),  # at least 0.075
    "all": ({"temperature": 0.5, "top_k": 5, "top_p": 0.9, "min_p": 0.2}, kept(0, 1, 2, power=2.0)),
    "ban": ({"ban": ((0,), (3,))}, kept(1, 2, 4, 5, 6, 7)),
}


def first_tokens(n: int, **options: Any) -> list[int]:
    network = Scripted(lambda history: LOGITS, len(LOGITS))
    generation = Generation(sample=True, max_new_tokens=1, batch_tokens=8192, **options)
    return [texts[0].ids[0] for texts in write(network, [Prompt((0,))] * n, generation, Usage())]


@pytest.mark.parametrize("wish", WISHES)
def test_distribution(wish: str) -> None:
    """Pearson's χ² of 4000 draws: above the limit in one of 10^5 right implementations, and the seed is fixed."""
    options, expected = WISHES[wish]
    counts = Counter(first_tokens(N, seed=1, **options))
    assert {token for token in counts if expected[token] == 0} == set()
    possible = [token for token, p in enumerate(expected) if p > 0]
    chi2 = sum((counts[token] - N * expected[token]) ** 2 / (N * expected[token]) for token in possible)
    limits = {2: 23.0, 3: 25.9, 4: 28.5, 5: 30.9, 7: 35.3}  # χ² at 10^-5, by degrees of freedom
    assert chi2 < limits[len(possible) - 1]


def test_draw_never_takes_the_impossible() -> None:
    scores = torch.tensor([[-torch.inf, 0.0, -torch.inf, 0.0, -torch.inf]]).expand(3, -1)
    numbers = torch.tensor([0.0, 0.5, 1 - 2**-53], dtype=torch.float64)
    assert draw(scores, numbers).tolist() == [1, 3, 3]


def test_second_token_is_independent_of_the_first() -> None:
    """Numbers of one text must not repeat from token to token."""
    network = Scripted(lambda history: [0.0, 0.0], 2)
    generation = Generation(sample=True, max_new_tokens=2, seed=5, batch_tokens=8192)
    pairs = Counter(texts[0].ids for texts in write(network, [Prompt((0,))] * 2000, generation, Usage()))
    assert all(abs(pairs[pair] - 500) < 100 for pair in ((0, 0), (0, 1), (1, 0), (1, 1)))  # 5 standard deviations


def test_a_seed_says_which() -> None:
    network = Scripted(lambda history: LOGITS, len(LOGITS))
    asked = [Prompt((token, 1)[: 1 + token % 2]) for token in range(8)]

    def sampled(seed: int | None, n: int = 8, **options: Any) -> list[tuple[int, ...]]:
        generation = Generation(sample=True, max_new_tokens=6, seed=seed, **options)
        return [texts[0].ids for texts in write(network, asked[:n], generation, Usage(end=(7,)))]

    assert sampled(1) == sampled(1) == sampled(1, batch_tokens=30)
    assert sampled(1) != sampled(2)
    assert sampled(1, n=3) == sampled(1)[:3]
    assert sampled(None) != sampled(None)
    alone = stream(network, asked[0], Generation(sample=True, max_new_tokens=6, seed=1), Usage(end=(7,)))
    assert tuple(token.id for token in alone) == sampled(1)[0]
    assert len(set(sampled(1))) > 4  # prompts do not share their numbers


def test_several_samples_best_first() -> None:
    network = Scripted(lambda history: LOGITS, len(LOGITS))
    generation = Generation(sample=True, max_new_tokens=3, seed=1, n_best=5, batch_tokens=90)
    for texts in write(network, [Prompt((1,))] * 4, generation, Usage()):
        assert len(texts) == 5
        assert [text.score for text in texts] == sorted((text.score for text in texts), reverse=True)
        assert len({text.ids for text in texts}) > 1
        for text in texts:
            expected = sum(LOGITS[token] for token in text.ids) / 3  # its own probabilities, whatever was filtered
            assert text.score == pytest.approx(expected, abs=1e-5)
