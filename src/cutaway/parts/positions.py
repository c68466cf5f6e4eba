"""Where a token stands: sinusoids (§3.5), learned vectors, rotary angles, and T5's relative bias.

A position counts from 0 in the real sequence, not in the padded buffer.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor

from cutaway.checks import Size, check, check_fields
from cutaway.errors import InputError
from cutaway.parts.lookup import EmbeddingTable
from cutaway.parts.masks import check_newest, right_padded
from cutaway.parts.tap import Tap


def position_ids(n_tokens: int, visible_BS: Tensor | None, device: torch.device) -> Tensor:
    """The positions of all tokens so far: [S], or [B, S] where padding before other tokens shifts some rows."""
    if visible_BS is not None and not right_padded(visible_BS):
        return (visible_BS.long().cumsum(-1) - 1).clamp(min=0)
    return torch.arange(n_tokens, device=device)


Layout = Literal["interleaved", "halves"]


def sinusoidal(
    positions: Tensor,
    d_model: int,
    *,
    layout: Layout = "interleaved",
    base: float = 10000.0,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i+1) = cos(pos / 10000^(2i/d)). positions [...] -> [..., D]

    `interleaved` is the paper's order; `halves` puts all sines before all cosines, as MarianMT does.
    """
    check("sinusoidal: layout", layout, Layout)
    if d_model % 2:
        raise InputError(f"sinusoidal positions pair a sine with a cosine, so d_model={d_model} must be even")
    two_i = torch.arange(0, d_model, 2, dtype=torch.float64, device=positions.device)
    angle = positions.double().unsqueeze(-1) * base ** (-two_i / d_model)
    pair = (angle.sin(), angle.cos())
    both = torch.stack(pair, dim=-1).flatten(-2) if layout == "interleaved" else torch.cat(pair, dim=-1)
    return both.to(dtype)


def sinusoids(
    n_positions: int, d_model: int, layout: Layout, dtype: torch.dtype, device: torch.device
) -> Tensor:  # fmt: skip
    """`sinusoidal` of the positions from 0 on, at least so many [P, D]: the table that all rows and steps share."""
    if torch.compiler.is_compiling():
        return sinusoidal(torch.arange(n_positions, device=device), d_model, layout=layout, dtype=dtype)
    whole = 1 << max(8, (n_positions - 1).bit_length())  # few different tables, so that they can be kept
    return _kept_sinusoids(whole, d_model, layout, dtype, device)


@lru_cache(maxsize=8)
def _kept_sinusoids(n: int, d_model: int, layout: Layout, dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # so that training may use it too
        # made on the CPU: not every device has float64
        return sinusoidal(torch.arange(n), d_model, layout=layout, dtype=dtype).to(device)


class LearnedPositions(EmbeddingTable):
    """One learned vector for each of `max_positions` places. positions [...] -> [..., D]"""

    def __init__(self, max_positions: int, d_model: int) -> None:
        super().__init__(max_positions, d_model, "position")

    def check(self, n_tokens: int) -> None:
        """Whether there is a vector for each of so many tokens."""
        if n_tokens > self.n_rows:
            raise InputError(
                f"{n_tokens} tokens, but this model learned only {self.n_rows} positions; "
                "shorten the input or cut it into windows"
            )


@dataclass(frozen=True, kw_only=True)
class RotaryScaling:
    """Llama 3's stretch of the slow rotations, for contexts longer than it was first trained on."""

    factor: float = 8.0
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    original_positions: Size = 8192

    def __post_init__(self) -> None:
        check_fields(self)
        if self.factor < 1 or not 0 < self.low_frequency_factor < self.high_frequency_factor:
            raise InputError(f"rotary scaling needs factor ≥ 1 and 0 < low < high frequency factor, got {self}")

    def apply(self, frequencies: Tensor) -> Tensor:
        """Fast rotations stay, slow ones are divided by `factor`, those between are blended."""
        turns = self.original_positions * frequencies / (2 * math.pi)  # over the original context
        span = self.high_frequency_factor - self.low_frequency_factor
        keep = ((turns - self.low_frequency_factor) / span).clamp(0, 1)
        return keep * frequencies + (1 - keep) * frequencies / self.factor


@dataclass(frozen=True)
class Rotation:
    """cos and sin of pos · 10000^(-2i/K), each [T, K] or [B, 1, T, K]; computed once for all blocks of a stack."""

    cos: Tensor
    sin: Tensor

    def rotate(self, x_BHTK: Tensor) -> Tensor:
        """Turns the plane (x_i, x_{i+K/2}) by its angle; q·k then depends on the distance of the two tokens only.

        RoFormer pairs neighbours (x_2i, x_2i+1); halves are how Hugging Face stores Llama. The two differ by a
        permutation of K that q and k share, so scores are the same.
        """
        first, second = x_BHTK.chunk(2, dim=-1)
        rotated = torch.cat((-second, first), dim=-1)
        return (x_BHTK * self.cos + rotated * self.sin).to(x_BHTK.dtype)


def rotary(
    positions: Tensor,
    d_head: int,
    *,
    base: float = 10000.0,
    scaling: RotaryScaling | None = None,
    dtype: torch.dtype = torch.float32,
) -> Rotation:
    """The rotation of each position, for heads of width `d_head`.

    Angles are float32 unless `dtype` is float64. They are then off by up to 3e-4 at position 4000, as they were when
    the models we load were trained: exact ones would turn a little differently from Hugging Face's.
    """
    wide = torch.promote_types(dtype, torch.float32)
    if d_head % 2:
        raise InputError(f"rotary positions turn pairs of numbers, so d_head={d_head} must be even")
    two_i = torch.arange(0, d_head, 2, dtype=wide, device=positions.device)
    frequencies = 1.0 / base ** (two_i / d_head)
    if scaling is not None:
        frequencies = scaling.apply(frequencies)
    angle = positions.to(wide).unsqueeze(-1) * frequencies
    angle = torch.cat((angle, angle), dim=-1)
    if angle.dim() == 3:
        angle = angle.unsqueeze(1)
    return Rotation(angle.cos(), angle.sin())


class RelativeBias(EmbeddingTable):
    """bias_BHTS = table[bucket(key position - query position), head]: T5's positions, added to the scores.

    Half of the buckets are exact distances, the rest grow logarithmically up to `max_distance`; the encoder spends half
    of all buckets on each direction, the decoder looks only back.
    """

    def __init__(self, n_buckets: int, max_distance: int, n_heads: int, *, both_ways: bool) -> None:
        super().__init__(n_buckets, n_heads, "distance")
        self.max_distance = max_distance
        self.both_ways = both_ways
        self.output = Tap("BHTS", "table[bucket(position of key - position of query), head]; all rows alike: B = 1")

    def bucket(self, distance_TS: Tensor) -> Tensor:
        """distance = key position - query position -> bucket number."""
        n = self.n_rows
        offset = torch.zeros_like(distance_TS)
        if self.both_ways:
            n //= 2
            offset = (distance_TS > 0).long() * n
            back = distance_TS.abs()
        else:
            back = (-distance_TS).clamp(min=0)
        n_exact = n // 2
        far = n_exact + (
            torch.log(back.clamp(min=1).float() / n_exact) / math.log(self.max_distance / n_exact) * (n - n_exact)
        ).long().clamp(max=n - n_exact - 1)
        return offset + torch.where(back < n_exact, back, far)

    def between(self, n_queries: int, n_keys: int, positions: Tensor | None = None) -> Tensor:
        """The bias of the newest `n_queries` of `n_keys` tokens.

        `positions` [B, S] where padding shifts some rows: the bias is then [B, H, T, S], else [1, H, T, S] for all.
        """
        check_newest(n_queries, n_keys)
        place_BS = torch.arange(n_keys, device=self.weight.device) if positions is None else positions
        place_BS = place_BS.view(-1, n_keys)
        distance_BTS = place_BS[:, None, :] - place_BS[:, n_keys - n_queries :, None]
        bias_BTSH = self(self.bucket(distance_BTS))
        return self.output(bias_BTSH.permute(0, 3, 1, 2))
