"""A step computed in shares: the same for any number of cores, bit for bit, and the gradient of the whole batch."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import cutaway
from cutaway.data.encoding import EncodedTexts
from cutaway.models.build import build
from cutaway.models.config import RecurrentConfig
from cutaway.models.network import Network
from cutaway.training.loss import Loss
from cutaway.training.micro_batches import Cores, StepTotals, accumulate, randomness
from cutaway.training.tasks.translate import Pairs, Translation

V, PAD = 23, 0


def network(name: str, dropout: float, dtype: torch.dtype = torch.float32) -> Network:
    config = cutaway.preset(name)
    if isinstance(config, RecurrentConfig):
        sizes = {"vocabulary": V, "n_layers": 1, "d_model": 6, "d_hidden": 8, "dropout": dropout}
    else:
        sizes = {"vocabulary": V, "n_blocks": 1, "d_model": 8, "n_heads": 2, "d_ff": 12, "dropout": dropout}
    assert config.encoder is not None
    assert config.decoder is not None
    made = replace(config, encoder=replace(config.encoder, **sizes), decoder=replace(config.decoder, **sizes))  # type: ignore[arg-type]
    return build(made, seed=3).to(dtype).train()


def task(smoothing: float = 0.1, agreement: float = 0.0) -> Translation:
    generator = torch.Generator().manual_seed(0)

    def texts(n: int) -> EncodedTexts:
        lengths = torch.randint(2, 9, (n,), generator=generator).tolist()
        return EncodedTexts.of([torch.randint(3, V, (length,), generator=generator).tolist() for length in lengths])

    train = Pairs(texts(30), texts(30))
    return Translation(train, train, [], start=1, pad=PAD, smoothing=smoothing, agreement=agreement)


UNEVEN = [torch.arange(0, 17), torch.arange(17, 20), torch.tensor([20]), torch.arange(21, 30)]


def computed(
    model: Network, of: Translation, shares: list[Tensor], cores: int = 0
) -> tuple[dict[str, Tensor], StepTotals]:
    """Gradients and sums of step 5; `cores` 0: one by one."""
    weights = dict(model.named_parameters())
    n_tokens = sum(of.n_tokens(rows) for rows in shares)
    random = randomness(seed=1, step=5)

    def compute(share: int, generator: torch.Generator) -> Loss:
        return of.loss(model, of.batch(shares[share], generator))

    for weight in weights.values():
        weight.grad = None
    if cores:
        pool = Cores(cores, nullcontext)
        sums = pool(list(weights.values()), range(len(shares)), compute, random, n_tokens)
        pool.close()
    else:
        sums = accumulate(range(len(shares)), compute, random, n_tokens)
    return {name: weight.grad for name, weight in weights.items() if weight.grad is not None}, sums


@pytest.mark.parametrize("agreement", [0.0, 2.0])
@pytest.mark.parametrize("name", ["transformer-tiny", "bahdanau-gru"])
def test_any_number_of_cores_gives_the_same_bits(name: str, agreement: float) -> None:
    model, of = network(name, dropout=0.3), task(agreement=agreement)
    expected, sums = computed(model, of, UNEVEN)
    assert expected.keys() == dict(model.named_parameters()).keys()
    for cores in (1, 2, 3):
        found, seen = computed(model, of, UNEVEN, cores)
        assert found.keys() == expected.keys()
        assert {key: torch.equal(found[key], expected[key]) for key in found} == dict.fromkeys(found, True)
        assert seen == sums


def test_what_is_dropped_depends_on_seed_step_and_share() -> None:
    draws = [
        torch.rand(3, generator=randomness(seed, step)(share))
        for seed, step, share in ((1, 1, 0), (2, 1, 0), (1, 2, 0), (1, 1, 1), (-1, 1, 0), (1, 2**31, 0))
    ]
    assert len({tuple(draw.tolist()) for draw in draws}) == len(draws)
    assert torch.equal(draws[0], torch.rand(3, generator=randomness(1, 1)(0)))


@pytest.mark.parametrize("cores", [0, 2])
@pytest.mark.parametrize("name", ["transformer-tiny", "bahdanau-gru"])
def test_uneven_shares_have_the_gradient_of_the_whole_batch(name: str, cores: int) -> None:
    """In float64, and without dropout: only the order of sums differs, so 1e-12 of each tensor's size is left."""
    model, of = network(name, 0.0, torch.float64), task()
    whole, sums = computed(model, of, [torch.arange(30)])
    found, seen = computed(model, of, UNEVEN, cores)
    for key, grad in found.items():
        assert float((grad - whole[key]).norm()) <= 1e-12 * float(whole[key].norm()) + 1e-14, key
    assert seen.n == sums.n == int(of.lengths[:, 1].sum())
    assert (seen.total, seen.nll) == pytest.approx((sums.total, sums.nll), rel=1e-12)


def test_the_mean_of_the_shares_means_would_be_wrong() -> None:
    """What dividing each share by its own tokens gives: another gradient, so the test above could fail."""
    model, of = network("transformer-tiny", 0.0, torch.float64), task()
    whole, _ = computed(model, of, [torch.arange(30)])
    alone = [computed(model, of, [rows])[0] for rows in UNEVEN]
    for key in whole:
        if whole[key].norm() > 1e-9:
            mean = torch.stack([grads[key] for grads in alone]).mean(0)
            assert float((mean - whole[key]).norm()) > 1e-3 * float(whole[key].norm()), key


def test_an_error_in_a_thread_is_heard() -> None:
    def compute(share: int, _: torch.Generator) -> Loss:
        raise RuntimeError(f"share {share} failed")

    pool = Cores(2, nullcontext)
    with pytest.raises(RuntimeError, match="share 0 failed"):
        pool([torch.zeros(1, requires_grad=True)], range(4), compute, randomness(1, 1), 1)
    pool.close()
