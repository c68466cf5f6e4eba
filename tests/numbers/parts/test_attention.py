"""Attention, fused and written out, against the numpy oracle."""

import math
from dataclasses import asdict

import numpy as np
import pytest
import torch
from torch import nn

from cutaway.errors import ConfigError, InputError
from cutaway.kernels import attention as attention_file
from cutaway.parts import masks, positions
from cutaway.parts.attention import Attention, head_width, merge_heads, split_heads
from cutaway.parts.kv_cache import KVCache
from cutaway.parts.positions import RelativeBias, RotaryScaling, rotary
from cutaway.parts.tap import listening
from tests.numbers import oracle
from tests.support.families import arrays, noisy
from tests.support.parts import CLOSE, LEFT, RIGHT, SAME_SUMS, B, D, G, H, K, S, T, close, double, equal


def attention_rows(attention, x, memory=None, *, mask=None, memory_mask=None, **options):
    """(row of the batch, its real queries, what the oracle says of them)."""
    p = arrays(attention)
    for b in range(len(x)):
        queries = torch.ones(x.shape[1], dtype=torch.bool) if mask is None else mask[b]
        source = None
        if memory is not None:
            source = double(memory[b] if memory_mask is None else memory[b][memory_mask[b]])
        yield b, queries, oracle.attention(p, double(x[b][queries]), source, n_heads=attention.n_heads, **options)


@pytest.mark.parametrize("mask", [None, RIGHT, LEFT], ids=["full", "right", "left"])
@pytest.mark.parametrize("causal", [False, True], ids=["both_ways", "causal"])
@pytest.mark.parametrize("n_kv_heads", [H, G, 1])
def test_self_attention(run, causal, mask, n_kv_heads):
    attention = noisy(Attention(D, H, n_kv_heads=n_kv_heads, d_head=K))
    x = torch.randn(B, S, D)
    bias = masks.bias(S, S, x, causal=causal, visible_BS=mask)
    y = run(attention, x, bias=bias)
    for b, real, theirs in attention_rows(attention, x, mask=mask, n_kv_heads=n_kv_heads, causal=causal):
        close(y[b][real], theirs)
    if not run.is_fused:
        weights, masked = run.seen["weights"], run.seen["masked_scores"]
        assert weights.shape == (B, H, S, S)
        torch.testing.assert_close(weights.sum(-1), torch.ones(B, H, S), **SAME_SUMS)
        assert (weights[masked == -torch.inf] == 0).all()  # exactly: what is hidden has no part in the result
        close(run.seen["output"], double(y), atol=0)


@pytest.mark.parametrize("mask", [None, RIGHT, LEFT], ids=["full", "right", "left"])
def test_cross_attention(run, mask):
    attention = noisy(Attention(D, H, d_head=K))
    x, memory = torch.randn(B, T, D), torch.randn(B, S, D)
    y = run(attention, x, memory, bias=masks.bias(T, S, x, causal=False, visible_BS=mask))
    assert y.shape == (B, T, D)
    for b, _, theirs in attention_rows(attention, x, memory, memory_mask=mask):
        close(y[b], theirs)


@pytest.mark.parametrize("mask", [None, RIGHT, LEFT], ids=["full", "right", "left"])
@pytest.mark.parametrize("scaling", [None, RotaryScaling(factor=4.0, original_positions=32)], ids=["plain", "scaled"])
def test_rotary_grouped_attention(run, mask, scaling):
    attention = noisy(Attention(D, H, n_kv_heads=G, d_head=K, qkv_bias=False, out_bias=False, rotary=True))
    x = torch.randn(B, S, D)
    place = positions.position_ids(S, mask, x.device)
    rotation = rotary(place, K, base=100.0, scaling=scaling)
    y = run(attention, x, bias=masks.bias(S, S, x, causal=True, visible_BS=mask), rotation=rotation)
    frequencies = oracle.rotary_frequencies(K, 100.0, scaling and asdict(scaling))
    rows = attention_rows(attention, x, mask=mask, n_kv_heads=G, causal=True, frequencies=frequencies)
    for b, real, theirs in rows:
        close(y[b][real], theirs)


@pytest.mark.parametrize("mask", [None, RIGHT, LEFT], ids=["full", "right", "left"])
@pytest.mark.parametrize("both_ways", [True, False], ids=["encoder", "decoder"])
def test_t5_attention(run, both_ways, mask):
    attention = noisy(Attention(D, H, d_head=K, qkv_bias=False, out_bias=False, scale_scores=False))
    relative = noisy(RelativeBias(8, 12, H, both_ways=both_ways), std=1.0)
    x = torch.randn(B, S, D)
    bias = masks.bias(S, S, x, causal=not both_ways, visible_BS=mask, positions_BHTS=relative.between(S, S))
    y = run(attention, x, bias=bias)
    table = arrays(relative)["weight"]
    for b in range(B):
        real = torch.ones(S, dtype=torch.bool) if mask is None else mask[b]
        n = int(real.sum())
        theirs = oracle.t5_attention(
            arrays(attention),
            double(x[b][real]),
            n_heads=H,
            causal=not both_ways,
            bias=oracle.t5_bias(table, n, n, 8, 12, both_ways),
        )
        close(y[b][real], theirs)


def test_attention_values_along_the_way():
    """Each tap of the written-out path, against the formula it carries."""
    attention = noisy(Attention(D, H, n_kv_heads=G, d_head=K))
    x, memory = torch.randn(B, T, D), torch.randn(B, S, D)
    seen = {}
    bias = masks.bias(T, S, x, causal=False, visible_BS=RIGHT)
    with listening(attention, {"*": lambda value, name: seen.__setitem__(name, double(value))}):
        attention(x, memory, bias=bias)
    p = arrays(attention)
    for b in range(B):
        q = oracle.linear(oracle.under(p, "q."), double(x[b]))
        k = oracle.linear(oracle.under(p, "k."), double(memory[b]))
        v = oracle.linear(oracle.under(p, "v."), double(memory[b]))
        for h in range(H):
            g = h // 2
            q_h, k_g, v_g = q[:, h * K : (h + 1) * K], k[:, g * K : (g + 1) * K], v[:, g * K : (g + 1) * K]
            weights = np.zeros((T, S))
            n = int(RIGHT[b].sum())
            weights[:, :n] = oracle.softmax(q_h @ k_g[:n].T / math.sqrt(K))
            for name, value in {
                "queries": (q_h, h),
                "keys": (k_g, g),
                "values": (v_g, g),
                "scores": (q_h @ k_g.T, h),
                "scaled_scores": (q_h @ k_g.T / math.sqrt(K), h),
                "weights": (weights, h),
                "heads": (weights @ v_g, h),
            }.items():
                np.testing.assert_allclose(seen[name][b, value[1]], value[0], err_msg=name, **CLOSE)
            np.testing.assert_array_equal(seen["concatenated"][b, :, h * K : (h + 1) * K], seen["heads"][b, h])
            assert (seen["masked_scores"][b, h, :, n:] == -np.inf).all()
            np.testing.assert_array_equal(seen["masked_scores"][b, h, :, :n], seen["scaled_scores"][b, h, :, :n])


def test_a_query_that_sees_nothing_is_shown_everything(run):
    """A number, not NaN, and the same on both paths."""
    attention = noisy(Attention(D, H, d_head=K))
    x = torch.randn(1, S, D)
    visible = torch.tensor([[0, 0, 1, 1, 1, 1, 1]]).bool()  # queries 0 and 1 are padding, and look back: at nothing
    y = run(attention, x, bias=masks.bias(S, S, x, causal=True, visible_BS=visible))
    unmasked = oracle.attention(arrays(attention), double(x[0]), n_heads=H)
    close(y[0, :2], unmasked[:2])
    assert abs(double(y[0, 2]) - unmasked[2]).max() > 0.1  # the next one is a real token, and sees itself only


@pytest.mark.parametrize("n_heads", [1, 2, 4])
def test_fused_unless_somebody_listens_to_what_is_inside(monkeypatch, n_heads):
    attention = Attention(8, n_heads).eval()  # in training, short ones have a kernel of ours: tests/kernels
    calls = []
    fused = nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(attention_file, "torch_is_faster", lambda *_: True)
    monkeypatch.setattr(
        nn.functional, "scaled_dot_product_attention", lambda *a, **k: calls.append(1) or fused(*a, **k)
    )
    x = torch.randn(B, T, 8)
    attention(x)
    assert len(calls) == 1
    for name in ("queries", "keys", "values", "heads", "output"):  # known without opening the kernel
        with listening(attention, {name: lambda *_: None}):
            attention(x)
    assert len(calls) == 6
    for name in ("scores", "scaled_scores", "masked_scores", "weights"):
        with listening(attention, {name: lambda *_: None}):
            attention(x)
    assert len(calls) == 6


def test_attention_remembers(run):
    """Token after token with a cache, or all at once: the same."""
    attention = noisy(Attention(D, H, n_kv_heads=G, d_head=K, rotary=True))
    x = torch.randn(B, S, D)
    whole = attention(x, bias=masks.bias(S, S, x, causal=True), rotation=rotary(torch.arange(S), K))
    cache = KVCache()
    with torch.no_grad():
        for start, end in ((0, 3), (3, 4), (4, 7)):  # a prompt, one token, several tokens
            n = end - start
            y = run(
                attention,
                x[:, start:end],
                bias=masks.bias(n, end, x, causal=True),
                rotation=rotary(torch.arange(start, end), K),
                kv_cache=cache,
            )
            torch.testing.assert_close(y, whole[:, start:end].detach(), **SAME_SUMS)


def test_memory_is_projected_once():
    attention = noisy(Attention(D, H, d_head=K))
    x, memory, cache = torch.randn(B, 1, D), torch.randn(B, S, D), KVCache()
    first = attention(x, memory, kv_cache=cache)
    equal(attention(x, torch.full_like(memory, torch.nan), kv_cache=cache), first)
    assert cache.length == S


def test_attention_arguments_and_vectors():
    for wrong, message in (
        ({"n_heads": 0}, "Attention: n_heads=0 must be at least 1"),
        ({"n_heads": -2}, "Attention: n_heads=-2 must be at least 1"),
        ({"n_kv_heads": 0}, "Attention: n_kv_heads=0 must be at least 1"),
        ({"d_head": 0}, "Attention: d_head=0 must be at least 1"),
        ({"d_head": 2.0}, r"Attention: d_head is 2\.0 \(float\); expected int"),
        ({"dropout": 2.0}, r"Attention: dropout=2\.0 must be at least 0 and below 1"),
        ({"dropout": math.nan}, "Attention: dropout=nan must be a finite number"),
    ):
        with pytest.raises(ConfigError, match=message):
            Attention(8, **{"n_heads": 4} | wrong)
    attention = Attention(D, H, d_head=K)
    for shape in ((T, D), (B, T, D + 1), (D,)):
        with pytest.raises(InputError, match=rf"x has shape .*; this attention takes \[batch, length, {D}\]"):
            attention(torch.zeros(shape))
    with pytest.raises(InputError, match="memory has shape"):
        attention(torch.zeros(B, T, D), torch.zeros(B, S, D + 1))
    with pytest.raises(InputError, match=f"x has {B} rows, but the memory has 2"):
        attention(torch.zeros(B, T, D), torch.zeros(2, S, D))


def test_split_and_merge_heads_are_inverse():
    x = torch.randn(B, T, H * K)
    heads = split_heads(x, H)
    assert heads.shape == (B, H, T, K)
    equal(heads[1, 2, 3], x[1, 3, 2 * K : 3 * K])
    equal(merge_heads(heads), x)


def test_attention_dropout_keeps_the_mean(run):
    """4000 equal rows: their mean is the result without dropout, but for the mean of 4000 draws."""
    p, n = 0.25, 4000
    attention = noisy(Attention(D, 2, d_head=K, dropout=p))
    x = torch.randn(1, T, D)
    with torch.no_grad():
        attention.eval()
        undropped = attention(x)
        attention.train()
        dropped = run(attention, x.expand(n, T, D))
    error = dropped.std(0) / math.sqrt(n)
    assert (error > 0).all()
    assert ((dropped.mean(0) - undropped[0]).abs() < 5 * error).all()


def test_attention_errors():
    with pytest.raises(ConfigError, match=r"^n_heads=7 does not divide d_model=10; choose one of \[1, 2, 5, 10\]$"):
        Attention(10, 7)
    with pytest.raises(ConfigError, match="n_kv_heads=3 does not divide n_heads=4"):
        Attention(8, 4, n_kv_heads=3)
    assert head_width(10, 7, 3) == 3
    x = torch.randn(1, 2, 8)
    with pytest.raises(InputError, match="a rotation belongs to an attention made with rotary=True"):
        Attention(8, 4)(x, rotation=rotary(torch.arange(2), 2))
    with pytest.raises(InputError, match="a rotation belongs to an attention made with rotary=True"):
        Attention(8, 4, rotary=True)(x)
