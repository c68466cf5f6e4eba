"""Lines drawn with the dots of braille letters: 2 × 4 of them to a letter, so that a curve fits a terminal."""

import math
from collections.abc import Sequence

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
Curve = Sequence[tuple[float, float]]


def plot(
    curves: Sequence[Curve], width: int = 60, height: int = 10, *, low: float | None = None, high: float | None = None
) -> list[str]:
    """Curves of (x, y) points over one frame, with the ends of both axes written beside it."""
    points = [point for curve in curves for point in curve]
    if not points:
        return []
    left, right = min(x for x, _ in points), max(x for x, _ in points)
    low = min(y for _, y in points) if low is None else low
    high = max(y for _, y in points) if high is None else high
    cells = [[0] * width for _ in range(height)]

    def place(x: float, y: float) -> tuple[int, int]:
        across = (x - left) / (right - left or 1.0) * (2 * width - 1)
        up = (y - low) / (high - low or 1.0) * (4 * height - 1)
        return round(across), 4 * height - 1 - round(up)

    for curve in curves:
        places = [place(x, y) for x, y in curve]
        for (x0, y0), (x1, y1) in zip(places, places[1:] or places, strict=False):
            n = max(abs(x1 - x0), abs(y1 - y0), 1)
            for i in range(n + 1):
                x, y = x0 + round(i * (x1 - x0) / n), y0 + round(i * (y1 - y0) / n)
                cells[y // 4][x // 2] |= _DOTS[y % 4][x % 2]
    top, bottom = tick(high, high - low), tick(low, high - low)
    labels = [top, *[""] * (height - 2), bottom] if height > 1 else [top]
    edge = max(len(label) for label in labels)
    drawn = [
        f"{label:>{edge}} ┤" + "".join(chr(0x2800 + dots) for dots in row)
        for label, row in zip(labels, cells, strict=True)
    ]
    first, last = tick(left, right - left), tick(right, right - left)
    return [*drawn, " " * (edge + 2) + first + last.rjust(width - len(first))]


def tick(value: float, span: float) -> str:
    """The number at an end of an axis, to three digits of its span: 7.95374 is `8` where the other end is 22.4762."""
    digits = max(0, 2 - math.floor(math.log10(abs(span or value or 1))))
    text = f"{round(value, digits) + 0.0:,.{digits}f}"  # + 0.0: no -0
    return text.rstrip("0").rstrip(".") if digits else text
