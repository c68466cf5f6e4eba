"""Attention for recurrent models, before the Transformer: Bahdanau's additive (2015) and Luong's dot (2015).

Both make a context vector for each output word, c_t = Σ_s α_ts h_s, from the decoder's state and the encoder's states.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from cutaway.checks import check
from cutaway.parts.masks import NO_BIAS, Bias
from cutaway.parts.norms import upcast
from cutaway.parts.tap import Tap

RecurrentAttentionKind = Literal["additive", "dot"]


class RecurrentAttention(nn.Module):
    """α_t = softmax(score(s_t, h_1..h_S));  c_t = Σ_s α_ts h_s. s [B, T, D], h [B, S, E] -> contexts [B, T, E]

    additive  score = vᵀ tanh(W s + U h)
    dot       score = s · U h, Luong's "general" form: the encoder's states may be wider than the decoder's
    """

    def __init__(self, kind: RecurrentAttentionKind, d_query: int, d_memory: int) -> None:
        super().__init__()
        check("RecurrentAttention: kind", kind, RecurrentAttentionKind)
        self.kind = kind
        self.k = nn.Linear(d_memory, d_query, bias=False)  # U
        if kind == "additive":
            self.q = nn.Linear(d_query, d_query)  # W
            self.energy = nn.Linear(d_query, 1, bias=False)  # v
        self.keys = Tap("BSD", "U h")
        if kind == "additive":
            self.queries = Tap("BTD", "W s, s the state before the step")
        self.scores = Tap("BTS", "vᵀ tanh(W s + U h)" if kind == "additive" else "s · U h")
        self.masked_scores = Tap("BTS", "scores + bias: -∞ on padding")
        self.weights = Tap("BTS", "α = softmax(masked_scores) over the source")
        self.output = Tap("BTE", "c = α · h")

    def project(self, memory_BSE: Tensor) -> Tensor:
        """U h for all source tokens: the same at every step, so made once."""
        return self.keys(self.k(memory_BSE))

    def forward(self, s_BTD: Tensor, keys_BSD: Tensor, memory_BSE: Tensor, bias: Bias = NO_BIAS) -> Tensor:
        """Neighbouring rows of s may share a row of the memory: they are so many more queries of it."""
        if (n_rows := len(memory_BSE)) == len(s_BTD):
            return self._contexts(s_BTD, keys_BSD, memory_BSE, bias)
        B, T, D = s_BTD.shape
        return self._contexts(s_BTD.reshape(n_rows, -1, D), keys_BSD, memory_BSE, bias).view(B, T, -1)

    def _contexts(self, s_BTD: Tensor, keys_BSD: Tensor, memory_BSE: Tensor, bias: Bias) -> Tensor:
        if self.kind == "additive":
            queries_BTD = self.queries(self.q(s_BTD))
            scores_BTS = self.energy(torch.tanh(queries_BTD.unsqueeze(2) + keys_BSD.unsqueeze(1))).squeeze(-1)
        else:
            scores_BTS = s_BTD @ keys_BSD.mT
        scores_BTS = self.scores(scores_BTS)
        masked_BTS = self.masked_scores(scores_BTS if bias.dense is None else scores_BTS + bias.dense.squeeze(1))
        weights_BTS = self.weights(upcast(masked_BTS).softmax(-1).to(memory_BSE.dtype))
        return self.output(weights_BTS @ memory_BSE)
