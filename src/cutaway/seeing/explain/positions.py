"""Positions of tokens, and the numbers made of them: sines and cosines, rotations, T5's buckets."""

import math
import struct
import sys

from cutaway.models.config import StackConfig
from cutaway.seeing.explain.expression import Call, Expression, Number
from cutaway.seeing.explain.source import Source


def position(source: Source, side: str, b: int, t: int) -> int:
    """A token's position: it counts real tokens where a row of the batch has padding before one, else all tokens."""
    mask = source.mask(side)
    if mask is None:
        return t
    rows = mask.tolist()
    if all(row == sorted(row, reverse=True) for row in rows):
        return t
    return max(sum(rows[b][: t + 1]) - 1, 0)


def sinusoid(place: int, d: int, width: int, layout: str, epsilon: float) -> Expression:
    """sin(position / 10000^(2i/D)) and, of the same angle, cos: in turn, or all sines before all cosines.

    The network makes them in float64, then rounds them to its own precision, `epsilon`.
    """
    i, cosine = divmod(d, 2) if layout == "sinusoidal" else (d % (width // 2), d // (width // 2))
    angle = place / 10000.0 ** (2 * i / width)
    error = 16.0 * angle * sys.float_info.epsilon / epsilon
    return Call("cos" if cosine else "sin", Number(angle, text=f"{place} / 10000^({2 * i}/{width})", error=error))


def rotation(stack: StackConfig, place: int, k: int, width: int) -> Number:
    """The angle by which the plane of the numbers k and k ± K/2 is turned: position / base^(2i/K)."""
    i = k % (width // 2)
    frequency = stack.rotary_base ** (-2 * i / width)
    text = f"{place} / {stack.rotary_base:g}^({2 * i}/{width})"
    # The network's angle is of float32: its exponent is rounded, times ln base that is an error of the power.
    relative = math.log(stack.rotary_base) * 2 * i / width + 6.0
    scaling = stack.rotary_scaling
    if scaling is not None:  # Llama 3: fast ones stay, slow ones are divided by `factor`, those between are blended
        low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
        turns = scaling.original_positions * frequency / (2 * math.pi)
        keep = min(max((turns - low) / (high - low), 0.0), 1.0)
        frequency *= keep + (1 - keep) / scaling.factor
        text = f"{place} · {frequency:.6g}"
        relative *= 1.0 + high / (high - low)
    angle = place * frequency
    return Number(angle, text=text, error=relative * angle)


def bucket(stack: StackConfig, distance: int, *, both_ways: bool) -> int:
    """T5's bucket of a distance: near ones have one each, far ones share, the more the farther.

    At the edge of two buckets float32's rounding decides, as it did in training.
    """
    n, offset, back = stack.t5_buckets, 0, max(-distance, 0)
    if both_ways:
        n //= 2
        offset, back = n if distance > 0 else 0, abs(distance)
    n_exact = n // 2
    if back < n_exact:
        return offset + back
    growth = _float32(math.log(_float32(back / n_exact)))
    growth = _float32(growth / _float32(math.log(stack.t5_max_distance / n_exact)))
    return offset + n_exact + min(int(_float32(growth * (n - n_exact))), n - n_exact - 1)


def _float32(x: float) -> float:
    return float(struct.unpack("f", struct.pack("f", x))[0])
