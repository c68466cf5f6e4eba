"""Dropout by bytes: its share, its mean and its randomness."""

import math

import pytest
import torch

from cutaway.errors import ConfigError
from cutaway.kernels.dropout import dropout
from cutaway.parts.dropout import Dropout
from tests.support.parts import equal


@pytest.mark.parametrize("p", [0.1, 0.25, 0.5, 0.9])
def test_dropout_drops_its_share_and_keeps_the_mean(p):
    n = 200_003  # no multiple of 8
    x = torch.randn(n)
    y = dropout(x, p)
    share = round(p * 256) / 256
    dropped = y == 0
    deviation = math.sqrt(share * (1 - share) / n)
    assert abs(dropped.float().mean().item() - share) < 5 * deviation
    equal(y[~dropped], (x * (256 / (256 - round(p * 256))))[~dropped])  # so that the mean is exactly x
    ones = dropout(torch.ones(n), p)
    assert abs(ones.mean().item() - 1) < 5 * ones.std().item() / math.sqrt(n)


@pytest.mark.parametrize("p", [0.001, 0.9995])  # less than half of 1/256 away from none or all
def test_dropout_beyond_a_byte(p):
    n = 400_000
    dropped = (dropout(torch.ones(n), p) == 0).float().mean().item()
    assert abs(dropped - p) < 5 * math.sqrt(p * (1 - p) / n)


def test_dropout_backward_uses_the_same_mask():
    x = torch.randn(3, 11, requires_grad=True)
    y = dropout(x, 0.5)
    y.backward(torch.full_like(y, 3.0))
    equal(x.grad, (y != 0) * 6.0)
    assert 0 < (x.grad == 0).sum() < x.numel()


def test_dropout_off():
    x = torch.randn(4, 5)
    assert dropout(x, 0.0) is x
    assert Dropout(0.5).eval()(x) is x
    layer = Dropout(0.5).eval()
    assert layer(x) is x
    before = x.clone()
    assert not torch.equal(layer.train()(x), x)
    equal(x, before)  # and never in place


def test_dropout_follows_torchs_seed():
    x = torch.ones(1000)
    torch.manual_seed(4)
    first, second = dropout(x, 0.3), dropout(x, 0.3)
    torch.manual_seed(4)
    equal(dropout(x, 0.3), first)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 5), (0, 4), (2, 3, 8)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_dropout_keeps_shape_and_dtype(shape, dtype):
    y = dropout(torch.ones(shape, dtype=dtype), 0.5)
    assert y.shape == shape
    assert y.dtype == dtype
    assert ((y == 0) | (y == 2)).all()


def test_dropout_of_a_transposed_tensor():
    x = torch.arange(1.0, 41.0).view(5, 8).T
    y = dropout(x, 0.5)
    equal(y[y != 0], 2 * x[y != 0])


def test_every_bit_of_dropout_is_random():
    """The byte behind each number is the count of levels at which it is kept; none of a word's 64 bits may be stuck."""
    n = 8 * 512
    byte = torch.zeros(n, dtype=torch.long)
    for level in range(1, 256):
        torch.manual_seed(1)  # the same bytes each time
        byte += dropout(torch.ones(n), level / 256) != 0
    bits = (byte.view(-1, 8, 1) >> torch.arange(8)) & 1  # word, byte, bit
    words = bits.flatten(1).double()
    assert words.shape == (512, 64)
    limit = 5.5 / math.sqrt(512)  # deviations of the mean of 512 signs; 64 · 63 / 2 pairs are looked at
    signs = 2 * words - 1
    assert signs.mean(0).abs().max() < limit
    together = (signs.T @ signs / 512).fill_diagonal_(0)
    assert together.abs().max() < limit  # no bit follows another
    assert byte.unique().numel() == 256


def test_dropout_is_a_probability():
    for p in (-0.1, 1.0, 1.5):
        with pytest.raises(ConfigError, match=f"^dropout={p} is not a probability below 1; choose 0 ≤ dropout < 1$"):
            Dropout(p)
