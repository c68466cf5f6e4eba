"""Layer norm, RMS norm and batch norm against the numpy oracle and torch."""

import numpy as np
import pytest
import torch
from torch import nn

from cutaway.parts.norms import BatchNorm, LayerNorm, RMSNorm, norm
from tests.numbers import oracle
from tests.support.families import arrays, noisy
from tests.support.parts import SAME_SUMS, B, D, T, close, double, equal


@pytest.mark.parametrize("spread", [3.0, 1e-3], ids=["wide", "narrow"])  # narrow: ε is as large as the variance
@pytest.mark.parametrize("epsilon", [1e-5, 1e-6])
def test_layer_norm(run, epsilon, spread):
    layer = noisy(LayerNorm(D, epsilon))
    x = spread * (torch.randn(B, T, D) + 1)
    y = run(layer, x)
    close(y, oracle.layer_norm(arrays(layer), double(x), epsilon))
    if not run.is_fused:
        close(run.seen["mean"][..., 0], double(x).mean(-1))
        close(run.seen["variance"][..., 0], double(x).var(-1))
        close(run.seen["normalized"].mean(-1), np.zeros((B, T)))


@pytest.mark.parametrize("spread", [3.0, 1e-3], ids=["wide", "narrow"])
@pytest.mark.parametrize("epsilon", [1e-5, 1e-6])
def test_rms_norm(run, epsilon, spread):
    layer = noisy(RMSNorm(D, epsilon))
    x = spread * torch.randn(B, T, D)
    close(run(layer, x), oracle.rms_norm(arrays(layer), double(x), epsilon))
    if not run.is_fused:
        close(run.seen["mean_square"][..., 0], (double(x) ** 2).mean(-1))


@pytest.mark.parametrize("kind", [LayerNorm, RMSNorm])
def test_norms_do_not_overflow_in_half_precision(run, kind):
    layer = noisy(kind(D)).half()
    x = (1000 * torch.randn(B, T, D)).half()  # whose squares are beyond float16's 65504
    y = run(layer, x)
    assert y.dtype == torch.float16
    formula = oracle.layer_norm if kind is LayerNorm else oracle.rms_norm
    close(y, formula(arrays(layer), double(x), layer.epsilon), rtol=2e-3, atol=2e-3)  # float16 keeps 5e-4 of a number


def test_norm_by_kind():
    assert isinstance(norm("layer", D, 0.5), LayerNorm)
    assert isinstance(norm("rms", D, 0.5), RMSNorm)
    assert norm("layer", D, 0.5).epsilon == norm("rms", D, 0.5).epsilon == 0.5


def test_batch_norm_is_torchs(run):
    ours, theirs = noisy(BatchNorm(D, momentum=0.3)), nn.BatchNorm1d(D, momentum=0.3)
    theirs.load_state_dict({"weight": ours.weight, "bias": ours.bias}, strict=False)
    for _ in range(3):
        x = 2 * torch.randn(B, T, D) + 1
        torch.testing.assert_close(run(ours, x).flatten(0, 1), theirs(x.flatten(0, 1)), **SAME_SUMS)
        torch.testing.assert_close(ours.running_mean, theirs.running_mean, **SAME_SUMS)
        torch.testing.assert_close(ours.running_variance, theirs.running_var, **SAME_SUMS)
    ours.eval()
    theirs.eval()
    before = ours.running_mean.clone()
    torch.testing.assert_close(run(ours, x).flatten(0, 1), theirs(x.flatten(0, 1)), **SAME_SUMS)
    equal(ours.running_mean, before)  # looking changes nothing


def test_batch_norm_formula(run):
    layer = noisy(BatchNorm(D))
    x = 2 * torch.randn(B, T, D) + 1
    tokens = double(x).reshape(-1, D)
    mean, variance = tokens.mean(0), tokens.var(0)
    close(run(layer, x).flatten(0, 1), oracle.batch_norm(arrays(layer), tokens, mean, variance, layer.epsilon))
    if not run.is_fused:
        close(run.seen["mean"], mean)
        close(run.seen["variance"], variance)


def test_batch_norm_depends_on_the_neighbours_only_in_training():
    layer = noisy(BatchNorm(D))
    x = torch.randn(B, T, D)
    assert (layer(x)[0] - layer(x[:1])[0]).abs().max() > 0.1
    layer.eval()
    equal(layer(x)[0], layer(x[:1])[0])
