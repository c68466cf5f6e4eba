"""What holds for every network: batches, refills, caches and looking change nothing."""

from dataclasses import fields, replace
from typing import get_type_hints

import pytest

import cutaway
from cutaway.decoding import batches
from cutaway.decoding.batches import answers
from cutaway.decoding.beam import Beams
from cutaway.decoding.generation import Changes, Generation, Written
from cutaway.decoding.plan import SHORTEST, Plan
from cutaway.decoding.search import write
from cutaway.models.usage import Usage
from cutaway.parts.tap import taps
from tests.decoding.writers import WRITERS, prompts, writer
from tests.families import VOCABULARY

WISHES = ["greedy", "three beams", "diverse", "forced", "samples", "all filters"]


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
    monkeypatch.setattr(batches, "REFILL", 1000)  # whenever a place is free
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
        beams = list(answers(plan, prompts(network, 6), lambda asked: Beams(plan, asked)))  # noqa: B023
        same(beams, list(write(network, prompts(network, 6), generation, usage)))


def test_changes_mirror_generation() -> None:
    """Keyword arguments of the tasks are the fields, of the same types but for their rules."""
    plain = get_type_hints(Generation)  # without what is annotated
    assert get_type_hints(Changes) == plain
    assert list(get_type_hints(Changes)) == [field.name for field in fields(Generation)]
