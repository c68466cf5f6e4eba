"""Dropout (§5.4): in training, each number is 0 with probability p, else x / (1 - p)."""

from torch import Tensor, nn

from cutaway.errors import ConfigError
from cutaway.kernels.dropout import dropout


class Dropout(nn.Module):
    """x in use; dropout(x) in training."""

    def __init__(self, p: float) -> None:
        super().__init__()
        if type(p) is bool or not isinstance(p, float | int) or not 0.0 <= p < 1.0:
            raise ConfigError(f"dropout={p!r} is not a probability below 1; choose 0 ≤ dropout < 1")
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p) if self.training else x

    def extra_repr(self) -> str:
        return f"p={self.p}"
