"""Every choice among kinds of a part is checked by name."""

import pytest
import torch

from cutaway.errors import ConfigError
from cutaway.parts.attention import Attention
from cutaway.parts.block import Block
from cutaway.parts.embedding import Embedding
from cutaway.parts.feedforward import FeedForward
from cutaway.parts.norms import norm
from cutaway.parts.positions import sinusoidal
from cutaway.parts.recurrent import RecurrentLayer
from cutaway.parts.recurrent_attention import RecurrentAttention
from tests.support.parts import D, H, K


def test_choices_of_parts_are_checked():
    for make, message in (
        (lambda: norm("batch", D, 1e-5), r"norm: no choice 'batch' \(known: layer, rms\)"),
        (lambda: sinusoidal(torch.arange(3), D, layout="paper"), "sinusoidal: layout: no choice 'paper'"),
        (lambda: FeedForward(D, D, activation="swish"), "FeedForward: activation: no choice 'swish'"),
        (lambda: Embedding(5, D, positions="rope"), "Embedding: positions: no choice 'rope'"),
        (lambda: Embedding(0, D), "Embedding: vocabulary=0 must be at least 1"),
        (lambda: RecurrentLayer("GRU", D, D), "RecurrentLayer: cell: no choice 'GRU'; did you mean 'gru'"),
        (lambda: RecurrentAttention("bahdanau", D, D), "RecurrentAttention: kind: no choice 'bahdanau'"),
        (
            lambda: Block(Attention(D, H, d_head=K), FeedForward(D, D), norm_place="Post"),
            "Block: norm_place: no choice 'Post'; did you mean 'post'",
        ),
    ):
        with pytest.raises(ConfigError, match=message):
            make()
