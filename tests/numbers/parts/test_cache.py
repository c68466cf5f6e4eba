"""The cache: keys and values, masks, and rows that are selected."""

import pytest
import torch

from cutaway.parts.cache import Cache, Memory
from cutaway.parts.kv_cache import KVCache
from tests.support.parts import RIGHT, SAME_SUMS, B, D, G, K, S, equal


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
