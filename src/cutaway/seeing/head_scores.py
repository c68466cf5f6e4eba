"""Which heads say something: the attention sink, where heads look that have nothing to look for, and a head's score."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Kind = Literal["encoder", "decoder", "cross"]
FEWEST = 4
"""Tokens of a text in which a sink is looked for: among two or three, one key always gets most of the attention."""


@dataclass(frozen=True)
class Sink:
    """The key that gets most of the attention of `heads` of `of` heads, whatever the query is."""

    key: int
    heads: int
    of: int


def choosing(weights_HTS: Tensor, kind: Kind) -> Tensor:
    """[T]: whether a query has more than one key to look at. The first token of a decoder has only itself."""
    _, T, S = weights_HTS.shape
    keys_T = torch.arange(1, T + 1) if kind == "decoder" else torch.full((T,), S)
    return keys_T > 1


def find_sink(layers: Sequence[Tensor], kind: Kind) -> Sink | None:
    """The sink of a stack, from the weights [heads, queries, keys] of all its layers; None if it has none.

    It is the key that gets more than half of the attention of more than half of the heads. The words of a short source
    may well get as much from a decoder, so attention across is never said to have one.
    """
    T, S = layers[0].shape[1:]
    if kind == "cross" or min(T, S) < FEWEST:
        return None
    shares_NS = torch.cat([weights[:, choosing(weights, kind)].mean(1) for weights in layers])
    n_S = (shares_NS > 0.5).sum(0)
    key = int(n_S.argmax())
    n, of = int(n_S[key]), len(shares_NS)
    return Sink(key, n, of) if 2 * n > of else None


def score_heads(weights_HTS: Tensor, kind: Kind) -> Tensor:
    """[H]: how much the queries of a head look at keys of their own choice; 0 says nothing, 1 most.

    Of each query that has a choice, the largest of (its weight on a key - the mean weight that all queries put on this
    key), and of these the mean. A sink gets the same from every query, so it adds nothing; nor does attention that is
    spread evenly. In self-attention a token's own place and its neighbours are left out: looking at the word before is
    a habit that does not depend on the words.
    """
    _, T, S = weights_HTS.shape
    rows_T = choosing(weights_HTS, kind)
    if not rows_T.any():
        return torch.zeros(len(weights_HTS))
    query_T1, key_1S = torch.arange(T).unsqueeze(1), torch.arange(S).unsqueeze(0)
    may_TS = (key_1S <= query_T1) if kind == "decoder" else torch.ones(T, S, dtype=torch.bool)
    may_TS = may_TS & rows_T.unsqueeze(1)
    weights_HTS = weights_HTS.float() * may_TS
    mean_HS = weights_HTS.sum(1) / may_TS.sum(0).clamp_min(1)
    counts_TS = may_TS if kind == "cross" else may_TS & ((query_T1 - key_1S).abs() > 1)
    more_HTS = (weights_HTS - mean_HS.unsqueeze(1)) * counts_TS
    return more_HTS.amax(-1)[:, rows_T].clamp_min(0).mean(1)
