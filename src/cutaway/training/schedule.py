"""The learning rate, step by step: each schedule is a factor of the highest rate, from 0 to 1."""

import math
from collections.abc import Callable
from typing import Literal

Kind = Literal["noam", "inverse_sqrt", "cosine", "linear", "slanted_triangular", "constant"]
Schedule = Callable[[int], float]


def schedule(kind: Kind, warmup: int, steps: int) -> Schedule:
    """step (from 1) -> factor. `warmup` steps rise linearly to 1; `steps` is how many there will be.

    noam, inverse_sqrt  then √(warmup / step): the paper's eq. 3, whose highest rate is (d_model · warmup)^-½
    cosine, linear      then down to 0 at the last step, along half a cosine or a line
    slanted_triangular  ULMFiT's: up in the first tenth (or `warmup`), then a line down to 1/32
    constant            then 1
    """
    if kind == "slanted_triangular":
        warmup = warmup or max(1, steps // 10)
    warmup = max(1, warmup)

    def left(step: int) -> float:
        """The remaining share of the decay, from 1 to 0."""
        return max(0.0, min(1.0, (steps - step) / max(1, steps - warmup)))

    down: dict[str, Schedule] = {
        "noam": lambda step: math.sqrt(warmup / step),
        "inverse_sqrt": lambda step: math.sqrt(warmup / step),
        "cosine": lambda step: 0.5 - 0.5 * math.cos(math.pi * left(step)),
        "linear": left,
        "slanted_triangular": lambda step: (1 + 31 * left(step)) / 32,
        "constant": lambda _: 1.0,
    }
    return lambda step: step / warmup if step < warmup else down[kind](step)


def noam_rate(d_model: int, warmup: int) -> float:
    """The highest rate of the paper's schedule, reached at the end of the warm-up: (d_model · warmup)^-½ (eq. 3)."""
    return (d_model * warmup) ** -0.5
