"""Normalisation: layer norm (the Transformer's), RMS norm (T5's and Llama's), batch norm (for the notes' comparison).

All compute in float32 at least, whatever the input is. Layer norm runs fused by torch, and written out when a tap is
heard, so that mean and variance can be seen.
"""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cutaway.checks import check
from cutaway.kernels import norms as kernels
from cutaway.parts.tap import Tap, heard


def upcast(x: Tensor) -> Tensor:
    """x in float32, or wider if it is wider."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


class LayerNorm(nn.Module):
    """y = γ · (x - μ) / √(σ² + ε) + β, with μ and σ² over the D numbers of one token. x [..., D] -> [..., D]"""

    def __init__(self, d_model: int, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.weight = nn.Parameter(torch.ones(d_model))
        self.bias = nn.Parameter(torch.zeros(d_model))
        self.mean = Tap("BT1", "μ = Σ x / D")
        self.variance = Tap("BT1", "σ² = Σ (x - μ)² / D")
        self.normalized = Tap("BTD", "(x - μ) / √(σ² + ε)")
        self.output = Tap("BTD", "γ · normalized + β")
        self.internal_taps = (self.mean, self.variance, self.normalized)

    def forward(self, x_BTD: Tensor) -> Tensor:
        if not heard(*self.internal_taps):
            return self.output(F.layer_norm(x_BTD, self.weight.shape, self.weight, self.bias, self.epsilon))
        wide_BTD = upcast(x_BTD)
        mean_BT1 = self.mean(wide_BTD.mean(-1, keepdim=True))
        variance_BT1 = self.variance((wide_BTD - mean_BT1).square().mean(-1, keepdim=True))
        normalized_BTD = self.normalized((wide_BTD - mean_BT1) * torch.rsqrt(variance_BT1 + self.epsilon))
        return self.output((self.weight * normalized_BTD + self.bias).to(x_BTD.dtype))


class RMSNorm(nn.Module):
    """y = γ · x / √(mean(x²) + ε): layer norm without the mean and without β. x [..., D] -> [..., D]"""

    def __init__(self, d_model: int, epsilon: float = 1e-6) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.weight = nn.Parameter(torch.ones(d_model))
        self.mean_square = Tap("BT1", "Σ x² / D")
        self.normalized = Tap("BTD", "x / √(mean_square + ε)")
        self.output = Tap("BTD", "γ · normalized")
        self.internal_taps = (self.mean_square, self.normalized)

    def forward(self, x_BTD: Tensor) -> Tensor:
        if not heard(*self.internal_taps) and (y_BTD := self.kernel(x_BTD)) is not None:
            return self.output(y_BTD)
        wide_BTD = upcast(x_BTD)
        mean_square_BT1 = self.mean_square(wide_BTD.square().mean(-1, keepdim=True))
        normalized_BTD = self.normalized(wide_BTD * torch.rsqrt(mean_square_BT1 + self.epsilon))
        return self.output(self.weight * normalized_BTD.to(x_BTD.dtype))

    def kernel(self, x_BTD: Tensor) -> Tensor | None:
        """The same in one go; None where there is no kernel for it."""
        return kernels.norm(x_BTD, None, self.weight, None, self.epsilon) if self.training else None


class BatchNorm(nn.Module):
    """y = γ · (x - μ) / √(σ² + ε) + β, with μ and σ² of each feature over all tokens of the batch. x [..., D]

    In training the statistics are the batch's, so a sentence's numbers depend on its neighbours; afterwards they are
    running averages. That is why the Transformer uses layer norm instead.
    """

    running_mean: Tensor
    running_variance: Tensor

    def __init__(self, d_model: int, epsilon: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.momentum = momentum
        self.weight = nn.Parameter(torch.ones(d_model))
        self.bias = nn.Parameter(torch.zeros(d_model))
        self.register_buffer("running_mean", torch.zeros(d_model))
        self.register_buffer("running_variance", torch.ones(d_model))
        self.mean = Tap("D", "μ = mean over the batch; outside training, its running average")
        self.variance = Tap("D", "σ² = variance over the batch; outside training, its running average")
        self.normalized = Tap("BTD", "(x - μ) / √(σ² + ε)")
        self.output = Tap("BTD", "γ · normalized + β")

    def forward(self, x_BTD: Tensor) -> Tensor:
        wide_BTD = upcast(x_BTD)
        mean_D, variance_D = self.running_mean, self.running_variance
        if self.training:
            tokens_ND = wide_BTD.flatten(0, -2)
            mean_D, variance_D = tokens_ND.mean(0), tokens_ND.var(0, correction=0)
            with torch.no_grad():
                n = tokens_ND.shape[0]
                self.running_mean.lerp_(mean_D, self.momentum)
                self.running_variance.lerp_(variance_D * n / max(n - 1, 1), self.momentum)  # unbiased, as torch's
        mean_D, variance_D = self.mean(mean_D), self.variance(variance_D)
        normalized_BTD = self.normalized((wide_BTD - mean_D) * torch.rsqrt(variance_D + self.epsilon))
        return self.output((self.weight * normalized_BTD + self.bias).to(x_BTD.dtype))


NormKind = Literal["layer", "rms"]


def norm(kind: NormKind, d_model: int, epsilon: float) -> LayerNorm | RMSNorm:
    """The norm a stack's config asks for."""
    check("norm", kind, NormKind)
    return LayerNorm(d_model, epsilon) if kind == "layer" else RMSNorm(d_model, epsilon)
