"""Sinks and heads that say something, on weights made for it."""

import pytest
import torch
from torch import Tensor

from cutaway.seeing.attribution.head_scores import Kind, choosing, find_sink, score_heads
from cutaway.seeing.render import terminal

T = 8


def causal(raw_TS: Tensor) -> Tensor:
    weights = raw_TS.tril()
    return weights / weights.sum(-1, keepdim=True)


def sink(share: float = 0.9) -> Tensor:
    """Most at the first token, the rest evenly."""
    return causal(torch.full((T, T), 1.0)) * (1 - share) + share * torch.eye(T)[0]


def previous() -> Tensor:
    return causal(torch.eye(T).roll(-1, dims=1) + 1e-3)


def itself() -> Tensor:
    return causal(torch.eye(T) + 1e-3)


def even() -> Tensor:
    return causal(torch.ones(T, T))


def choosy() -> Tensor:
    """Each query looks at another key, some way back."""
    raw = torch.full((T, T), 1e-3)
    for query in range(2, T):
        raw[query, (3 * query) % (query - 1)] = 1.0
    return causal(raw)


def test_the_head_that_chooses_says_most() -> None:
    heads = torch.stack([sink(), previous(), itself(), even(), choosy()])
    scores = score_heads(heads, "decoder")
    assert scores.argmax() == 4
    assert scores[4] > 0.4
    assert (scores[:4] < 0.1).all()


def test_a_score_is_its_formula() -> None:
    """Two queries, three keys: the first gives .8 more than the other to key 0, the second .4 more to keys 1 and 2."""
    weights = torch.tensor([[[0.9, 0.1, 0.0], [0.1, 0.5, 0.4]]])
    assert score_heads(weights, "cross").item() == pytest.approx((0.8 + 0.4) / 2)


@pytest.mark.parametrize("back", [0, 1, 2, 3])
def test_a_habit_says_nothing(back: int) -> None:
    """To look so many tokens back, whatever they are."""
    steps = causal(torch.eye(T).roll(-back, dims=1) + 1e-4)
    assert score_heads(steps.unsqueeze(0), "decoder").item() < 0.1
    assert score_heads(torch.eye(T).roll(-back, dims=1).unsqueeze(0), "cross").item() == pytest.approx(1)


@pytest.mark.parametrize("kind", ["encoder", "decoder", "cross"])
def test_one_token_has_no_score(kind: Kind) -> None:
    assert score_heads(torch.ones(2, 1, 1), kind).tolist() == [0, 0]


def test_a_sink_is_found_in_most_heads_or_not_at_all() -> None:
    layers = [torch.stack([sink(), sink(0.6), choosy()]), torch.stack([sink(0.8), even(), previous()])]
    found = find_sink([*layers, torch.stack([sink(), sink()])], "decoder")
    assert found is not None
    assert (found.key, found.heads, found.of) == (0, 5, 8)
    assert find_sink(layers, "decoder") is None  # 3 of 6 are not most
    assert find_sink([torch.stack([itself(), previous(), even()])], "decoder") is None


def test_an_encoders_sink_may_be_anywhere() -> None:
    last = torch.full((2, T, T), 0.02)
    last[:, :, -1] = 1 - 0.02 * (T - 1)
    found = find_sink([last], "encoder")
    assert found is not None
    assert found.key == T - 1
    assert find_sink([last], "cross") is None  # a decoder may well look at one word of a short source


def test_links_compete_without_the_first_row_and_the_sink() -> None:
    heads = torch.stack([sink(), choosy()])
    assert choosing(heads, "decoder").tolist() == [False] + (T - 1) * [True]
    assert [(link.query, link.key) for link in terminal.strongest(heads, 1)] == [(0, 0)]  # as it was
    for link in terminal.strongest(heads, 8, choosing(heads, "decoder"), 0):
        assert link.query > 0
        assert link.key > 0
        assert link.weight == heads[link.head, link.query, link.key].item()


WORDS = ["The", "cat", "sat", "on", "the", "mat", "because", "it"]


def test_columns_are_words_where_there_is_room() -> None:
    (_, titles, first, *_) = terminal.side_by_side(WORDS, WORDS, even().unsqueeze(0), 120)
    assert titles.split() == WORDS
    assert first.split() == ["The", 8 * "█"]


def test_columns_are_numbers_where_there_is_not() -> None:
    heads = torch.stack([even(), choosy()])
    (_, titles, first, *_) = terminal.side_by_side(WORDS, WORDS, heads, 60)
    assert titles.split() == 2 * [str(i) for i in range(8)]
    assert first.split()[:2] == ["The", "0"]  # the rows are the legend
    legend, *_ = terminal.side_by_side(WORDS, [word.upper() for word in WORDS], heads, 60)
    assert legend == "0 THE  1 CAT  2 SAT  3 ON  4 THE  5 MAT  6 BECAUSE  7 IT"


def test_more_columns_than_fit_are_drawn_in_parts() -> None:
    words = [f"word{i}" for i in range(60)]
    lines = terminal.matrix(words[:3], words, torch.eye(60)[[0, 30, 59]], width=60)
    assert max(map(len, lines)) <= 60
    drawing = lines[lines.index("") :]
    assert sum(line.count("█") for line in drawing) == 3 * 2
    assert "".join(" ".join(line.split()) for line in drawing if "0" in line.split()) == "0 5 10 15 20"


def test_wide_letters_keep_their_columns() -> None:
    """A letter of Chinese takes the room of two."""
    lines = terminal.matrix(["猫", "cat"], ["猫", "cat"], torch.eye(2), width=60)
    assert lines[-2].startswith(" 猫 ██")
    assert lines[-1].startswith("cat   ██")
    assert len(terminal.matrix(["a"], ["b" * 400], torch.ones(1, 1), width=60)[0]) <= 60


def test_the_last_column_says_what_else_was_looked_at() -> None:
    lines = terminal.matrix(WORDS, WORDS, sink(0.5) * 0.5 + choosy() * 0.5, width=80, sink=0)
    assert lines[-1].split()[-1] in ("sat", "on", "the", "mat", "because")
    assert terminal.matrix(WORDS, WORDS, sink(), width=80, sink=0)[-1].split()[-1] == "The"
