"""The residual connection in training: x + dropout(f) and its norm, against the written-out steps in float64."""

import pytest
import torch

from cutaway.kernels import choice, kernels
from cutaway.kernels.dropout import add_dropped, drawn_from
from cutaway.kernels.norms import add_norm
from cutaway.parts.attention import Attention
from cutaway.parts.block import Block
from cutaway.parts.feedforward import FeedForward
from cutaway.parts.norms import LayerNorm, RMSNorm
from cutaway.parts.tap import listening
from tests.support.gradients import assert_same, assert_same_bits_from_threads, assert_small_steps

# Sums of at most 130 float32 numbers of size 1 to 10, each rounded to 6e-8 of itself.
CLOSE = {"rtol": 1e-4, "atol": 1e-5}
LEVEL, SEED = 77, 2**62 + 12345

if kernels() is None:
    pytest.skip(
        "the kernels are off, or no C compiler built them; tests/contract and tests/numbers hold torch's steps",
        allow_module_level=True,
    )


def inputs(*shape):
    torch.manual_seed(sum(shape))
    x, f = (torch.randn(shape, requires_grad=True) for _ in range(2))
    weight, bias = (torch.randn(shape[-1], requires_grad=True) for _ in range(2))
    return x, f, weight, bias, torch.randn(shape)


def written_out(x, f, weight, bias, kept):
    """`kept`: of each number of f 0 if dropped, else what it is multiplied by."""
    y = x if f is None else x + f * kept
    if bias is not None:
        y = y - y.mean(-1, keepdim=True)
    y = weight * y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-5)
    return y if bias is None else y + bias


def given(*tensors):
    return [x for x in tensors if x is not None]


@pytest.mark.parametrize("shape", [(3, 5, 6), (1, 1), (7, 1, 13), (2, 128), (5, 8), (3, 1030)])
@pytest.mark.parametrize("kind", ["layer", "rms"])
@pytest.mark.parametrize("level", [None, 0, LEVEL])  # None: no f at all
def test_norm_of_a_sum(shape, kind, level):
    x, f, weight, bias, grad = inputs(*shape)
    f, bias = None if level is None else f, None if kind == "rms" else bias
    kept = 1.0
    if level:  # as many rows of ones, far from their mean where dropped, tell which are
        n = shape[-1]
        seen = add_norm(torch.zeros(shape), torch.ones(shape), torch.ones(n), None, 1e-5, level, SEED)
        kept = (seen > 0).double() * 256 / (256 - level)
    doubles = [None if t is None else t.detach().double().requires_grad_() for t in (x, f, weight, bias)]
    y = add_norm(x, f, weight, bias, 1e-5, level or 0, SEED)
    assert_same(y, written_out(*doubles, kept), given(x, f, weight, bias), given(*doubles), grad, **CLOSE)


def test_x_and_what_is_left_of_f():
    """2100 numbers: more than one block of random bytes, and an unfinished word."""
    x, f, _, _, grad = inputs(3, 701)
    left = add_dropped(None, torch.ones_like(f), LEVEL, SEED).double()
    assert left.unique().tolist() == pytest.approx([0.0, 256 / (256 - LEVEL)])
    doubles = [t.detach().double().requires_grad_() for t in (x, f)]
    assert_same(add_dropped(x, f, LEVEL, SEED), doubles[0] + doubles[1] * left, (x, f), doubles, grad, **CLOSE)
    assert_same(add_dropped(None, f, LEVEL, SEED), doubles[1] * left, (f,), doubles[1:], grad, **CLOSE)


def test_draws_are_even_and_alike_only_for_one_seed():
    """A million draws: the share dropped is within 5 standard deviations; neither neighbours nor seeds agree more often
    than independent ones, p² + (1 - p)²."""
    n, p = 2**20, LEVEL / 256
    ones = torch.ones(n)
    dropped = [add_dropped(None, ones, LEVEL, seed) == 0 for seed in (SEED, SEED + 1, SEED + 2**40, SEED)]
    for some in dropped:
        assert abs(float(some.float().mean()) - p) < 5 * (p * (1 - p) / n) ** 0.5
    same = p**2 + (1 - p) ** 2
    pairs = [(dropped[0], dropped[1]), (dropped[0], dropped[2])]
    pairs += [(dropped[0][step:], dropped[0][:-step]) for step in (1, 7, 8, 64, 128, 1024)]
    for a, b in pairs:
        assert abs(float((a == b).float().mean()) - same) < 5 * (same * (1 - same) / n) ** 0.5
    assert torch.equal(dropped[0], dropped[3])


def test_gradients_by_small_steps():
    """float32 at such a step is good to 1e-3, and norms are steep."""
    *tensors, grad = inputs(2, 6)
    assert_small_steps(lambda *at: add_norm(*at, 1e-5, LEVEL, SEED), tensors, grad, tolerance=5e-3)


def test_same_bits_from_many_threads():
    *tensors, grad = inputs(40, 128)
    assert_same_bits_from_threads(lambda *at: add_norm(*at, 1e-5, LEVEL, SEED), tensors, grad)


def test_any_strides():
    x, f, weight, bias, _ = inputs(4, 6)
    doubles = [t.detach().double().requires_grad_() for t in (x, f, weight, bias)]
    wide = torch.stack((x, x), -1)[..., 0]
    exact = written_out(*doubles, 1.0)
    assert_same(
        add_norm(wide, f, weight, bias, 1e-5), exact, (x, f, weight, bias), doubles, torch.ones(1).expand(4, 6), **CLOSE
    )


def block(norm_kind, norm_place, p):
    torch.manual_seed(0)
    return Block(Attention(10, 2), FeedForward(10, 14), norm_kind=norm_kind, norm_place=norm_place, dropout=p).train()


@pytest.mark.parametrize("norm_place", ["pre", "post"])
@pytest.mark.parametrize("norm_kind", ["layer", "rms"])
def test_a_block_is_the_same_heard_and_without_kernels(norm_kind, norm_place, monkeypatch):
    """Without dropout all three give the same values and gradients."""
    part, x = block(norm_kind, norm_place, 0.0), torch.randn(3, 5, 10)

    def gradients():
        y = part(x)
        y.backward(torch.linspace(-1, 1, y.numel()).view_as(y))
        found = [weight.grad for weight in part.parameters()]
        part.zero_grad()
        return y.detach(), *found

    seen = []
    ours = gradients()
    with listening(part, {"*": lambda value, name: seen.append(name)}):
        heard = gradients()
    monkeypatch.setattr(choice, "kernels", lambda: None)
    without = gradients()
    assert "self_attention_add" in seen
    assert "feedforward_norm.normalized" in seen
    for a, b, c in zip(ours, heard, without, strict=True):
        torch.testing.assert_close(a, b, **CLOSE)
        torch.testing.assert_close(a, c, **CLOSE)


@pytest.mark.parametrize("norm_place", ["pre", "post"])
def test_a_block_drops_by_torchs_seed(norm_place):
    part, x, results = block("layer", norm_place, 0.3), torch.randn(3, 5, 10), []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        results.append(part(x))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


@pytest.mark.parametrize("norm", [LayerNorm, RMSNorm])
def test_other_numbers_go_by_torch(norm):
    for dtype in (torch.float64, torch.bfloat16):
        part = norm(6).to(dtype).train()
        part(torch.randn(2, 6).to(dtype)).sum().backward()
        assert part.weight.grad.dtype == dtype


def test_draws_of_a_share_come_from_its_generator():
    """As threads have a generator each, what one drops does not depend on the others."""
    part, x = block("layer", "post", 0.3), torch.randn(3, 5, 10)
    results = []
    for _ in range(2):
        with drawn_from(torch.Generator().manual_seed(3)):
            results.append(part(x))
        torch.rand(1)
    assert torch.equal(*results)


@pytest.mark.parametrize("norm", [LayerNorm, RMSNorm])
def test_a_wrong_width_is_torchs_error(norm):
    with pytest.raises(RuntimeError):
        norm(6).train()(torch.randn(2, 9))
