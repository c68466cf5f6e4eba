"""Every example once an epoch, in batches that keep their budget, in an order that can be gone on with."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from cutaway.data.batches import Sampler, batches_of
from cutaway.errors import InputError


def lengths(n: int = 1000, seed: int = 0) -> Tensor:
    """Of sources and targets as in Multi30k: about 13 tokens, from 4 to 44, the two sides alike but not the same."""
    generator = torch.Generator().manual_seed(seed)
    source = torch.randn(n, generator=generator).mul(0.35).add(2.5).exp().round().clamp(4, 44)
    target = (source + 2 * torch.randn(n, generator=generator)).round().clamp(4, 44)
    return torch.stack((source, target), 1).long()


@pytest.mark.parametrize("sides", [1, 2])
def test_every_row_once_and_the_budget_is_kept(sides: int) -> None:
    given = lengths()[:, 0] if sides == 1 else lengths()
    batches = batches_of(given, 300, seed=3)
    assert sorted(torch.cat(batches).tolist()) == list(range(1000))
    longest = [int(given[rows].max()) for rows in batches]
    assert all(len(rows) * most <= 300 for rows, most in zip(batches, longest, strict=True))
    full = sum((len(rows) + 1) * most > 300 for rows, most in zip(batches, longest, strict=True))
    assert full > 0.6 * len(batches), "a batch is as large as it can be, but where lengths change"


def test_little_padding() -> None:
    given = lengths(29_000)
    batches = batches_of(given, 2048, seed=1)
    padded = sum(len(rows) * int(given[rows, 1].max()) for rows in batches)
    assert int(given[:, 1].sum()) / padded > 0.97
    shuffled = torch.randperm(29_000, generator=torch.Generator().manual_seed(0)).split(100)
    at_random = sum(len(rows) * int(given[rows, 1].max()) for rows in shuffled)
    assert int(given[:, 1].sum()) / at_random < 0.6, "these lengths do need sorting"


def test_the_same_seed_the_same_order_and_another_seed_another() -> None:
    first, again, other = (batches_of(lengths(), 300, seed) for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert any(not torch.equal(a, b) for a, b in zip(first, other, strict=False))
    assert {frozenset(rows.tolist()) for rows in first} != {frozenset(rows.tolist()) for rows in other}, (
        "examples of the same length meet others, too"
    )


def test_batches_come_in_no_order_of_length() -> None:
    means = [float(lengths()[rows].float().mean()) for rows in batches_of(lengths(), 300, seed=1)]
    rises = sum(a < b for a, b in pairwise(means))
    assert 0.3 < rises / (len(means) - 1) < 0.7


def test_an_example_longer_than_the_budget() -> None:
    with pytest.raises(InputError) as error:
        batches_of(torch.tensor([[3, 4], [9, 41], [5, 5]]), 40, seed=1)
    assert str(error.value) == (
        "an example has 41 tokens, and a micro-batch holds 40: raise batches.tokens, or leave such examples out "
        "with a lower data.max_tokens"
    )
    assert len(batches_of(torch.tensor([[3, 4], [9, 40], [5, 5]]), 40, seed=1)) == 2


def test_no_examples() -> None:
    assert batches_of(torch.zeros(0, 2, dtype=torch.int64), 40, seed=1) == []
    with pytest.raises(InputError, match="there are no examples to learn from"):
        Sampler(torch.zeros(0, 2, dtype=torch.int64), 40, 1)


def test_a_sampler_goes_on_from_anywhere() -> None:
    given = lengths(60)
    sampler = Sampler(given, 100, seed=5)
    seen = [(sampler.epoch, sampler.place, next(sampler)) for _ in range(3 * sampler.per_epoch)]
    assert seen[-1][0] >= 2
    for start, (epoch, place, _) in enumerate(seen):
        other = Sampler(given, 100, 5, epoch, place)
        for _, _, rows in seen[start : start + 4]:
            assert torch.equal(next(other), rows)


def test_every_epoch_has_every_row_and_an_order_of_its_own() -> None:
    given = lengths(200)
    sampler, epochs = Sampler(given, 100, seed=5), []
    for _ in range(3):
        rows = [next(sampler)]
        while sampler.place < sampler.per_epoch:
            rows.append(next(sampler))
        epochs.append(torch.cat(rows))
    assert [sorted(rows.tolist()) for rows in epochs] == [list(range(200))] * 3
    assert len({tuple(rows.tolist()) for rows in epochs}) == 3
    assert sampler.epochs == 3.0
