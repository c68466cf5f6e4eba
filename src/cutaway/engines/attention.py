"""Attention over short sequences by kernels.c, where torch's general kernel spends more time on preparing."""

import ctypes

import torch
from torch import Tensor

from cutaway.engines.kernels import kernels
from cutaway.parts.attention import fused
from cutaway.parts.masks import Bias

_Sizes, _Strides = ctypes.c_int64 * 7, ctypes.c_int64 * 12
WIDEST, LONGEST = 32, 64
"""Heads and sequences up to which several queries are faster here; one query (a cached step) always is. Measured, see
docs/performance.md."""


def attend(q_BHTK: Tensor, k_BGSK: Tensor, v_BGSK: Tensor, bias: Bias, scale: float, serves: int) -> Tensor:
    """softmax(q kᵀ · scale + bias) v, in float32."""
    (B, H, T, K), (G, S) = q_BHTK.shape, k_BGSK.shape[1:3]
    compiled = kernels()
    assert compiled is not None
    if serves == 1 and T > 1 and (K > WIDEST or S > LONGEST):
        return fused(q_BHTK, k_BGSK, v_BGSK, bias, scale)
    dense = None if bias.dense is None else bias.dense.expand(B // serves, H, T, S)
    if dense is not None and dense.stride(3) != 1:
        dense = dense.contiguous()
    of_bias = (0, 0, 0) if dense is None else dense.stride()[:3]
    y_BTHK = torch.empty(B, T, H, K)
    compiled.attend(
        q_BHTK.data_ptr(), k_BGSK.data_ptr(), v_BGSK.data_ptr(), None if dense is None else dense.data_ptr(),
        y_BTHK.data_ptr(), _Sizes(B, H, T, G, S, K, serves),
        _Strides(*q_BHTK.stride()[:3], *k_BGSK.stride()[:3], *v_BGSK.stride()[:3], *of_bias), scale,
    )  # fmt: skip
    return y_BTHK.transpose(1, 2)
