"""Every part against the numpy oracle, fused and written out; and what must hold exactly."""

import asyncio
import math
import threading
from dataclasses import asdict

import numpy as np
import pytest
import torch
from torch import nn

from cutaway.errors import ConfigError, InputError
from cutaway.kernels import attention as attention_file
from cutaway.kernels.dropout import dropout
from cutaway.models.build import build
from cutaway.parts import masks, positions
from cutaway.parts.attention import Attention, head_width, merge_heads, split_heads
from cutaway.parts.block import Block
from cutaway.parts.cache import Cache, Memory
from cutaway.parts.dropout import Dropout
from cutaway.parts.embedding import Embedding, PatchEmbedding
from cutaway.parts.feedforward import ACTIVATIONS, FeedForward
from cutaway.parts.kv_cache import KVCache
from cutaway.parts.lookup import EmbeddingTable
from cutaway.parts.masks import NO_BIAS, Bias
from cutaway.parts.norms import BatchNorm, LayerNorm, RMSNorm, norm
from cutaway.parts.positions import LearnedPositions, RelativeBias, RotaryScaling, rotary, sinusoidal
from cutaway.parts.recurrent import RecurrentLayer
from cutaway.parts.recurrent_attention import RecurrentAttention
from cutaway.parts.stack import Stack
from cutaway.parts.tap import Tap, heard, listening, taps
from tests.families import arrays, noisy, shrunk
from tests.numbers import oracle

B, T, S, D, H, G, K, F = 3, 5, 7, 10, 4, 2, 6, 14  # H · K = 24 is not D

CLOSE = {"rtol": 0, "atol": 1e-5}  # sums of at most 48 float32 products of size 1 to 10, each rounded to 6e-8 of itself
ROUNDED = {"rtol": 0, "atol": 1e-7}  # computed in float64, then rounded once to float32 (6e-8 below 1)
SAME_SUMS = {"rtol": 0, "atol": 2e-6}  # torch against torch: the same float32 products, added in another order

# [B, S]: lengths in no order, nor in one that sorting and sorting back would leave alike
RIGHT = torch.tensor([[1, 1, 1, 1, 0, 0, 0], [1, 0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1, 1]]).bool()
LEFT = RIGHT.flip(1)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture(params=["fused", "written_out"])
def run(request, monkeypatch):
    """run(module, *inputs): one of the two paths, and the values of all taps if it is the written-out one."""
    is_fused = request.param == "fused"
    monkeypatch.setattr(attention_file, "torch_is_faster", lambda *_: is_fused)

    def runner(module, *args, **options):
        runner.seen = {}
        if is_fused:
            return module(*args, **options)
        with listening(module, {"*": lambda value, name: runner.seen.__setitem__(name, value)}):
            return module(*args, **options)

    runner.is_fused = is_fused
    return runner


def close(ours: torch.Tensor, theirs: np.ndarray, **tolerance: float) -> None:
    np.testing.assert_allclose(ours.detach().numpy(), theirs, **(tolerance or CLOSE))


def equal(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)


def double(x: torch.Tensor) -> np.ndarray:
    return x.detach().double().numpy()


# Attention ----------------------------------------------------------------------------------------------------------


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


def test_formulas_say_what_is_computed():
    def formulas(part):
        return {name: tap.formula for name, tap in taps(part).items()}

    plain, bare = (formulas(Attention(D, H, d_head=K, qkv_bias=bias, out_bias=bias)) for bias in (True, False))
    assert (plain["queries"], plain["keys"], plain["output"]) == (
        "x W_Q + b_Q",
        "x W_K + b_K",
        "concatenated W_O + b_O",
    )
    assert (bare["queries"], bare["values"], bare["output"]) == ("x W_Q", "x W_V", "concatenated W_O")
    t5 = {name: tap.formula for name, tap in taps(build(shrunk("t5-small"))).items()}
    block = "decoder.blocks.0"
    assert t5[f"{block}.cross_attention.keys"] == "memory W_K"
    assert t5[f"{block}.cross_attention.queries"] == "x W_Q"
    assert t5[f"{block}.self_attention.keys"] == "x W_K"
    assert "position bias" in t5[f"{block}.self_attention.masked_scores"]
    assert "position bias" not in t5[f"{block}.cross_attention.masked_scores"]
    assert t5[f"{block}.feedforward.hidden"] == "x W₁"
    assert t5["head.vocabulary.logits"] == "hidden / √D · tableᵀ"
    awd = {name: tap.formula for name, tap in taps(build(shrunk("awd-lstm"))).items()}
    assert awd["head.vocabulary.logits"] == "hidden · tableᵀ + b"
    llama = {name: tap.formula for name, tap in taps(build(shrunk("llama-15m"))).items()}
    assert not [name for name, formula in llama.items() if " + b" in formula and "bias" not in formula]
    assert "running average" in formulas(BatchNorm(D))["mean"]


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


# Recurrent attention ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mask", [None, RIGHT, LEFT], ids=["full", "right", "left"])
@pytest.mark.parametrize("kind", ["additive", "dot"])
def test_recurrent_attention(run, kind, mask):
    E = 9
    attention = noisy(RecurrentAttention(kind, D, E))
    s, memory = torch.randn(B, T, D), torch.randn(B, S, E)
    bias = masks.bias(1, S, memory, causal=False, visible_BS=mask)
    contexts = run(attention, s, attention.project(memory), memory, bias)
    attend = {"additive": oracle.additive_attention, "dot": oracle.dot_attention}[kind]
    for b in range(B):
        real = torch.ones(S, dtype=torch.bool) if mask is None else mask[b]
        for t in range(T):
            context, weights = attend(arrays(attention), double(s[b, t]), double(memory[b][real]))
            close(contexts[b, t], context)
            if not run.is_fused:
                close(run.seen["weights"][b, t][real], weights)
                assert (run.seen["weights"][b, t][~real] == 0).all()


# Norms --------------------------------------------------------------------------------------------------------------


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


# Feed-forward -------------------------------------------------------------------------------------------------------


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


# Positions ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["interleaved", "halves"])
def test_sinusoidal(layout):
    close(sinusoidal(torch.arange(50), D, layout=layout), oracle.sinusoidal(50, D, layout), **ROUNDED)
    some = torch.tensor([[3, 0, 49], [7, 7, 1]])
    close(sinusoidal(some, D, layout=layout), oracle.sinusoidal(50, D, layout)[some.numpy()], **ROUNDED)


def test_sinusoids_shift_by_a_rotation():
    """§3.5: PE(pos + k) is a linear function of PE(pos), the same at every pos."""
    k, table = 4, sinusoidal(torch.arange(40), D).double()
    for i in range(D // 2):
        angle = k / 10000 ** (2 * i / D)
        turn = torch.tensor([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]]).double()
        pair = table[:, 2 * i : 2 * i + 2]
        torch.testing.assert_close(pair[:-k] @ turn.T, pair[k:], rtol=0, atol=3e-7)  # three numbers of float32


def test_choices_of_parts_are_checked():
    for make, message in (
        (lambda: norm("batch", D, 1e-5), r"norm: no choice 'batch' \(known: layer, rms\)"),
        (lambda: sinusoidal(torch.arange(3), D, layout="paper"), "sinusoidal: layout: no choice 'paper'"),
        (lambda: FeedForward(D, D, activation="swish"), "FeedForward: activation: no choice 'swish'"),
        (lambda: Embedding(5, D, positions="rope"), "Embedding: positions: no choice 'rope'"),
        (lambda: Embedding(0, D), "Embedding: vocabulary=0 must be at least 1"),
        (lambda: RecurrentLayer("GRU", D, D), "RecurrentLayer: cell: no choice 'GRU'; did you mean 'gru'"),
        (lambda: RecurrentAttention("bahdanau", D, D), "RecurrentAttention: kind: no choice 'bahdanau'"),
        (
            lambda: Block(Attention(D, H, d_head=K), FeedForward(D, D), norm_place="Post"),
            "Block: norm_place: no choice 'Post'; did you mean 'post'",
        ),
    ):
        with pytest.raises(ConfigError, match=message):
            make()


def test_sinusoidal_needs_an_even_width():
    with pytest.raises(InputError, match=r"so d_model=9 must be even"):
        sinusoidal(torch.arange(3), 9)


def test_positions_are_counted_in_the_real_sequence():
    cpu = torch.device("cpu")
    equal(positions.position_ids(3, None, cpu), torch.arange(3))
    equal(positions.position_ids(3, torch.tensor([[1, 1, 0]]).bool(), cpu), torch.arange(3))  # right: nothing shifts
    left = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]]).bool()
    equal(positions.position_ids(5, left, cpu), torch.tensor([[0, 0, 0, 1, 2], [0, 1, 2, 3, 4]]))
    gap = torch.tensor([[1, 1, 0, 1], [1, 1, 1, 1]]).bool()  # a short prompt, padded right, and its first new token
    equal(positions.position_ids(4, gap, cpu), torch.tensor([[0, 1, 1, 2], [0, 1, 2, 3]]))


def test_learned_positions():
    table = LearnedPositions(5, D)
    equal(table(torch.tensor([[4, 0]])), table.weight[[4, 0]][None])
    table.check(5)
    with pytest.raises(InputError, match=r"^6 tokens, but this model learned only 5 positions"):
        table.check(6)


@pytest.mark.parametrize("scaling", [None, RotaryScaling(factor=4.0, original_positions=32)], ids=["plain", "scaled"])
def test_rotary(scaling):
    x = torch.randn(B, H, T, K)
    place = torch.tensor([0, 1, 5, 30, 100])
    y = rotary(place, K, base=100.0, scaling=scaling).rotate(x)
    frequencies = oracle.rotary_frequencies(K, 100.0, scaling and asdict(scaling))
    for b in range(B):
        for h in range(H):
            close(y[b, h], oracle.rotary(double(x[b, h]), place.tolist(), frequencies), rtol=0, atol=3e-5)
            # an angle of up to 100 keeps 100 · 6e-8, times numbers up to 4


def test_rotary_angles_are_as_exact_as_the_network():
    """Position 3000 in float64; float32 keeps Hugging Face's angles, off by 3000 · 2⁻²³ radians."""
    place = torch.tensor([3000, 100000])
    exact = np.array([3000, 100000])[:, None] * 10000.0 ** (-np.arange(0, 16, 2) / 16)
    rotation = rotary(place, 16, dtype=torch.float64)
    np.testing.assert_allclose(rotation.cos[:, :8].numpy(), np.cos(exact), rtol=0, atol=1e-10)
    assert rotary(place, 16).cos.dtype == rotary(place, 16, dtype=torch.bfloat16).cos.dtype == torch.float32
    network, asked = build(shrunk("llama-15m")).double(), []
    rotate = network.decoder.rotate
    network.decoder.rotate = lambda place, dtype: asked.append(dtype) or rotate(place, dtype=dtype)
    network(torch.arange(5)[None])
    assert asked == [torch.float64]


def test_rotary_by_row():
    x = torch.randn(2, H, 3, K)
    place = torch.tensor([[0, 0, 1], [0, 1, 2]])
    y = rotary(place, K).rotate(x)
    for b in range(2):
        for h in range(H):
            theirs = oracle.rotary(double(x[b, h]), place[b].tolist(), oracle.rotary_frequencies(K))
            close(y[b, h], theirs)


def test_rotated_scores_depend_on_the_distance_only():
    q, k = torch.randn(K), torch.randn(K)
    place = torch.arange(12)
    rotation = rotary(place, K, base=100.0)
    turned_q, turned_k = rotation.rotate(q.expand(1, 1, 12, K)), rotation.rotate(k.expand(1, 1, 12, K))
    scores = (turned_q @ turned_k.mT)[0, 0]
    for distance in range(-11, 12):
        diagonal = scores.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), **CLOSE)
    assert scores[0].std() > 0.1  # and they do depend on it
    torch.testing.assert_close(turned_q.square().sum(-1), q.square().sum().expand(1, 1, 12), **CLOSE)  # lengths stay


@pytest.mark.parametrize("factor", [8.0, 32.0])  # Llama 3.1 and 3.2
def test_llama_3_scaling(factor):
    scaling = RotaryScaling(factor=factor)
    d_head, base = 64, 500000.0
    rotation = rotary(torch.tensor([1]), d_head, base=base, scaling=scaling)
    expected = oracle.rotary_frequencies(d_head, base, asdict(scaling))
    plain = oracle.rotary_frequencies(d_head, base)
    kinds = {"kept": 0, "stretched": 0, "blended": 0}
    for scaled, f in zip(expected, plain, strict=True):
        kinds["kept" if scaled == f else "stretched" if scaled == f / factor else "blended"] += 1
    assert min(kinds.values()) > 0  # all three bands are here
    # sin f = f for the slow ones: relative, as they go down to 1e-7; float32's base^(2i/K) keeps 1e-6 of itself
    close(rotation.sin[0, : d_head // 2], np.sin(expected), rtol=2e-6, atol=0)
    close(rotation.sin[0, d_head // 2 :], np.sin(expected), rtol=2e-6, atol=0)
    close(rotation.cos[0, : d_head // 2], np.cos(expected), rtol=0, atol=1e-6)


def test_rotary_errors():
    with pytest.raises(InputError, match="so d_head=5 must be even"):
        rotary(torch.arange(3), 5)
    for wrong in ({"factor": 0.5}, {"low_frequency_factor": 4.0}, {"low_frequency_factor": 0.0}):
        with pytest.raises(InputError, match="rotary scaling needs factor ≥ 1 and 0 < low < high"):
            RotaryScaling(**wrong)


@pytest.mark.parametrize("both_ways", [True, False], ids=["encoder", "decoder"])
@pytest.mark.parametrize(("n_buckets", "max_distance"), [(32, 128), (8, 12), (16, 100)])
def test_t5_buckets(n_buckets, max_distance, both_ways):
    relative = RelativeBias(n_buckets, max_distance, H, both_ways=both_ways)
    distance = torch.arange(-300, 301)
    ours = relative.bucket(distance).tolist()
    assert ours == [oracle.t5_bucket(int(d), n_buckets, max_distance, both_ways) for d in distance]
    assert set(ours) == set(range(n_buckets)) - ({n_buckets // 2} if both_ways else set())  # 0 steps ahead is 0 back


@pytest.mark.parametrize("both_ways", [True, False], ids=["encoder", "decoder"])
def test_t5_bias(both_ways):
    relative = noisy(RelativeBias(8, 12, H, both_ways=both_ways))
    bias = relative.between(S, S)
    np.testing.assert_array_equal(
        double(bias[0]), oracle.t5_bias(arrays(relative)["weight"], S, S, 8, 12, both_ways)
    )  # a table is read, not computed
    equal(relative.between(2, S), bias[:, :, -2:])  # the newest two of seven


# Embedding ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("kind", ["sinusoidal", "sinusoidal_halves", "learned", "rotary", "t5_bias", "none"])
def test_embedding(run, kind, scaled):
    embedding = noisy(Embedding(19, D, positions=kind, max_positions=11, scaled=scaled, n_segments=2))
    p = arrays(embedding)
    tokens, segments = torch.randint(19, (B, T)), torch.randint(2, (B, T))
    table = {
        "sinusoidal": oracle.sinusoidal(11, D),
        "sinusoidal_halves": oracle.sinusoidal(11, D, "halves"),
        "learned": p.get("positions.weight"),
    }.get(kind, np.zeros((11, D)))
    assert ("positions.weight" in p) is (kind == "learned")
    words = p["tokens.weight"][tokens] * (math.sqrt(D) if scaled else 1)
    for place in (torch.arange(2, 2 + T), torch.tensor([[0, 0, 1, 2, 3], [0, 1, 2, 3, 4], [2, 3, 4, 5, 6]])):
        y = run(embedding, tokens, place, 2 + T, segments)
        close(y, words + table[place.numpy()] + p["segments.weight"][segments])
    y = run(embedding, tokens, place, 2 + T)
    close(y, words + table[place.numpy()] + p["segments.weight"][0])  # no segments given: all are the first


@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_embedding_with_a_norm(run, kind):
    embedding = noisy(Embedding(19, D, positions="none", norm_kind=kind, norm_epsilon=0.1))
    tokens = torch.randint(19, (B, T))
    p = arrays(embedding)
    formula = oracle.layer_norm if kind == "layer" else oracle.rms_norm
    theirs = formula(oracle.under(p, "norm."), p["tokens.weight"][tokens], 0.1)
    close(run(embedding, tokens, torch.arange(T), T), theirs)


def test_embedding_errors():
    embedding = Embedding(19, D, positions="learned", max_positions=5)
    with pytest.raises(InputError, match=r"^tokens have shape \[4\]; expected \[batch, length\]$"):
        embedding.length(torch.arange(4))
    with pytest.raises(InputError, match=r"^tokens have length 0; give at least one token"):
        embedding.length(torch.ones(2, 0).long())
    with pytest.raises(InputError, match=r"^6 tokens, but this model learned only 5 positions"):
        embedding(torch.zeros(1, 6).long(), torch.arange(6), 6)
    with pytest.raises(InputError, match="this model has no segment embedding"):
        embedding(torch.zeros(1, 2).long(), torch.arange(2), 2, torch.zeros(1, 2).long())
    with pytest.raises(InputError, match=r"^token id 19 is outside this model's 19"):
        embedding(torch.tensor([[19]]), torch.arange(1), 1)
    with pytest.raises(ConfigError, match="positions='learned' needs max_positions"):
        Embedding(19, D, positions="learned")


@pytest.mark.parametrize("channels", [1, 3])
def test_patch_embedding(run, channels):
    embedding = noisy(PatchEmbedding(D, image_size=12, patch_size=4, channels=channels))
    images = torch.randn(B, channels, 12, 12)
    p = arrays(embedding)
    assert embedding.length(images) == 10
    y = run(embedding, images, torch.arange(10), 10)
    for b in range(B):
        cut = oracle.patches(double(images[b]), 4)
        np.testing.assert_array_equal(double(embedding.cut(images)[b]), cut)
        words = oracle.linear(oracle.under(p, "patches."), cut)
        close(y[b], np.concatenate([p["start"][0], words]) + p["positions.weight"])


def test_patches_are_a_convolution():
    embedding = noisy(PatchEmbedding(D, image_size=12, patch_size=4))
    images = torch.randn(B, 3, 12, 12)
    kernel = embedding.patches.weight.view(D, 3, 4, 4)
    theirs = nn.functional.conv2d(images, kernel, embedding.patches.bias, stride=4).flatten(2).mT
    ours = embedding(images, torch.arange(10), 10)[:, 1:] - embedding.positions.weight[1:]
    torch.testing.assert_close(ours, theirs, **CLOSE)


def test_patch_embedding_errors():
    embedding = PatchEmbedding(D, image_size=12, patch_size=4)
    for shape, way_out in (
        ((2, 3, 12, 11), "resize them to 12 × 12"), ((3, 12, 12), "give a batch, even of one image"),
        ((2, 1, 12, 12), "give images of 3 channels, and channels before rows and columns"),
        ((2, 12, 12, 3), "give images of 3 channels, and channels before rows and columns"),
        ((0, 3, 12, 12), "give at least one image"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=rf"expected \[batch, 3, 12, 12\]: {way_out}$"):
            embedding.length(torch.zeros(shape))
    with pytest.raises(InputError, match="images have dtype uint8; this model computes in float32"):
        embedding.length(torch.zeros(1, 3, 12, 12, dtype=torch.uint8))
    with pytest.raises(InputError, match="images have dtype float64; this model computes in float32"):
        embedding.length(torch.zeros(1, 3, 12, 12, dtype=torch.float64))
    with pytest.raises(InputError, match=r"images are \[0\] \(list\); give a torch tensor"):
        embedding.length([0])
    with pytest.raises(ConfigError, match="PatchEmbedding: patch_size=0 must be at least 1"):
        PatchEmbedding(D, image_size=12, patch_size=0)
    with pytest.raises(ConfigError, match="patch_size=5 does not divide image_size=12"):
        PatchEmbedding(D, image_size=12, patch_size=5)
    with pytest.raises(InputError, match="images have none"):
        embedding(torch.zeros(1, 3, 12, 12), torch.arange(10), 10, torch.zeros(1, 10))


def test_table():
    table = EmbeddingTable(5, D, "token")
    ids = torch.tensor([[4, 0], [2, 2]])
    equal(table(ids), table.weight[ids])
    equal(table(ids.int()), table.weight[ids])


def test_table_errors():
    table = EmbeddingTable(5, D, "token")
    for wrong in (5, -1):
        with pytest.raises(InputError, match=rf"^token id {wrong} is outside this model's 5 \(0 to 4\); was the input"):
            table(torch.tensor([[1, wrong]]))
    for ids, name in ((torch.ones(2), "float32"), (torch.ones(2).bool(), "bool"), (torch.ones(2).half(), "float16")):
        with pytest.raises(InputError, match=f"^token ids have dtype {name}; they must be whole numbers"):
            table(ids)


# Block and stack ----------------------------------------------------------------------------------------------------


def oracle_block(p, x, memory, place, kind):
    """One block by itself, over the names of the parameters."""
    formula = {"layer": oracle.layer_norm, "rms": oracle.rms_norm}[kind]
    for name in ("self_attention", "cross_attention", "feedforward"):
        part, scale = oracle.under(p, f"{name}."), oracle.under(p, f"{name}_norm.")
        if not part:
            continue

        def f(y, part=part, name=name):
            if name == "feedforward":
                return oracle.feedforward(part, y, "relu")
            return oracle.attention(part, y, memory if name == "cross_attention" else None, n_heads=H)

        x = x + f(formula(scale, x, 0.1)) if place == "pre" else formula(scale, x + f(x), 0.1)
    return x


@pytest.mark.parametrize("cross", [True, False])
@pytest.mark.parametrize("place", ["pre", "post"])
@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_block(run, kind, place, cross):
    block = noisy(
        Block(
            Attention(D, H, d_head=K),
            FeedForward(D, F),
            Attention(D, H, d_head=K) if cross else None,
            norm_kind=kind,
            norm_place=place,
            norm_epsilon=0.1,
        )
    )
    x, memory = torch.randn(B, T, D), torch.randn(B, S, D) if cross else None
    y = run(block, x, memory)
    for b in range(B):
        theirs = oracle_block(arrays(block), double(x[b]), double(memory[b]) if cross else None, place, kind)
        close(y[b], theirs, rtol=0, atol=3e-5)  # three parts, one after another
    if not run.is_fused:
        equal(run.seen["input"], x)
        equal(run.seen["output"], y)


def drops(module, *args, **options):
    """Whether two runs in training differ; in evaluation they must not."""
    module.eval()
    equal(module(*args, **options), module(*args, **options))
    module.train()
    return not torch.equal(module(*args, **options), module(*args, **options))


def test_where_dropout_acts(run):
    x, tokens, images = torch.randn(B, T, D), torch.randint(19, (B, T)), torch.randn(B, 3, 12, 12)

    def block(p):
        return Block(Attention(D, 2), FeedForward(D, F), dropout=p)

    for p in (0.0, 0.5):
        assert drops(lambda_module(run, Attention(D, 2, dropout=p)), x) is (p > 0)
        assert drops(lambda_module(run, FeedForward(D, F, dropout=p)), x) is (p > 0)
        assert drops(lambda_module(run, block(p)), x) is (p > 0)
        assert drops(lambda_module(run, Embedding(19, D, dropout=p)), tokens, torch.arange(T), T) is (p > 0)
        patches = PatchEmbedding(D, image_size=12, patch_size=4, dropout=p)
        assert drops(lambda_module(run, patches), images, torch.arange(10), 10) is (p > 0)
        assert drops(RecurrentLayerOutputs("gru", D, 8, weight_dropout=p), x) is (p > 0)


def lambda_module(run, module):
    """The module, run on the path of this test."""

    class Run(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = module

        def forward(self, *args, **options):
            return run(self.inner, *args, **options)

    return Run()


class RecurrentLayerOutputs(RecurrentLayer):
    def forward(self, *args, **options):
        return super().forward(*args, **options)[0]


def test_residual_dropout_falls_on_what_is_added():
    """post: norm(x + dropout(f(x))); the stream itself is never dropped."""
    block = Block(Attention(D, 2), FeedForward(D, F), norm_place="pre", dropout=0.5)
    seen = {}
    x = torch.randn(200, T, D)
    with listening(block, {"*": lambda value, name: seen.__setitem__(name, value)}):
        block(x)
    added = seen["self_attention_add"] - x
    dropped = added == 0
    assert dropped.float().mean() == pytest.approx(0.5, abs=5 * 0.5 / math.sqrt(added.numel()))  # 5 deviations
    kept = 2 * seen["self_attention.output"][~dropped]
    torch.testing.assert_close(added[~dropped], kept, **SAME_SUMS)


def tiny_stack(**options):
    block = Block(Attention(D, 2), FeedForward(D, F), Attention(D, 2) if options.pop("cross", False) else None)
    return Stack(Embedding(19, D), [block], causal=True, **options)


def test_a_block_reads_a_memory_if_and_only_if_it_has_cross_attention():
    x = torch.zeros(B, T, D)
    plain = Block(Attention(D, H, d_head=K), FeedForward(D, D))
    with pytest.raises(InputError, match="a memory was given, but this block has no cross-attention"):
        plain(x, x)
    with pytest.raises(InputError, match="has a cross-attention, which needs a memory"):
        Block(Attention(D, H, d_head=K), FeedForward(D, D), Attention(D, H, d_head=K))(x)


def test_stack_errors():
    with pytest.raises(InputError, match=r"^2 target rows, but the memory has 3; they must be the same$"):
        tiny_stack(cross=True)(torch.zeros(2, T).long(), Memory(torch.randn(3, S, D)))
    with pytest.raises(InputError, match=r"^the mask has shape \[3, 4\]; the tokens it belongs to have \[3, 5\]$"):
        tiny_stack()(torch.zeros(B, T).long(), mask=torch.ones(B, 4).bool())


# Recurrence ---------------------------------------------------------------------------------------------------------

CELLS = ["rnn", "gru", "lstm"]
TORCH = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}
E = 9


def torchs(layer: RecurrentLayer) -> nn.Module:
    """torch's module with our weights."""
    theirs = TORCH[layer.cell](E, layer.d_hidden, batch_first=True)
    ours = {"weight_ih_l0": layer.input.weight, "weight_hh_l0": layer.state.weight}
    theirs.load_state_dict(ours | {"bias_ih_l0": layer.input.bias, "bias_hh_l0": layer.state.bias})
    return theirs


def start_of(layer: RecurrentLayer) -> tuple[torch.Tensor, ...]:
    return tuple(torch.randn(B, layer.d_hidden) for _ in layer.first_state(torch.zeros(B, 1, E)))


@pytest.mark.parametrize("given", [True, False], ids=["start_given", "from_zeros"])
@pytest.mark.parametrize("reverse", [False, True], ids=["forwards", "backwards"])
@pytest.mark.parametrize("cell", CELLS)
def test_recurrent_layer_is_torchs(run, cell, reverse, given):
    layer = noisy(RecurrentLayer(cell, E, D, reverse=reverse))
    x = torch.randn(B, T, E)
    state = start_of(layer) if given else None
    outputs, last = run(layer, x, state)
    start = None if state is None else tuple(part.unsqueeze(0) for part in state)
    start = start[0] if start is not None and cell != "lstm" else start
    theirs, end = torchs(layer)(x.flip(1) if reverse else x, start)
    torch.testing.assert_close(outputs, theirs.flip(1) if reverse else theirs, **SAME_SUMS)
    for ours, part in zip(last, end if cell == "lstm" else (end,), strict=True):
        torch.testing.assert_close(ours, part[0], **SAME_SUMS)


@pytest.mark.parametrize("mask", [None, RIGHT, LEFT], ids=["full", "right", "left"])
@pytest.mark.parametrize("reverse", [False, True], ids=["forwards", "backwards"])
@pytest.mark.parametrize("cell", CELLS)
def test_recurrent_layer(run, cell, reverse, mask):
    layer = noisy(RecurrentLayer(cell, E, D, reverse=reverse))
    x, state = torch.randn(B, S, E), start_of(layer)
    outputs, last = run(layer, x, state, mask_BT=mask)
    for b in range(B):
        real = torch.ones(S, dtype=torch.bool) if mask is None else mask[b]
        start = tuple(double(part[b]) for part in state)
        theirs, end = oracle.recurrent_layer(arrays(layer), cell, double(x[b][real]), start, reverse)
        close(outputs[b][real], theirs)
        assert (outputs[b][~real] == 0).all()
        for ours, part in zip(last, end, strict=True):
            close(ours[b], part)
    if not run.is_fused:
        gates = {"rnn": set(), "gru": {"reset_gate", "update_gate", "candidate"}}
        gates["lstm"] = {"input_gate", "forget_gate", "candidate", "output_gate", "cell_state"}
        assert set(run.seen) == gates[cell] | {"hidden"}
        assert all(value.shape == (B, 1, D) for value in run.seen.values())


@pytest.mark.parametrize("cell", CELLS)
def test_a_row_without_any_token_keeps_its_state(run, cell):
    """A step of a batch in which some sentences are over already."""
    layer = noisy(RecurrentLayer(cell, E, D))
    x, state = torch.randn(B, 1, E), start_of(layer)
    outputs, last = run(layer, x, state, mask_BT=torch.tensor([[True], [False], [True]]))
    alone, after = layer(x, state)
    equal(outputs[1], torch.zeros(1, D))
    torch.testing.assert_close(outputs[::2], alone[::2], **SAME_SUMS)
    for before, now, step in zip(state, last, after, strict=True):
        equal(now[1], before[1])
        torch.testing.assert_close(now[::2], step[::2], **SAME_SUMS)


@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
def test_states_that_do_not_fit(cell):
    """torch's LSTM would read beyond the end of them and take the process with it."""
    layer, n = RecurrentLayer(cell, 8, 6), 2 if cell == "lstm" else 1
    x = torch.randn(16, 3, 8)
    for shape in ((1, 6), (15, 6), (16, 5), (1, 16, 6)):
        with pytest.raises(InputError, match=r"the state has shape .*, for x it must have \[16, 6\]"):
            layer(x, (torch.zeros(shape),) * n)
    with pytest.raises(InputError, match=f"the state has 3 parts; the state of this {cell} has {n}"):
        layer(x, (torch.zeros(16, 6),) * 3)
    with pytest.raises(InputError, match=r"x has shape \[16, 3, 7\]; this layer takes \[batch, length, 8\]"):
        layer(x[..., :7])
    with pytest.raises(InputError, match=r"the mask has shape \[1, 3\]"):
        layer(x, mask_BT=torch.ones(1, 3, dtype=torch.bool))


@pytest.mark.parametrize("cell", CELLS)
def test_weight_dropout_is_drawn_once_for_all_steps(cell):
    layer = noisy(RecurrentLayer(cell, E, D, weight_dropout=0.5))
    x = torch.randn(B, T, E)
    torch.manual_seed(3)
    outputs, _ = layer(x)
    torch.manual_seed(3)
    weights = dropout(layer.state.weight, 0.5)
    assert (weights == 0).any()
    again = RecurrentLayer(cell, E, D)
    again.load_state_dict(layer.state_dict() | {"state.weight": weights})
    torch.testing.assert_close(outputs, again(x)[0], **SAME_SUMS)
    layer.eval()
    again.load_state_dict(layer.state_dict())
    equal(layer(x)[0], again(x)[0])


# Masks --------------------------------------------------------------------------------------------------------------


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


# Cache --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("capacity", [0, 4, 20])
def test_keys_and_values_grow(capacity):
    cache = KVCache(capacity)
    assert cache.filled is None
    keys, values = torch.randn(B, G, 12, K), torch.randn(B, G, 12, K)
    start = 0
    for n in (3, 1, 1, 1, 6):
        k, v, _ = cache.append(keys[:, :, start : start + n], values[:, :, start : start + n])
        start += n
        assert cache.length == start
        for pair in ((k, v), cache.filled[:2]):
            equal(pair[0], keys[:, :, :start])
            equal(pair[1], values[:, :, :start])
    assert cache.buffers[0].shape[2] >= max(12, capacity)


def test_capacity_saves_copies():
    cache = KVCache(20)
    cache.append(torch.randn(B, G, 3, K), torch.randn(B, G, 3, K))
    room = cache.buffers[0].data_ptr()
    for _ in range(17):
        cache.append(torch.randn(B, G, 1, K), torch.randn(B, G, 1, K))
    assert cache.buffers[0].data_ptr() == room
    cache.append(torch.randn(B, G, 1, K), torch.randn(B, G, 1, K))
    assert cache.buffers[0].data_ptr() != room
    assert cache.buffers[0].shape[2] == 40  # doubled
    assert cache.length == 21


def test_what_is_appended_is_copied():
    cache, k = KVCache(), torch.zeros(1, 1, 2, K)
    cache.append(k, k)
    k += 1
    equal(cache.filled[0], torch.zeros(1, 1, 2, K))


def test_select_with_repeats():
    cache = KVCache(9)
    keys, values = torch.randn(B, G, 5, K), torch.randn(B, G, 5, K)
    cache.append(keys[:, :, :4], values[:, :, :4])
    rows = torch.tensor([2, 0, 0, 1])
    cache.select(rows)
    k, v, _ = cache.append(keys[rows][:, :, 4:], values[rows][:, :, 4:])
    equal(k, keys[rows])
    equal(v, values[rows])
    KVCache().select(rows)  # nothing yet: nothing to do


def test_gradients_go_through_the_cache():
    """Each step squares all keys so far, so backward needs them as they were then."""
    cache = KVCache(8)
    steps = [torch.randn(B, G, 1, K, requires_grad=True) for _ in range(3)]
    loss = torch.zeros(())
    for step in steps:
        k, v, _ = cache.append(step, 2 * step)
        loss = loss + (k * v).sum()
    loss.backward()
    for step, n_times in zip(steps, (3, 2, 1), strict=True):  # the first is there in all three steps
        torch.testing.assert_close(step.grad, n_times * 4 * step.detach(), **SAME_SUMS)
    with torch.no_grad():  # and it goes on without them
        k, *_ = cache.append(torch.ones(B, G, 1, K), torch.ones(B, G, 1, K))
    equal(k, torch.cat([*steps, torch.ones(B, G, 1, K)], dim=2).detach())


def test_cache_remembers_masks():
    cache, cpu = Cache(), torch.device("cpu")
    assert cache.visible(None, 2, 3, cpu) is None
    cache.advance(3, None)
    new = torch.tensor([[True], [False]])
    seen = cache.visible(new, 2, 1, cpu)  # the first three were all real
    equal(seen, torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]]).bool())
    assert cache.mask is None  # until it is told
    cache.advance(1, seen)
    equal(cache.visible(None, 2, 2, cpu), torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 1, 1]]).bool())
    assert cache.length == 4


def test_cache_selects_everything_it_holds():
    cache = Cache(capacity=6, state=(torch.arange(3.0)[:, None],), mask=RIGHT, length=S)
    keys = torch.randn(B, G, 2, K)
    cache.of("0.self_attention").append(keys, keys)
    cache.select(torch.tensor([2, 2]))
    equal(cache.state[0], torch.tensor([[2.0], [2.0]]))
    equal(cache.mask, RIGHT[[2, 2]])
    equal(cache.of("0.self_attention").filled.keys, keys[[2, 2]])
    assert cache.length == S


def test_cache_slots():
    cache = Cache(capacity=6)
    assert cache.of("a") is cache.of("a")
    assert cache.of("a") is not cache.of("b")
    assert cache.of("a").capacity == 6
    assert cache.of("memory", grows=False).capacity == 0


def test_memory_selects_rows():
    states, final = torch.randn(B, S, D), (torch.randn(B, D), torch.randn(B, D))
    rows = torch.tensor([1, 1, 2, 0])
    chosen = Memory(states, RIGHT, final).select(rows)
    equal(chosen.states, states[rows])
    equal(chosen.mask, RIGHT[rows])
    for ours, all_rows in zip(chosen.final, final, strict=True):
        equal(ours, all_rows[rows])
    assert Memory(states).select(rows).mask is None


# Dropout ------------------------------------------------------------------------------------------------------------


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


# Taps ---------------------------------------------------------------------------------------------------------------


class Double(nn.Module):
    """Doubles, adds one, and shows both."""

    def __init__(self):
        super().__init__()
        self.doubled = Tap("BD", "2 x")
        self.output = Tap("BD", "2 x + 1")
        self.shown = Tap("BD", "the output once more", replaceable=False)

    def forward(self, x):
        y = self.output(self.doubled(2 * x) + 1)
        if heard(self.shown):
            self.shown(y)
        return y


X = torch.tensor([[1.0, 2.0, 3.0]])


def test_taps_have_names():
    module = nn.ModuleDict({"first": Double(), "second": Double()})
    names = [f"{half}.{name}" for half in ("first", "second") for name in ("doubled", "output", "shown")]
    assert list(taps(module)) == names
    assert taps(module)["second.doubled"] is module["second"].doubled
    assert not module.state_dict()  # checkpoints do not know them


def test_listener_hears_value_and_name():
    module, calls = Double(), []
    with listening(module, {"doubled": lambda value, name: calls.append((name, value))}):
        y = module(X)
    equal(y, 2 * X + 1)
    assert [name for name, _ in calls] == ["doubled"]
    equal(calls[0][1], 2 * X)


def test_listener_replaces():
    module = Double()
    with listening(module, {"doubled": lambda value, _: torch.zeros_like(value)}):
        equal(module(X), torch.ones(1, 3))
    equal(module(X), 2 * X + 1)


def test_replacement_keeps_the_dtype():
    module = Double()
    with listening(module, {"doubled": lambda value, _: value.double()}):
        assert module(X).dtype == torch.float32


def test_replacement_must_keep_the_shape():
    module = Double()
    expected = r"^a listener replaced 'doubled' by a tensor of shape \[1, 2\]; it must keep the shape \[1, 3\] \(BD\)$"
    with (
        listening(module, {"doubled": lambda value, _: value[:, :2]}),
        pytest.raises(InputError, match=expected),
    ):
        module(X)


def test_replacement_is_a_tensor():
    module = Double()
    for wrong in (3, [1.0], "x"):
        with (
            listening(module, {"doubled": lambda *_: wrong}),  # noqa: B023
            pytest.raises(InputError, match=r"a listener put .* in the place of 'doubled'; return a tensor, or None"),
        ):
            module(X)


def test_what_is_only_shown_cannot_be_replaced():
    module = Double()
    with (
        listening(module, {"shown": lambda value, _: value + 1}),
        pytest.raises(InputError, match=r"^'shown' is only for looking, nothing reads it afterwards"),
    ):
        module(X)


def test_listening_nests():
    module, order = Double(), []

    def plus(n):
        def listener(value, _):
            order.append(n)
            return value + n

        return listener

    with listening(module, {"doubled": plus(10)}):
        with listening(module, {"d*": plus(100)}):
            equal(module(X), 2 * X + 111)
        assert order == [10, 100]  # the outer one first
        equal(module(X), 2 * X + 11)
    equal(module(X), 2 * X + 1)
    assert order == [10, 100, 10]


def test_two_patterns_on_one_tap_are_both_called():
    module, calls = Double(), []
    with listening(module, {"d*": lambda *_: calls.append("d"), "*led": lambda *_: calls.append("led")}):
        module(X)
    assert calls == ["d", "led"]


def test_unknown_pattern_suggests():
    expected = r"^no tap 'doubeld'; did you mean 'doubled'\? \(known: doubled, output, shown\)$"
    with pytest.raises(InputError, match=expected), listening(Double(), {"doubeld": lambda *_: None}):
        pass


def test_heard():
    module = Double()
    assert not heard(module.doubled)
    with listening(module, {"doubled": lambda *_: None}):
        assert heard(module.doubled)
        assert heard(module.output, module.doubled)
        assert not heard(module.output)
        assert not heard(Double().doubled)  # another module's
    assert not heard(module.doubled)


def test_an_error_in_the_body_ends_the_listening():
    module, calls = Double(), []
    with pytest.raises(RuntimeError, match="boom"), listening(module, {"*": lambda *_: calls.append(1)}):
        raise RuntimeError("boom")
    module(X)
    assert not calls
    assert not heard(module.doubled)


def test_an_error_in_a_listener_ends_the_listening():
    module = Double()

    def broken(*_):
        raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"), listening(module, {"doubled": broken}):
        module(X)
    equal(module(X), 2 * X + 1)


def test_nothing_is_left_on_the_module():
    module = Double()
    before = {name: dict(vars(m)) for name, m in module.named_modules()}
    with listening(module, {"*": lambda *_: None}):
        module(X)
    assert {name: dict(vars(m)) for name, m in module.named_modules()} == before


def test_threads_do_not_hear_each_other():
    module = Double()
    inside, heard_by = threading.Barrier(3, timeout=10), {1: [], 2: []}
    results = {}

    def listen(n):
        with listening(module, {"doubled": lambda value, _: heard_by[n].append(value) or value + n}):
            inside.wait()  # all three run while two listen
            results[n] = module(n * X)

    def stranger():
        inside.wait()
        results[0] = module(X)

    threads = [threading.Thread(target=listen, args=(n,)) for n in (1, 2)] + [threading.Thread(target=stranger)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=10)
    equal(results[0], 2 * X + 1)
    for n in (1, 2):
        equal(results[n], 2 * n * X + 1 + n)
        assert len(heard_by[n]) == 1


def test_tasks_do_not_hear_each_other():
    module = Double()

    async def listen(n, both):
        with listening(module, {"doubled": lambda value, _: value + n}):
            await both.wait()  # the other task runs, and listens, meanwhile
            return module(X)

    async def main():
        both = asyncio.Barrier(2)
        return await asyncio.gather(listen(1, both), listen(2, both))

    first, second = asyncio.run(main())
    equal(first, 2 * X + 2)
    equal(second, 2 * X + 3)


def test_a_compiled_graph_has_no_ears(monkeypatch):
    module, calls = Double(), []
    with listening(module, {"*": lambda *_: calls.append(1)}):
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
        equal(module(X), 2 * X + 1)
        assert not heard(module.doubled)
    assert not calls


def test_tap_says_what_it_is():
    assert "BHTS: q kᵀ" in repr(Attention(8, 2).scores)
