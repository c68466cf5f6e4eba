"""Enough prompts are searched in several batches at once, a core each: nobody can tell from the texts."""

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch

from cutaway.decoding import batches
from cutaway.decoding.search import write
from cutaway.generation import Generation
from cutaway.machine.threads import merged
from tests.support.writing_networks import WRITERS, prompts, writer


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    assert torch.get_num_threads() == 2
    torch.set_num_threads(before)


def workers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("cutaway")]


SEARCHES = [(name, options) for name in WRITERS for options in ({}, {"beams": 3, "n_best": 2})]
SAMPLES = [(name, {"sample": True, "seed": 5}) for name in ("transformer-tiny", "gpt2", "bahdanau-gru")]


@pytest.mark.parametrize(("name", "options"), [*SEARCHES, *SAMPLES])
def test_texts_are_those_of_one_batch(name: str, options: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers: list[int] = []

    def counted(makers: Sequence[Callable[[], Iterator[Any]]], stop: Callable[[], None]) -> Iterator[Any]:
        numbers.append(len(makers))
        return merged(makers, stop)

    monkeypatch.setattr(batches, "merged", counted)
    network, usage = writer(name)
    asked, generation = prompts(network, 70), Generation(max_new_tokens=7, batch_tokens=60, **options)
    texts = [[each.ids for each in found] for found in write(network, asked, generation, usage)]
    assert numbers == [2]
    torch.set_num_threads(1)  # one core, one batch
    alone = [[each.ids for each in found] for found in write(network, asked, generation, usage)]
    torch.set_num_threads(2)
    assert texts == alone


def test_who_has_seen_enough_stops_the_others() -> None:
    network, usage = writer("gpt2")
    texts = write(network, prompts(network, 200), Generation(max_new_tokens=8, batch_tokens=60), usage)
    next(texts)
    texts.close()
    assert not workers()


def test_what_goes_wrong_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    network, usage = writer("gpt2")
    calls = iter(range(100))
    apply_head = network.apply_head

    def fails(*args):
        if next(calls) == 5:
            raise RuntimeError("out of paper")
        return apply_head(*args)

    monkeypatch.setattr(network, "apply_head", fails)
    with pytest.raises(RuntimeError, match="out of paper"):
        list(write(network, prompts(network, 60), Generation(max_new_tokens=8, batch_tokens=60), usage))
    assert not workers()
