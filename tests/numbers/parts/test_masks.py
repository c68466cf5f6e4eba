"""Masks and biases, number by number."""

import pytest
import torch

from cutaway.errors import InputError
from cutaway.parts import masks
from cutaway.parts.attention import Attention
from cutaway.parts.masks import NO_BIAS, Bias
from cutaway.parts.positions import RelativeBias
from tests.support.families import noisy
from tests.support.parts import LEFT, RIGHT, SAME_SUMS, B, D, H, K, S, T, equal


def test_mask_from_ones_and_zeros():
    equal(masks.from_ones_and_zeros([[1, 1, 0]]), torch.tensor([[True, True, False]]))
    equal(masks.from_ones_and_zeros(torch.tensor([1.0, 0.0])), torch.tensor([True, False]))
    with pytest.raises(InputError, match=r"holds only 1 and 0, not \[1, 2\]"):
        masks.from_ones_and_zeros([1, 2])


def test_padding_and_pairs():
    visible = masks.padding(torch.tensor([[5, 6, 0], [5, 0, 0]]), pad=0)
    equal(visible, torch.tensor([[True, True, False], [True, False, False]]))
    expected = [[[1, 1, 0], [1, 1, 0], [0, 0, 0]], [[1, 0, 0], [0, 0, 0], [0, 0, 0]]]
    equal(masks.pairs(visible), torch.tensor(expected).bool())


@pytest.mark.parametrize(
    ("rows", "answer"),
    [([[1, 1, 0], [1, 1, 1]], True), ([[0, 1, 1], [1, 1, 1]], False), ([[1, 0, 1]], False), ([[1]], True)],
)
def test_right_padded(rows, answer):
    assert masks.right_padded(torch.tensor(rows).bool()) is answer


def test_more_queries_than_keys():
    for make in (lambda: masks.look_ahead(5, 3), lambda: RelativeBias(8, 12, H, both_ways=False).between(5, 3)):
        with pytest.raises(InputError, match="5 queries, but only 3 keys"):
            make()


def test_padding_of_lists():
    equal(masks.padding([[1, 0]], 0), torch.tensor([[True, False]]))


def test_look_ahead_is_right_aligned():
    equal(masks.look_ahead(3), torch.tensor([[1, 0, 0], [1, 1, 0], [1, 1, 1]]).bool())
    equal(masks.look_ahead(2, 5), torch.tensor([[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]).bool())
    equal(masks.look_ahead(1, 5), torch.ones(1, 5).bool())


def test_a_window_ends_so_many_tokens_back():
    equal(masks.look_ahead(4, window=2), torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]).bool())
    equal(masks.look_ahead(2, 5, window=3), torch.tensor([[0, 1, 1, 1, 0], [0, 0, 1, 1, 1]]).bool())
    equal(masks.look_ahead(1, 5, window=1), torch.tensor([[0, 0, 0, 0, 1]]).bool())
    equal(masks.look_ahead(3, 5, window=5), masks.look_ahead(3, 5))


def test_combine():
    keys, ahead = torch.tensor([[1, 1, 0], [0, 1, 1]]).bool(), masks.look_ahead(3)
    assert masks.combine(None, None) is None
    equal(masks.combine(None, ahead), ahead[None, None])
    equal(masks.combine(keys, None), keys[:, None, None])
    both = [[[1, 0, 0], [1, 1, 0], [1, 1, 0]], [[0, 0, 0], [0, 1, 0], [0, 1, 1]]]
    equal(masks.combine(keys, ahead), torch.tensor(both).bool()[:, None])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_to_bias(dtype):
    bias = masks.to_bias(torch.tensor([[1, 0], [0, 0], [1, 1]]).bool(), dtype)
    expected = torch.tensor([[0, -torch.inf], [0, 0], [0, 0]], dtype=dtype)  # the second row, hidden whole, gets zeros
    equal(bias, expected)
    assert bias.softmax(-1).isfinite().all()


def test_bias():
    like, relative = torch.zeros(1), torch.randn(1, H, T, T)
    assert masks.bias(T, S, like, causal=False) is NO_BIAS
    assert masks.bias(T, S, like, causal=False, visible_BS=torch.ones(B, S).bool()) is NO_BIAS  # hides nothing
    assert masks.bias(1, S, like, causal=True) is NO_BIAS  # a cached step: the newest token sees all

    square = masks.bias(T, T, like, causal=True)
    assert square.causal
    equal(square.dense, masks.to_bias(masks.look_ahead(T))[None, None])
    oblong = masks.bias(2, T, like, causal=True)
    assert not oblong.causal  # torch's shortcut is aligned to the left
    equal(oblong.dense, masks.to_bias(masks.look_ahead(2, T))[None, None])

    sliding = masks.bias(T, T, like, causal=True, window=2)
    assert not sliding.causal  # the shortcut would see more
    equal(sliding.dense, masks.to_bias(masks.look_ahead(T, window=2))[None, None])
    step = masks.bias(1, S, like, causal=True, window=2)
    equal(step.dense, masks.to_bias(masks.look_ahead(1, S, window=2))[None, None])
    assert masks.bias(1, S, like, causal=True, window=S) is NO_BIAS  # all keys lie in it
    assert masks.bias(T, T, like, causal=True, window=T).causal
    both = masks.bias(S, S, like, causal=True, window=2, visible_BS=LEFT)
    equal(both.dense, masks.to_bias(masks.combine(LEFT, masks.look_ahead(S, window=2))))

    padded = masks.bias(S, S, like, causal=True, visible_BS=RIGHT)
    assert not padded.causal
    equal(padded.dense, masks.to_bias(masks.combine(RIGHT, masks.look_ahead(S))))
    keys = masks.bias(T, S, like, causal=False, visible_BS=LEFT)
    assert not keys.causal
    equal(keys.dense, masks.to_bias(LEFT)[:, None, None])

    equal(masks.bias(T, T, like, causal=False, positions_BHTS=relative).dense, relative)
    both = masks.bias(T, T, like, causal=True, positions_BHTS=relative)
    assert not both.causal
    equal(both.dense, square.dense + relative)
    assert masks.bias(T, T, like.bfloat16(), causal=True).dense.dtype == torch.bfloat16


@pytest.mark.parametrize("causal", [True, False])
def test_the_causal_shortcut_is_the_dense_mask(causal):
    attention = noisy(Attention(D, H, d_head=K))
    x = torch.randn(B, T, D)
    bias = masks.bias(T, T, x, causal=causal)
    torch.testing.assert_close(attention(x, bias=bias), attention(x, bias=Bias(bias.dense)), **SAME_SUMS)


def test_checked_mask():
    good = torch.tensor([[True, False], [True, True]])
    assert masks.check_mask(good, (2, 2), "the mask") is good
    with pytest.raises(InputError, match=r"^the mask has dtype int64; a mask is boolean, True = may attend"):
        masks.check_mask(good.long(), (2, 2), "the mask")
    with pytest.raises(InputError, match=r"^the mask has shape \[2, 2\]; the tokens it belongs to have \[2, 3\]$"):
        masks.check_mask(good, (2, 3), "the mask")
    with pytest.raises(InputError, match=r"^the mask hides every token of row 1; leave at least one visible"):
        masks.require_tokens(torch.tensor([[True, False], [False, False]]), "the mask")
