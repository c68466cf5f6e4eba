"""Every filter gives the scores of transformers' processor; the blocks of `top` give what topk gives."""

import random

import pytest
import torch
from transformers.generation import logits_process as theirs

from cutaway.decoding import filters
from cutaway.decoding import top as top_module
from cutaway.decoding.top import MANY, log_total, top

R, V, T = 5, 23, 11


@pytest.fixture(params=range(4))
def logits(request: pytest.FixtureRequest) -> torch.Tensor:
    torch.manual_seed(request.param)
    return 3 * torch.randn(R, V)


@pytest.fixture
def history() -> torch.Tensor:
    return torch.randint(7, (R, T), generator=torch.Generator().manual_seed(0))


def equal(ours: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(ours, expected, rtol=0, atol=0)


@pytest.mark.parametrize("value", [0.3, 1.0, 2.5])
def test_temperature(logits: torch.Tensor, value: float) -> None:
    equal(filters.temperature(logits, value), theirs.TemperatureLogitsWarper(value)(None, logits))


@pytest.mark.parametrize("k", [1, 4, V, V + 5])
def test_top_k(logits: torch.Tensor, k: int) -> None:
    logits[0, :6] = 9.0  # ties stay together
    equal(filters.top_k(logits, k), theirs.TopKLogitsWarper(k)(None, logits))


@pytest.mark.parametrize("p", [1e-6, 0.3, 0.9, 0.999])
def test_top_p(logits: torch.Tensor, p: float) -> None:
    equal(filters.top_p(logits, p), theirs.TopPLogitsWarper(p)(None, logits))


@pytest.mark.parametrize("share", [0.001, 0.2, 1.0])
def test_min_p(logits: torch.Tensor, share: float) -> None:
    equal(filters.min_p(logits, share), theirs.MinPLogitsWarper(share)(None, logits))


@pytest.mark.parametrize("penalty", [0.5, 1.7])
def test_repetition_penalty(logits: torch.Tensor, history: torch.Tensor, penalty: float) -> None:
    expected = theirs.RepetitionPenaltyLogitsProcessor(penalty)(history, logits.clone())
    equal(filters.repetition_penalty(logits, history, penalty), expected)


@pytest.mark.parametrize("n", [1, 2, 3, T, T + 1])
def test_no_repeat_ngram(logits: torch.Tensor, history: torch.Tensor, n: int) -> None:
    expected = theirs.NoRepeatNGramLogitsProcessor(n)(history, logits.clone())
    equal(filters.no_repeat_ngram(logits, history, n), expected)


def test_banned(logits: torch.Tensor, history: torch.Tensor) -> None:
    r = random.Random(0)
    words = [[r.randrange(7) for _ in range(n)] for n in (1, 1, 2, 2, 2, 2, 2, 3, 3, 3, 3, T + 2)]
    words += [[*history[row, -2:].tolist(), 20 + row % 3] for row in range(R)]
    expected = theirs.NoBadWordsLogitsProcessor(words)(history, logits.clone())
    equal(filters.banned(logits, history, words), expected)
    assert torch.isinf(expected[0, 20])


def test_hidden(logits: torch.Tensor) -> None:
    expected = theirs.SuppressTokensLogitsProcessor([3, 5])(None, logits.clone())
    equal(filters.hidden(logits, torch.tensor([3, 5])), expected)


def test_rows_that_begin_later(logits: torch.Tensor, history: torch.Tensor) -> None:
    """What a row repeats before its first token is no history: it gives what its own tokens give."""
    first = [0, 3, 7, 9, 10]
    for row, column in enumerate(first):
        history[row, :column] = history[row, column]
    first_R = torch.tensor(first)
    words = [[0, 1], [3, 3], [4, 5, 6], *([int(history[row, -1])] * 2 for row in range(R))]
    for row, column in enumerate(first):
        own, mine = history[row : row + 1, column:], logits[row : row + 1]
        for n in (1, 2, 3):
            ours = filters.no_repeat_ngram(logits, history, n, first_R)[row : row + 1]
            equal(ours, theirs.NoRepeatNGramLogitsProcessor(n)(own, mine.clone()))
        ours = filters.banned(logits, history, words, first_R)[row : row + 1]
        equal(ours, theirs.NoBadWordsLogitsProcessor(words)(own, mine.clone()))
        ours = filters.repetition_penalty(logits, history, 1.7)[row : row + 1]
        equal(ours, theirs.RepetitionPenaltyLogitsProcessor(1.7)(own, mine.clone()))


def test_filters_leave_their_argument_alone(logits: torch.Tensor, history: torch.Tensor) -> None:
    before = logits.clone()
    filters.top_k(logits, 3)
    filters.top_p(logits, 0.5)
    filters.min_p(logits, 0.5)
    filters.temperature(logits, 0.5)
    filters.repetition_penalty(logits, history, 2.0)
    filters.no_repeat_ngram(logits, history, 1)
    filters.banned(logits, history, [[3], [4, 5]])
    filters.hidden(logits, torch.tensor([1]))
    equal(logits, before)


@pytest.fixture(params=["kernels", "torch"])
def either_way(request, monkeypatch) -> None:
    """With our own kernels, where they could be built, and without."""
    if request.param == "torch":
        monkeypatch.setattr(top_module, "kernels", lambda: None)


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("n_values", [100, 5003, 64 * 41])
@pytest.mark.parametrize("k", [1, 2, 7, MANY + 1])
def test_top(n_values: int, k: int) -> None:
    values = torch.randperm(3 * n_values, generator=torch.Generator().manual_seed(k)).view(3, -1).float()
    values[1, -3:] += 4 * n_values  # after the last whole block of the kernel
    expected = values.topk(k)
    found, places = top(values, k)
    equal(found, expected.values)
    equal(places, expected.indices)


@pytest.mark.usefixtures("either_way")
def test_top_of_ties_and_hidden_values() -> None:
    values = torch.full((2, 4096), -torch.inf)
    values[0, 7] = 1.0
    values[1, :] = 3.0
    found, places = top(values, 3)
    equal(found, values.topk(3).values)
    equal(values.gather(1, places), found)
    assert all(len(set(row)) == 3 for row in places.tolist())


@pytest.mark.usefixtures("either_way")
def test_of_equal_values_the_first_is_the_largest() -> None:
    values = torch.zeros(3, 61)
    values[0, 41] = values[0, 3] = values[1, 60] = values[1, 59] = torch.finfo(torch.float32).max
    assert top(values, 1)[1].tolist() == [[3], [59], [0]]


@pytest.mark.usefixtures("either_way")
def test_log_total_of_many() -> None:
    logits = 3 * torch.randn(7, 2**17)
    logits[:, 3] = -torch.inf
    torch.testing.assert_close(log_total(logits), logits.logsumexp(-1, keepdim=True))


@pytest.mark.usefixtures("either_way")
def test_log_total(logits: torch.Tensor) -> None:
    torch.testing.assert_close(log_total(logits + 200), (logits + 200).logsumexp(-1, keepdim=True))
