"""The attention sink, the key that idle heads attend to, and scores of how selective a head's attention is."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Kind = Literal["encoder", "decoder", "cross"]
FEWEST = 4
"""Tokens of the shortest text that can have a sink: among two or three, one key always gets most of the attention."""


@dataclass(frozen=True)
class Sink:
    """The key that gets most of the attention of `heads` of `of` heads, whatever the query is."""

    key: int
    heads: int
    of: int


def choosing(weights_HTS: Tensor, kind: Kind) -> Tensor:
    """[T]: whether a query can attend to more than one key. The first token of a decoder sees only itself."""
    _, T, S = weights_HTS.shape
    keys_T = torch.arange(1, T + 1) if kind == "decoder" else torch.full((T,), S)
    return keys_T > 1


def find_sink(layers: Sequence[Tensor], kind: Kind) -> Sink | None:
    """The sink of a stack, from the weights [heads, queries, keys] of all its layers; None if it has none.

    It is the key that gets more than half of the attention of more than half of the heads. The words of a short source
    may well get as much from a decoder, so cross-attention never counts as having one.
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
    """[H]: how selectively the queries of a head attend, from 0 to 1.

    Of each query that has a choice, the largest of (its weight on a key - the mean weight of the other queries on this
    key), and of these the mean. A sink gets the same from every query, so it adds nothing; nor does attention that is
    spread evenly. In self-attention, the others' mean weight on keys at the same distance is subtracted if it is more,
    and a token itself and its neighbours are left out: attention to the token before is the same whatever the words.
    """
    _, T, S = weights_HTS.shape
    rows_T = choosing(weights_HTS, kind)
    if not rows_T.any():
        return torch.zeros(len(weights_HTS))
    query_T1, key_1S = torch.arange(T).unsqueeze(1), torch.arange(S).unsqueeze(0)
    may_TS = (key_1S <= query_T1) if kind == "decoder" else torch.ones(T, S, dtype=torch.bool)
    may_TS = may_TS & rows_T.unsqueeze(1)
    weights_HTS = weights_HTS.float() * may_TS
    usual_HTS = _others(weights_HTS, may_TS, key_1S.expand(T, S))
    if kind != "cross":
        distance_TS = query_T1 - key_1S
        usual_HTS = usual_HTS.maximum(_others(weights_HTS, may_TS, distance_TS + S - 1))
        may_TS = may_TS & (distance_TS.abs() > 1)
    more_HTS = (weights_HTS - usual_HTS) * may_TS
    return more_HTS.amax(-1)[:, rows_T].clamp_min(0).mean(1)


def _others(weights_HTS: Tensor, may_TS: Tensor, group_TS: Tensor) -> Tensor:
    """[H, T, S]: the mean weight of the other cells of each cell's group (M = T·S cells, N groups), but hidden ones."""
    group_M, n = group_TS.flatten(), int(group_TS.max()) + 1
    weights_HM, may_M = weights_HTS.flatten(1), may_TS.flatten().float()
    sums_HN = torch.zeros(len(weights_HM), n).index_add_(1, group_M, weights_HM)
    counts_N = torch.zeros(n).index_add_(0, group_M, may_M)
    others_HM = (sums_HN[:, group_M] - weights_HM) / (counts_N[group_M] - 1).clamp_min(1)
    return others_HM.view_as(weights_HTS)
