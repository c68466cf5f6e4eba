"""Streams, stop strings, the order of answers, how prompts are taken, and where texts must end."""

import random
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

import cutaway
from cutaway.decoding import batches, windows
from cutaway.decoding.search import stream, write
from cutaway.decoding.state import DecodingState
from cutaway.decoding.stops import find_stop, n_streamable_tokens
from cutaway.generation import Generation, Prompt
from cutaway.models.usage import Usage
from tests.support.families import noisy, shrunk
from tests.support.scripted_network import Script, Scripted, V, random_script
from tests.support.writing_networks import prompts, writer

PIECES = [
    "<s>",
    "</s>",
    "a",
    "b",
    "c",
    "ab",
    "ca",
    " ",
    "\n",
    "\n\n",
    "User",
    ":",
    "er:",
    "x\ny",
    "é",
    "d",
    "e",
    "f",
    "g",
    "h",
]


def decode(ids: Sequence[int]) -> str:
    return "".join(PIECES[token] for token in ids)


def spelled(*tokens: int) -> Script:
    """Writes these tokens after a prompt of one, then ends."""
    said = (*tokens, 1)
    return lambda history: [9.0 * (token == said[min(len(history), len(said)) - 1]) for token in range(V)]


@pytest.mark.parametrize(
    ("tokens", "stop", "text", "n_tokens"),
    [
        ((2, 3, 8, 9, 4), ("\n\n",), "ab\n", 3),  # a newline, then two in one token: found from the second on
        ((2, 3, 9, 4), ("\n\n",), "ab", 2),
        ((2, 10, 11, 4), ("User:",), "a", 1),
        ((2, 12, 11), ("r:",), "ae", 1),  # begins within a token: that token is not whole
        ((2, 13, 3), ("\n",), "ax", 1),
        ((2, 3, 4), ("zz", "c", "b"), "a", 1),  # the first in the text, not in the list
        ((3, 4), ("b",), "", 0),
    ],
)
@pytest.mark.parametrize("options", [{}, {"beams": 2}])
def test_a_text_ends_before_a_stop_string(
    tokens: tuple[int, ...], stop: tuple[str, ...], text: str, n_tokens: int, options: dict[str, Any]
) -> None:
    network, generation = Scripted(spelled(*tokens), V), Generation(max_new_tokens=9, stop=stop, **options)
    [[written]] = write(network, [Prompt((0,))], generation, Usage(end=(1,)), decode)
    assert written.ended == "stop"
    assert written.text == (text if text != "ab\n" else "ab")
    assert len(written.tokens) == (n_tokens if text != "ab\n" else 2)
    if not options:
        streamed = [token.id for token in stream(network, Prompt((0,)), generation, Usage(end=(1,)), decode)]
        assert tuple(streamed) == written.ids


@pytest.mark.parametrize("options", [{}, {"beams": 3}])
def test_a_text_without_stop_strings_is_whole(options: dict[str, Any]) -> None:
    network = Scripted(spelled(2, 3, 10, 10), V)
    for stop in ("zzz", "User:"):
        generation = Generation(max_new_tokens=9, stop=(stop,), **options)
        [[written]] = write(network, [Prompt((0,))], generation, Usage(end=(1,)), decode)
        assert (written.ids, written.ended, written.text) == ((2, 3, 10, 10), "end", None)


def test_a_long_text_is_not_decoded_whole_at_every_step() -> None:
    longest = 0

    def counted(ids: Sequence[int]) -> str:
        nonlocal longest
        longest = max(longest, len(ids))
        return decode(ids)

    assert find_stop([2] * 500, ["b"], counted) is None
    assert longest < 100
    stop = find_stop([2] * 500 + [3], ["b"], counted)
    assert stop is not None
    assert stop.n_tokens == 500


def test_a_stream_waits_while_a_stop_string_may_begin() -> None:
    assert n_streamable_tokens([2, 10], ["User:"], decode) == 1  # "aUser": "User" may be the beginning of "User:"
    assert n_streamable_tokens([2, 10, 2], ["User:"], decode) == 3
    assert n_streamable_tokens([2, 3], ["User:"], decode) == 2


@pytest.mark.parametrize("seed", range(6))
def test_a_stream_gives_what_write_gives(seed: int) -> None:
    network = Scripted(random_script(seed), V)
    wishes = [
        Generation(max_new_tokens=8),
        Generation(max_new_tokens=8, sample=True, seed=seed, top_k=6, alternatives=2),
        Generation(max_new_tokens=8, prefix=(5, 6), no_repeat_ngram=1, stop=("c", "User:", "ab")),
        Generation(max_new_tokens=20, sample=True, seed=seed, temperature=2.0, stop=("ab", "ca", "b")),
    ]
    for generation in wishes:
        [[written]] = write(network, [Prompt((3,))], generation, Usage(end=(1,)), decode)
        assert tuple(stream(network, Prompt((3,)), generation, Usage(end=(1,)), decode)) == written.tokens


def test_a_stream_gives_each_token_before_it_computes_the_next() -> None:
    network = Scripted(random_script(1), V)
    tokens = stream(network, Prompt((3,)), Generation(max_new_tokens=5), Usage())
    for n, _ in enumerate(tokens, 1):
        assert len(network.n_reads) == n


def test_answers_come_in_the_order_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is sorted, refilled and finished first; also across windows."""
    monkeypatch.setattr(windows, "WINDOW", 7)
    r = random.Random(0)
    asked = [Prompt(tuple(r.randrange(2, V) for _ in range(r.randint(1, 12)))) for _ in range(40)]
    network = Scripted(random_script(3), V)
    for options in ({}, {"beams": 2}):
        generation = Generation(max_new_tokens=6, batch_tokens=60, **options)
        together = [texts[0].ids for texts in write(network, asked, generation, Usage(end=(1,)))]
        alone = [next(write(network, [prompt], generation, Usage(end=(1,))))[0].ids for prompt in asked]
        assert together == alone
    assert len(set(together)) > 20


def test_prompts_are_taken_as_they_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A window at a time, from a stream without end; what was answered is held no longer."""
    monkeypatch.setattr(windows, "WINDOW", 5)
    taken = 0
    held: list[weakref.ref[Prompt]] = []

    def endless() -> Iterator[Prompt]:
        nonlocal taken
        while True:
            taken += 1
            prompt = Prompt((2 + taken % 9,))
            held.append(weakref.ref(prompt))
            yield prompt

    answers = write(Scripted(random_script(0), V), endless(), Generation(max_new_tokens=3), Usage(end=(1,)))
    assert taken == 0
    next(answers)
    assert taken == 1, "the first windows are small"
    for _ in range(200):
        next(answers)
    assert taken <= 205
    assert sum(each() is not None for each in held) <= 10
    answers.close()


@pytest.mark.parametrize("name", ["transformer-tiny", "gpt2", "t5-small", "lstm-seq2seq"])
def test_a_batch_stays_full(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Places of finished texts are taken by waiting prompts, at an age of their own."""
    network, usage = writer(name)
    joined: list[tuple[int, int]] = []
    real_join = DecodingState.join

    def join(self: DecodingState, other: DecodingState) -> None:
        joined.append((self.length, other.length))
        real_join(self, other)

    monkeypatch.setattr(DecodingState, "join", join)
    monkeypatch.setattr(batches, "LOW", 0.8)
    asked = prompts(network, 24)
    for options in ({}, {"beams": 2}):
        generation = Generation(max_new_tokens=20, batch_tokens=80, **options)
        together = [texts[0].ids for texts in write(network, asked, generation, usage)]
        assert any(ours > theirs for ours, theirs in joined)
        joined.clear()
        assert together == [next(write(network, [prompt], generation, usage))[0].ids for prompt in asked]


def test_writing_ends_with_the_learned_positions() -> None:
    """13 positions: the last token is written, never read. Shorter prompts beside longer ones get their full room."""
    network = cutaway.build(shrunk("gpt2"))
    noisy(network, std=0.5)
    asked = [Prompt(tuple(range(1, n + 1))) for n in (13, 1, 12, 7, 3, 5, 2)]
    for batch_tokens in (10, 30, 60, 2048):
        for options in ({}, {"beams": 2}):
            generation = Generation(max_new_tokens=40, batch_tokens=batch_tokens, **options)
            written = [texts[0] for texts in write(network, asked, generation, Usage())]
            assert [len(text.tokens) for text in written] == [14 - len(prompt.ids) for prompt in asked]
            assert {text.ended for text in written} == {"length"}


def test_how_long_a_text_may_be() -> None:
    network = cutaway.build(shrunk("llama-15m"))
    noisy(network)

    def n_written(network: Any, usage: Usage, **options: Any) -> int:
        [[text]] = write(network, [Prompt((3, 4, 5))], Generation(**options), usage)
        return len(text.tokens)

    assert n_written(network, Usage(max_length=10)) == 7  # counts the prompt
    assert n_written(network, Usage(max_length=10), max_new_tokens=12) == 12
    assert n_written(network, Usage()) == 256
    reader = cutaway.build(shrunk("transformer-tiny"))
    assert n_written(reader, Usage(start=0, max_length=10)) == 9  # counts the start token
    assert n_written(cutaway.build(shrunk("gpt2")), Usage()) == 11


def test_an_empty_prompt_begins_with_the_start_token() -> None:
    network = Scripted(lambda history: [9.0 * (token == history[0] + len(history)) for token in range(V)], V)
    [[text]] = write(network, [Prompt(())], Generation(max_new_tokens=2), Usage(start=5))
    assert text.ids == (6, 7)


def test_prefix_is_the_beginning_of_every_text() -> None:
    script = random_script(4)
    for options in ({}, {"beams": 3, "n_best": 3}, {"sample": True, "seed": 1}):
        generation = Generation(max_new_tokens=6, prefix=(7, 8), **options)
        [texts] = write(Scripted(script, V), [Prompt((3,))], generation, Usage())
        for text in texts:
            assert text.ids[:2] == (7, 8)
            assert len(text.tokens) == 6
            expected = torch.tensor(script((3,))).log_softmax(-1)[7].item()
            assert text.tokens[0].logprob == pytest.approx(expected, abs=1e-5)
    plain = replace(generation, prefix=(), sample=False, seed=None, max_new_tokens=4)
    [[continued]] = write(Scripted(script, V), [Prompt((3, 7, 8))], plain, Usage())
    [[begun]] = write(Scripted(script, V), [Prompt((3,))], replace(plain, prefix=(7, 8), max_new_tokens=6), Usage())
    assert begun.ids == (7, 8, *continued.ids)


def test_gradients_and_modes_are_left_alone() -> None:
    network = cutaway.build(shrunk("gpt2"))
    answers = write(network, [Prompt((1,)), Prompt((2,))], Generation(max_new_tokens=2), Usage())
    next(answers)
    assert not torch.is_inference_mode_enabled()
    assert torch.is_grad_enabled()
    next(iter(stream(network, Prompt((1,)), Generation(max_new_tokens=2), Usage())))
    assert not torch.is_inference_mode_enabled()
