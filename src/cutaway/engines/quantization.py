"""Weights in 8 bits: each output channel has a scale, each group of its numbers a multiplier of it.

A row's largest number would make the steps of all its numbers wide; within a group only those of the group. A
multiplier is a byte: groups cost a sixty-fourth of the memory, or an eighth where they are as small as AVX2 wants them.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from cutaway.kernels import kernels

SMALLEST = 1e-30  # the scale of a row of zeros
STEPS = 255  # multipliers are from 1 to it
ROWS_AT_ONCE = 4096  # what is in between takes several times a weight's memory
USUAL_GROUP = 64


@dataclass(frozen=True)
class WeightFormat:
    """What the products of this machine ask of a weight."""

    group: int
    largest_four: int | None
    """Four of one sign are at most so large together: their products are added in 16 bits."""


@dataclass(frozen=True)
class QuantizedWeight:
    """W[e, d] ≈ numbers[e, d] · multipliers[e, d // group] · scales[e], numbers from -127 to 127."""

    numbers: Tensor  # [E, D]
    multipliers: Tensor  # [E, D / group], bytes from 1
    scales: Tensor  # [E]
    group: int

    NAMES: ClassVar = ("weight", "multipliers", "scales")

    @property
    def tensors(self) -> dict[str, Tensor]:
        """By name, as they are kept in files."""
        return dict(zip(self.NAMES, (self.numbers, self.multipliers, self.scales), strict=True))

    def dequantized(self) -> Tensor:
        steps_EG = self.multipliers * self.scales[:, None]
        return self.numbers * steps_EG.repeat_interleave(self.group, dim=1)[:, : self.numbers.shape[1]]

    def totals(self) -> Tensor:
        """The sums of the rows of W [E]."""
        E, D = self.numbers.shape
        sums_EG = F.pad(self.numbers, (0, -D % self.group)).view(E, -1, self.group).sum(-1, dtype=torch.int32)
        return (sums_EG * self.multipliers).sum(1) * self.scales

    def check(self, n_out: int, n_in: int) -> None:
        """ValueError if these are not the numbers of such a layer: kernels read what the sizes promise."""
        n_groups = -(-n_in // self.group)
        expected = (((n_out, n_in), torch.int8), ((n_out, n_groups), torch.uint8), ((n_out,), torch.float32))
        found = tuple((tuple(tensor.shape), tensor.dtype) for tensor in self.tensors.values())
        if found != expected:
            raise ValueError(f"quantised numbers are {found}, expected {expected}")


def weight_format() -> WeightFormat:
    built = kernels()
    return WeightFormat(USUAL_GROUP, None) if built is None else WeightFormat(built.group, built.largest_four)


def quantized(weight_ED: Tensor, wanted: WeightFormat | None = None) -> QuantizedWeight:
    """The nearest numbers of 8 bits, some rows at a time."""
    wanted = wanted or weight_format()
    parts = [_quantized(part.detach().float(), wanted) for part in torch.split(weight_ED, ROWS_AT_ONCE)]
    q, multipliers, scales = (torch.cat(each) for each in zip(*parts, strict=True))
    return QuantizedWeight(q, multipliers, scales, wanted.group)


def _quantized(weight_ED: Tensor, wanted: WeightFormat) -> tuple[Tensor, Tensor, Tensor]:
    E, D = weight_ED.shape
    groups_EGX = F.pad(weight_ED, (0, -D % wanted.group)).view(E, -1, wanted.group)
    steps_EG = groups_EGX.abs().amax(-1) / 127
    if wanted.largest_four is not None:
        eights = groups_EGX.view(E, groups_EGX.shape[1], -1, 2, 2, 2)  # 0, 1, 4, 5 and 2, 3, 6, 7 of eight together
        largest_EG = torch.maximum(*(
            part.clamp(min=0).sum((3, 5)).flatten(2).amax(-1) for part in (eights, -eights)
        ))  # fmt: skip
        steps_EG = torch.maximum(steps_EG, largest_EG / (wanted.largest_four - 2))  # each may be rounded up by a half
    scales_E = (steps_EG.amax(-1) / STEPS).clamp(min=SMALLEST)
    multipliers_EG = (steps_EG / scales_E[:, None]).ceil().clamp(1, STEPS)
    q_EGX = (groups_EGX / (multipliers_EG * scales_E[:, None]).unsqueeze(-1)).round().clamp(-127, 127)
    return q_EGX.view(E, -1)[:, :D].to(torch.int8), multipliers_EG.to(torch.uint8), scales_E
