"""The attention of recurrent decoders against the numpy oracle."""

import pytest
import torch

from cutaway.parts import masks
from cutaway.parts.recurrent_attention import RecurrentAttention
from tests.numbers import oracle
from tests.support.families import arrays, noisy
from tests.support.parts import LEFT, RIGHT, B, D, S, T, close, double


@pytest.mark.parametrize("mask", [None, RIGHT, LEFT], ids=["full", "right", "left"])
@pytest.mark.parametrize("kind", ["additive", "dot"])
def test_recurrent_attention(run, kind, mask):
    E = 9
    attention = noisy(RecurrentAttention(kind, D, E))
    s, memory = torch.randn(B, T, D), torch.randn(B, S, E)
    bias = masks.bias(1, S, memory, causal=False, visible_BS=mask)
    contexts = run(attention, s, attention.project(memory), memory, bias)
    attend = {"additive": oracle.additive_attention, "dot": oracle.dot_attention}[kind]
    for b in range(B):
        real = torch.ones(S, dtype=torch.bool) if mask is None else mask[b]
        for t in range(T):
            context, weights = attend(arrays(attention), double(s[b, t]), double(memory[b][real]))
            close(contexts[b, t], context)
            if not run.is_fused:
                close(run.seen["weights"][b, t][real], weights)
                assert (run.seen["weights"][b, t][~real] == 0).all()
