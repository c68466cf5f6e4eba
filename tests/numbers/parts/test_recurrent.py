"""Recurrent layers against torch's and the numpy oracle."""

import pytest
import torch
from torch import nn

from cutaway.errors import InputError
from cutaway.kernels.dropout import dropout
from cutaway.parts.recurrent import RecurrentLayer
from tests.numbers import oracle
from tests.support.families import arrays, noisy
from tests.support.parts import LEFT, RIGHT, SAME_SUMS, B, D, S, T, close, double, equal

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
