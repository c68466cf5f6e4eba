"""Arguments of kernels: addresses of tensors, each checked, as C reads and writes at any address."""

import torch
from torch import Tensor

from cutaway.kernels import Axes, Sizes


def address(x: Tensor, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> int:
    """The address of a contiguous tensor of exactly this shape and dtype."""
    if x.dtype != dtype or x.shape != shape or not x.is_contiguous() or not x.is_cpu:
        raise _unexpected(x, f"shape {list(shape)}, dtype {dtype}, contiguous")
    return x.data_ptr()


def optional_address(x: Tensor | None, shape: tuple[int, ...]) -> int | None:
    return None if x is None else address(x, shape)


def axes(x_BHTX: Tensor) -> Axes:
    """A tensor and its strides; its last axis has no gaps."""
    has_gaps = x_BHTX.dim() == 4 and x_BHTX.stride(3) != 1 and x_BHTX.shape[3] > 1
    if x_BHTX.dtype != torch.float32 or x_BHTX.dim() != 4 or has_gaps or not x_BHTX.is_cpu:
        raise _unexpected(x_BHTX, "four axes, dtype torch.float32, the last axis contiguous")
    return Axes(x_BHTX.data_ptr(), *x_BHTX.stride()[:3])


def attention_sizes(q_BHTK: Tensor, k_BGSK: Tensor, v_BGSK: Tensor, repeats: int = 1) -> Sizes:
    """The sizes of queries, keys and values; a ValueError if they do not fit together. `repeats` neighbouring rows of
    the batch, as the beams of a text, read one row of keys."""
    B, H, T, K = q_BHTK.shape
    rows, G, S, width = k_BGSK.shape
    if v_BGSK.shape != k_BGSK.shape or rows * repeats != B or width != K or H % G or not min(T, S, K):
        shapes = ", ".join(str(list(x.shape)) for x in (q_BHTK, k_BGSK, v_BGSK))
        raise ValueError(f"queries, keys and values of shapes {shapes} do not match")
    return Sizes(B, H, G, T, S, K, repeats)


def _unexpected(x: Tensor, expected: str) -> ValueError:
    return ValueError(
        f"a kernel was given a tensor of shape {list(x.shape)}, strides {list(x.stride())}, dtype {x.dtype} on "
        f"{x.device}; expected {expected}"
    )
