"""Attention in training: the kernel against the written-out steps in float64, and that parts use it when they may."""

import pytest
import torch

from cutaway.kernels import attention as kernel
from cutaway.kernels import choice, kernels
from cutaway.parts import masks
from cutaway.parts.attention import Attention
from cutaway.parts.masks import Bias
from cutaway.parts.tap import listening
from tests.support.gradients import assert_same, assert_same_bits_from_threads, assert_small_steps

# Products of at most 130 float32 numbers of size 1, and e to the power of such: each rounded to 6e-8 of itself.
CLOSE = {"rtol": 1e-4, "atol": 1e-5}

if kernels() is None:
    pytest.skip(
        "the kernels are off, or no C compiler built them; tests/contract and tests/numbers hold torch's steps",
        allow_module_level=True,
    )


def inputs(B, T, S, H, G, K, dtype=torch.float32):
    """q, k and v as a linear layer gives them, heads side by side, and a gradient of what comes out."""
    torch.manual_seed(T * 1000 + S)
    made = [torch.randn(B, n, heads * K).to(dtype) for n, heads in ((T, H), (S, G), (S, G))]
    split = [x.view(B, x.shape[1], -1, K).transpose(1, 2).requires_grad_() for x in made]
    return split, torch.randn(B, H, T, K).to(dtype)


def written_out(q, k, v, bias, scale, kept=None):
    """`kept`: of each weight 0 if dropped, else what it is multiplied by."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = q @ k.mT * scale
    weights = (scores if bias is None else scores + bias.double()).softmax(-1)
    return (weights if kept is None else weights * kept) @ v


def compare(tensors, grad, bias, scale, level=0, seed=0, kept=None):
    exact = [x.detach().double().requires_grad_() for x in tensors]
    y = kernel.train(*tensors, bias, scale, level, seed)
    wanted = written_out(*exact, bias, scale, kept)
    assert_same(y, wanted, tensors, exact, grad, **CLOSE)


SIZES = [
    (3, 5, 7, 4, 4, 6), (2, 1, 7, 4, 2, 6), (2, 5, 1, 3, 3, 8), (1, 1, 1, 1, 1, 1), (2, 16, 16, 2, 2, 32),
    (2, 17, 13, 4, 2, 20), (1, 8, 9, 6, 1, 64), (1, 33, 40, 2, 2, 128), (1, 3, 130, 1, 1, 5),
]  # fmt: skip


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("mask", ["none", "padding", "causal", "both", "heads"])
def test_forward_and_gradients(sizes, mask):
    B, T, S, H, _, K = sizes
    tensors, grad = inputs(*sizes)
    visible = (
        (torch.arange(S) < torch.tensor([S, 1, (S + 1) // 2][:B])[:, None]) if mask in ("padding", "both") else None
    )
    ahead = torch.ones(T, S, dtype=torch.bool).tril(max(S - T, 0)) if mask in ("causal", "both") else None
    combined = masks.combine(visible, ahead)
    bias = None if combined is None else masks.to_bias(combined)
    if mask == "heads":
        bias = torch.randn(1, H, T, S)
    compare(tensors, grad, bias, K**-0.5)


@pytest.mark.parametrize("sizes", [(3, 5, 7, 4, 2, 6), (2, 16, 9, 2, 2, 32)])
def test_dropped_weights(sizes):
    """Values that are 1 for one key at a time tell which weights are dropped; with these the gradients fit."""
    B, _, S, _, G, K = sizes
    tensors, grad = inputs(*sizes)
    level, seed, scale = 77, 2**62 + 12345, K**-0.5
    with torch.no_grad():
        q, k, _ = tensors
        whole = written_out(q.double(), k.double(), torch.eye(S).double().expand(B, G, S, S), None, scale)
        ones = torch.eye(S)[:, None, None, :, None].expand(S, B, G, S, K)
        seen = torch.stack([kernel.train(q, k, v, None, scale, level, seed)[..., 0] for v in ones], -1)
    kept = (seen.double() / whole).round(decimals=4)
    torch.testing.assert_close(kept.unique(), torch.tensor([0.0, 256 / (256 - level)]).double(), rtol=0, atol=1e-4)
    compare(tensors, grad, None, scale, level, seed, (kept > 0) * 256 / (256 - level))


def test_as_many_are_dropped_as_asked_for():
    """40000 draws of p = 64/256: the share is within 5 standard deviations, √(p (1 - p) / 40000) each."""
    q, k, v = torch.zeros(10, 4, 100, 1), torch.zeros(10, 4, 10, 1), torch.ones(10, 4, 10, 1)
    y = kernel.train(q, k, v, None, 1.0, 64, 7)
    assert abs(float(y.mean()) - 1.0) < 5 * (0.25 * 0.75 / 40000) ** 0.5 / 0.75
    assert not torch.equal(y, kernel.train(q, k, v, None, 1.0, 64, 8))
    assert torch.equal(y, kernel.train(q, k, v, None, 1.0, 64, 7))


def test_gradients_by_small_steps():
    """float32 at such a step is good to 1e-3."""
    tensors, grad = inputs(1, 3, 4, 2, 1, 5)
    bias = masks.to_bias(masks.look_ahead(3, 4))
    assert_small_steps(lambda *at: kernel.train(*at, bias, 0.4), tensors, grad, tolerance=1e-3)


def test_same_bits_from_many_threads():
    tensors, grad = inputs(8, 14, 13, 4, 4, 32)
    assert_same_bits_from_threads(lambda *at: kernel.train(*at, None, 0.2, 30, 99), tensors, grad)


def test_any_strides():
    """Gradients and inputs may be expanded, or have their last axis elsewhere."""
    tensors, _ = inputs(2, 5, 7, 4, 4, 8)
    odd = [x.detach().mT.contiguous().mT.requires_grad_() for x in tensors]
    bias = torch.randn(2, 1, 7, 5).mT
    for given in (tensors, odd):
        compare(given, torch.ones(1).expand(2, 4, 5, 8), bias, 0.3)


@pytest.fixture
def called(monkeypatch):
    """How often the kernel ran; it does wherever it can, even if this machine is faster without."""
    calls, attend = [], kernel.train
    monkeypatch.setattr(kernel, "train", lambda *given: calls.append(given) or attend(*given))
    with choice.using(choice.USUAL):
        yield calls


def test_when_a_part_uses_it(called, monkeypatch):
    torch.manual_seed(0)
    part = Attention(24, 4, n_kv_heads=2).train()
    x = torch.randn(3, 5, 24)
    bias = Bias(masks.to_bias(masks.look_ahead(5)[None, None]), causal=True)

    def gradients(part, x):
        y = part(x, bias=bias)
        y.backward(torch.linspace(-1, 1, y.numel()).view_as(y).to(y.dtype))
        found = [weight.grad for weight in part.parameters()]
        part.zero_grad()
        return y.detach(), *found

    ours = gradients(part, x)
    assert len(called) == 1
    with listening(part, {"weights": lambda value, name: None}):
        listened = gradients(part, x)
    with torch.no_grad():
        part(x, bias=bias)
    part.eval()(x, bias=bias)
    gradients(part.train().double(), x.double())
    part.float()
    learnt = Bias(torch.zeros(1, 4, 5, 5, requires_grad=True))
    part(x, bias=learnt).sum().backward()
    part.zero_grad()
    assert learnt.dense.grad is not None
    monkeypatch.setattr(choice, "kernels", lambda: None)
    without = gradients(part, x)
    assert len(called) == 1
    for a, b, c in zip(ours, listened, without, strict=True):
        torch.testing.assert_close(a, b, **CLOSE)
        torch.testing.assert_close(a, c, **CLOSE)


def test_a_part_drops_by_torchs_seed(called):
    part, x = Attention(24, 4, dropout=0.3).train(), torch.randn(3, 5, 24)
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        results.append(part(x))
    assert len(called) == 3
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])
