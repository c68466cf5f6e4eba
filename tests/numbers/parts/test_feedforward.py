"""The feed-forward part and its activations against the numpy oracle."""

import pytest
import torch

from cutaway.parts.feedforward import ACTIVATIONS, FeedForward
from tests.numbers import oracle
from tests.support.families import arrays, noisy
from tests.support.parts import B, D, F, T, close, double


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("activation", list(ACTIVATIONS))
def test_feedforward(run, activation, gated, bias):
    ff = noisy(FeedForward(D, F, activation=activation, gated=gated, bias=bias))
    x = 2 * torch.randn(B, T, D)
    assert ("up.bias" in arrays(ff)) is bias
    y = run(ff, x)
    for b in range(B):
        close(y[b], oracle.feedforward(arrays(ff), double(x[b]), activation))
    if not run.is_fused:
        assert run.seen["activated"].shape == (B, T, F)
        assert ("gates" in run.seen) is gated


@pytest.mark.parametrize("name", list(ACTIVATIONS))
def test_activation(name):
    x = torch.linspace(-6, 6, 97)
    # GELU and its tanh form differ by up to 5e-4: they are told apart
    close(ACTIVATIONS[name](x), oracle.ACTIVATIONS[name](double(x)), rtol=0, atol=1e-6)  # one float32 function each
