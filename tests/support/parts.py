"""Sizes, masks and tolerances of the tests of single parts."""

import numpy as np
import torch

B, T, S, D, H, G, K, F = 3, 5, 7, 10, 4, 2, 6, 14  # H · K = 24 is not D

CLOSE = {"rtol": 0, "atol": 1e-5}  # sums of at most 48 float32 products of size 1 to 10, each rounded to 6e-8 of itself
ROUNDED = {"rtol": 0, "atol": 1e-7}  # computed in float64, then rounded once to float32 (6e-8 below 1)
SAME_SUMS = {"rtol": 0, "atol": 2e-6}  # torch against torch: the same float32 products, added in another order

# [B, S]: lengths in no order, nor in one that sorting and sorting back would leave alike
RIGHT = torch.tensor([[1, 1, 1, 1, 0, 0, 0], [1, 0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1, 1]]).bool()
LEFT = RIGHT.flip(1)


def close(ours: torch.Tensor, theirs: np.ndarray, **tolerance: float) -> None:
    np.testing.assert_allclose(ours.detach().numpy(), theirs, **(tolerance or CLOSE))


def equal(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)


def double(x: torch.Tensor) -> np.ndarray:
    return x.detach().double().numpy()
