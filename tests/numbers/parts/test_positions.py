"""Sinusoidal, learned, rotary and relative positions against the numpy oracle."""

import math
from dataclasses import asdict

import numpy as np
import pytest
import torch

from cutaway.errors import InputError
from cutaway.models.build import build
from cutaway.parts import positions
from cutaway.parts.positions import LearnedPositions, RelativeBias, RotaryScaling, rotary, sinusoidal
from tests.numbers import oracle
from tests.support.families import arrays, noisy, shrunk
from tests.support.parts import CLOSE, ROUNDED, B, D, H, K, S, T, close, double, equal


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
