"""What holds for every network: batches, refills, caches and looking change nothing."""

from dataclasses import replace

import pytest
import torch

import cutaway
from cutaway.decoding import batches
from cutaway.decoding.batch_cache import BatchCache
from cutaway.decoding.batches import generate_in_order
from cutaway.decoding.beam import Beams
from cutaway.decoding.plan import SHORTEST, Plan
from cutaway.decoding.search import write
from cutaway.errors import InputError
from cutaway.generation import Generation, Written
from cutaway.models.usage import Usage
from cutaway.parts.cache import Cache, Memory
from cutaway.parts.tap import taps
from tests.support.families import VOCABULARY, shrunk
from tests.support.writing_networks import WRITERS, prompts, writer

WISHES = ["greedy", "three beams", "diverse", "forced", "samples", "all filters"]


CLOSE = {"rtol": 1e-4, "atol": 1e-4}  # float32 sums in another order, through large weights


def wished(name: str, usage: Usage) -> Generation:
    """Tokens that are asked for are none that end a text."""
    a, b, c, d, e, *_ = (token for token in range(3, VOCABULARY) if token not in usage.end)
    return {
        "greedy": Generation(max_new_tokens=7),
        "three beams": Generation(max_new_tokens=7, beams=3, n_best=3),
        "diverse": Generation(max_new_tokens=6, beams=4, beam_groups=2, diversity=0.7, n_best=4),
        "forced": Generation(max_new_tokens=7, beams=3, force=((a, b), (c,))),
        "samples": Generation(max_new_tokens=7, sample=True, top_k=9, temperature=1.3, seed=3, n_best=2),
        "all filters": Generation(
            max_new_tokens=7, min_new_tokens=3, beams=2, repetition_penalty=1.4, no_repeat_ngram=2,
            ban=((a,), (b, c), (c, c)), prefix=(d, e), alternatives=3,
        ),
    }[name]  # fmt: skip


def same(one: list[list[Written]], other: list[list[Written]]) -> None:
    """The same tokens, ended alike, with the same numbers but for what another order of float32 sums changes."""
    assert [[text.ids for text in texts] for texts in one] == [[text.ids for text in texts] for texts in other]
    for a, b in zip((t for texts in one for t in texts), (t for texts in other for t in texts), strict=True):
        assert (a.ended, a.end, a.text) == (b.ended, b.end, b.text)
        assert a.score == pytest.approx(b.score, abs=1e-4)
        for x, y in zip(a.tokens, b.tokens, strict=True):
            assert x.logprob == pytest.approx(y.logprob, abs=1e-4)
            assert [token for token, _ in x.alternatives] == [token for token, _ in y.alternatives]


@pytest.mark.parametrize("wish", WISHES)
@pytest.mark.parametrize("name", WRITERS)
def test_nothing_but_the_prompt_decides(name: str, wish: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone or in a batch, refilled at once or late, with the cache or without, looked at or not."""
    network, usage = writer(name)
    generation = wished(wish, usage)
    asked = prompts(network, 7)
    together = list(write(network, asked, generation, usage))
    assert [len(texts) for texts in together] == [generation.n_best] * len(asked)
    monkeypatch.setattr(batches, "LOW", 1.0)  # whenever a place is free
    few = replace(generation, batch_tokens=4 * SHORTEST * (generation.beams or 1))
    same(list(write(network, asked, few, usage)), together)
    same(list(write(network, asked, replace(few, cached=False), usage)), together)
    if not generation.sample:  # a sample's numbers go by the prompt's place in the stream
        same([next(write(network, [prompt], generation, usage)) for prompt in asked[:4]], together[:4])
    if wish in ("greedy", "three beams"):
        seen: set[str] = set()
        with cutaway.listening(network, {"*": lambda value, name: seen.add(name)}):
            same(list(write(network, asked, few, usage)), together)
        assert seen == set(taps(network))


@pytest.mark.parametrize("name", WRITERS)
def test_one_beam_is_greedy(name: str) -> None:
    """Beam search with one beam, made to run as such."""
    network, usage = writer(name)
    for filters in ({}, {"no_repeat_ngram": 2, "min_new_tokens": 2}):
        generation = replace(Generation(max_new_tokens=7, beams=1), **filters)
        plan = Plan(network, generation, usage)
        beams = list(generate_in_order(plan, prompts(network, 6), lambda asked: Beams(plan, asked)))  # noqa: B023
        same(beams, list(write(network, prompts(network, 6), generation, usage)))


@pytest.mark.parametrize("name", [name for name in WRITERS if shrunk(name).encoder is not None])
def test_rows_that_share_a_memory(name: str) -> None:
    """As if each had its own; who looks at a Transformer's attention sees every row."""
    network, _ = writer(name)
    source, target = torch.randint(VOCABULARY - 3, (2, 5)), torch.randint(VOCABULARY, (6, 3))
    mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    with torch.no_grad():
        memory = network.encode(source, mask)
        own = memory.select(torch.tensor([0, 0, 0, 1, 1, 1]))
        shared = Memory(memory.states, memory.mask, memory.final, repeats=3)
        expected = network.decode(target, own)
        for cache in (None, Cache()):
            torch.testing.assert_close(network.decode(target, shared, cache), expected, **CLOSE)
        with cutaway.listening(network, {"*": lambda value, name: None}):
            torch.testing.assert_close(network.decode(target, shared), expected, **CLOSE)
        shapes: list[list[int]] = []
        with cutaway.listening(
            network,
            {
                "*": lambda value, name: (
                    shapes.append(list(value.shape)) if name.endswith("cross_attention.weights") else None
                )
            },
        ):
            network.decode(target, shared)
        assert all(shape[0] == 6 and shape[2:] == [3, 5] for shape in shapes)
        with pytest.raises(InputError, match="^6 target rows, but the memory has 4; they must be the same$"):
            network.decode(target, Memory(memory.states, memory.mask, memory.final, repeats=2))


@pytest.mark.parametrize("name", WRITERS)
def test_rows_that_leave_and_join_a_cache(name: str) -> None:
    """Each row goes on as it would alone, wherever it stands and however old the others are."""
    network, _ = writer(name)
    reads = network.config.encoder is not None
    torch.manual_seed(0)
    source, target = torch.randint(VOCABULARY - 3, (5, 6)), torch.randint(VOCABULARY, (5, 8))

    def begun(rows: list[int], n: int, n_source: int) -> tuple[BatchCache, Memory | None]:
        memory, cache = network.encode(source[rows, :n_source]) if reads else None, BatchCache(capacity=n)
        network.decode(target[rows, :n], memory, cache)
        return cache, memory

    with torch.no_grad():
        cache, memory = begun([0, 1, 2], 4, 6)
        cache.move(torch.tensor([0]), torch.tensor([2]), 2)  # row 0 leaves, the last takes its place
        younger, other = begun([3, 4], 2, 3)
        cache.join(younger)
        if memory is not None and other is not None:
            memory = memory.select(torch.tensor([2, 1])).join(other)
        ages, sources = [4, 4, 2, 2], [6, 6, 3, 3]
        for step in range(2):
            tokens = torch.stack([target[row, age + step] for row, age in zip([2, 1, 3, 4], ages, strict=True)])
            together = network.decode(tokens[:, None], memory, cache)
            for i, row in enumerate([2, 1, 3, 4]):
                alone = network.encode(source[row : row + 1, : sources[i]]) if reads else None
                expected = network.decode(target[row : row + 1, : ages[i] + step + 1], alone)[0, -1]
                torch.testing.assert_close(together[i, 0], expected, **CLOSE)
        cache.move(torch.tensor([0, 1]), torch.tensor([2, 3]), 2)  # only the younger ones stay
        cache.trim(2)
        cache.trim_memory(3)
        assert cache.length == 4
        assert cache.mask is None
        memory = None if memory is None else memory.select(torch.tensor([2, 3])).padded(3)
        together = network.decode(target[[3, 4], 4:5], memory, cache)
        for i, row in enumerate([3, 4]):
            alone = network.encode(source[row : row + 1, :3]) if reads else None
            expected = network.decode(target[row : row + 1, :5], alone)[0, -1]
            torch.testing.assert_close(together[i, 0], expected, **CLOSE)
