"""Beam search beyond what transformers has: groups kept apart, forced words; and what is told of each token."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from cutaway.decoding.constraints import occurs, progress
from cutaway.decoding.search import write
from cutaway.errors import InputError
from cutaway.generation import Generation, Prompt, Written
from cutaway.models.usage import Usage
from tests.support.scripted_network import END, Script, Scripted, V, random_script

USAGE = Usage(end=(END,))


def best(
    script: Script, prompts: Sequence[tuple[int, ...]], usage: Usage = USAGE, **options: Any
) -> list[list[Written]]:
    return list(write(Scripted(script, V), map(Prompt, prompts), Generation(**options), usage))


def logprobs(script: Script, history: tuple[int, ...]) -> list[float]:
    return torch.tensor(script(history)).log_softmax(-1).tolist()


def diverse_by_hand(
    script: Script, prompt: tuple[int, ...], width: int, n_groups: int, diversity: float, n_new: int
) -> list[tuple[float, tuple[int, ...]]]:
    """Diverse beam search as Vijayakumar et al. (2018) write it, one hypothesis at a time."""
    beams: list[list[tuple[float, tuple[int, ...]]]] = [[(0.0, ())] for _ in range(n_groups)]
    pools: list[list[tuple[float, tuple[int, ...]]]] = [[] for _ in range(n_groups)]
    done = [False] * n_groups
    for step in range(1, n_new + 1):
        said: Counter[int] = Counter()
        for g in range(n_groups):
            candidates = sorted(
                (
                    (score + logprob - diversity * said[token], (*ids, token))
                    for score, ids in beams[g]
                    for token, logprob in enumerate(logprobs(script, (*prompt, *ids)))
                ),
                reverse=True,
            )[: 2 * width]
            ending = [ids[-1] == END or step == n_new for _, ids in candidates]
            if not done[g]:
                pools[g] += [
                    (score / step, ids)
                    for (score, ids), ends in list(zip(candidates, ending, strict=True))[:width]
                    if ends
                ]
                pools[g] = sorted(pools[g], reverse=True)[:width]
            beams[g] = [each for each, ends in zip(candidates, ending, strict=True) if not ends][:width]
            if not done[g]:
                said.update(ids[-1] for _, ids in beams[g])
            full = len(pools[g]) == width
            done[g] |= not beams[g] or (full and beams[g][0][0] / step <= pools[g][-1][0])
    return sorted((each for pool in pools for each in pool), reverse=True)


@pytest.mark.parametrize("seed", range(12))
def test_diverse_groups(seed: int) -> None:
    script, n_groups, width, diversity = random_script(seed), 2 + seed % 2, 1 + seed % 3, 0.5 + seed % 4
    beams = n_groups * width
    [texts] = best(
        script, [(3,)], beams=beams, beam_groups=n_groups, diversity=diversity, n_best=beams, max_new_tokens=6
    )  # fmt: skip
    expected = diverse_by_hand(script, (3,), width, n_groups, diversity, 6)
    assert [(*text.ids, *([] if text.end is None else [text.end])) for text in texts] == [ids for _, ids in expected]
    assert [text.score for text in texts] == pytest.approx([score for score, _ in expected], abs=1e-4)


def test_groups_differ() -> None:
    """Without diversity all groups say the same; with much of it, no two begin alike."""
    options: dict[str, Any] = {"beams": 4, "beam_groups": 4, "n_best": 4, "max_new_tokens": 5}
    [alike] = best(random_script(0), [(3,)], usage=Usage(), **options)
    [unlike] = best(random_script(0), [(3,)], usage=Usage(), diversity=50.0, **options)
    assert len({text.ids for text in alike}) == 1
    assert len({text.ids[0] for text in unlike}) == 4


def test_progress() -> None:
    words = ((5, 6, 5, 7), (6,))
    assert progress([], words).bank == 0
    assert progress([], words).next_tokens == {5, 6}
    assert progress([5, 6, 5], words).bank == 1 + 3  # 6 is there, and three tokens of the first word
    assert progress([5, 6, 5], words).next_tokens == {5, 7}
    assert progress([5, 6, 5, 6], words).bank == 1 + 2  # fell back to "5 6"
    assert progress([9, 5, 6, 5, 7, 9], words).bank == 5
    assert progress([9, 5, 6, 5, 7, 9], words).next_tokens == set()


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("force", [((7,),), ((7, 7, 8),), ((4, 5), (5, 9)), ((3,), (12, 13), (14,))])
def test_forced_words_occur(seed: int, force: tuple[tuple[int, ...], ...]) -> None:
    n_tokens = sum(map(len, force))
    prompts = [(3,), (5, 6), (8,)]
    for max_new_tokens in (n_tokens + 1, 9):
        for texts in best(
            random_script(seed), prompts, beams=3, n_best=2, force=force, max_new_tokens=max_new_tokens
        ):  # fmt: skip
            assert texts
            assert all(occurs(text.ids, word) for text in texts for word in force)


def test_forced_words_at_the_least_cost() -> None:
    """Where each token costs the same anywhere, the best text is the likeliest token, and the forced ones once."""
    costs = [0.0, 3.0, 1.0, 2.0] + [4.0] * (V - 4)
    expected = logprobs(lambda history: [-cost for cost in costs], ())
    for force in (((3,),), ((2, 3),), ((9,), (10, 11))):
        tokens = [token for word in force for token in word]
        [[text]] = best(
            lambda history: [-cost for cost in costs], [(3,)], usage=Usage(), beams=4, max_new_tokens=6, force=force
        )  # fmt: skip
        assert sorted(text.ids) == sorted([*tokens, *[0] * (6 - len(tokens))])
        total = sum(expected[token] for token in tokens) + expected[0] * (6 - len(tokens))
        assert text.score == pytest.approx(total / 6, abs=1e-5)


def test_forced_words_that_find_no_room() -> None:
    with pytest.raises(
        InputError, match="^prompt 0: no text of 3 tokens was found that holds all that is forced; allow"
    ):
        best(random_script(0), [(2,), (3,)], beams=2, max_new_tokens=3, force=((5, 5),), no_repeat_ngram=1)


def test_scores_are_sums_of_what_is_told() -> None:
    script = random_script(1)
    for options in ({"beams": 3, "n_best": 3}, {"sample": True, "seed": 0, "n_best": 3}, {}):
        for length_penalty in (1.0, 0.0, 2.0):
            [texts] = best(
                script, [(3, 4)], max_new_tokens=7, length_penalty=length_penalty, alternatives=4, **options
            )  # fmt: skip
            for text in texts:
                history: tuple[int, ...] = (3, 4)
                total = 0.0
                for token in text.tokens:
                    expected = logprobs(script, history)
                    assert token.logprob == pytest.approx(expected[token.id], abs=1e-5)
                    order = sorted(range(V), key=lambda each: -expected[each])[:4]
                    assert [each for each, _ in token.alternatives] == order
                    assert [number for _, number in token.alternatives] == pytest.approx(
                        [expected[each] for each in order], abs=1e-5
                    )  # fmt: skip
                    total += token.logprob
                    history = (*history, token.id)
                if text.end is not None:
                    total += logprobs(script, history)[text.end]
                n = len(text.tokens) + (text.end is not None)
                assert text.score == pytest.approx(total / n**length_penalty, abs=1e-5)


def test_without_scores() -> None:
    [[text]] = best(random_script(1), [(3,)], max_new_tokens=5, scores=False)
    [[told]] = best(random_script(1), [(3,)], max_new_tokens=5)
    assert text.ids == told.ids
    assert all(token.logprob != token.logprob for token in text.tokens)  # NaN


def test_no_repeated_end_of_beams_without_ends() -> None:
    """A model without end tokens writes to the last place."""
    [texts] = best(random_script(2), [(3,)], usage=Usage(), beams=2, n_best=2, max_new_tokens=4)
    assert [(len(text.tokens), text.ended, text.end) for text in texts] == [(4, "length", None)] * 2


def test_stop_ids() -> None:
    script: Script = lambda history: [float(token == len(history)) * 9 for token in range(V)]  # noqa: E731
    for options in ({}, {"beams": 2}):
        [[text]] = best(script, [(0,)], max_new_tokens=9, stop_ids=(5,), usage=Usage(end=(8,)), **options)
        assert (text.ids, text.ended, text.end) == ((1, 2, 3, 4), "stop", 5)
        [[text]] = best(script, [(0,)], max_new_tokens=9, usage=Usage(end=(4,)), **options)
        assert (text.ids, text.ended, text.end) == ((1, 2, 3), "end", 4)
        [[text]] = best(script, [(0,)], max_new_tokens=2, usage=Usage(end=(4,)), **options)
        assert (text.ids, text.ended, text.end) == ((1, 2), "length", None)
        [[text]] = best(script, [(3,)], max_new_tokens=2, **options)  # ends at once: an empty text
        assert (text.ids, text.ended, text.end) == ((), "end", END)
