"""The position-wise feed-forward network (§3.3): the same two layers for every token, each token by itself."""

from collections.abc import Callable
from typing import Literal

from torch import Tensor, nn
from torch.nn import functional as F

from cutaway.checks import Size, check, check_arguments
from cutaway.parts.dropout import Dropout
from cutaway.parts.tap import Tap

Activation = Literal["relu", "gelu", "gelu_tanh", "silu", "tanh"]


def _gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,  # max(0, x): the Transformer, T5
    "gelu": F.gelu,  # x Φ(x), exact: BERT, ViT
    "gelu_tanh": _gelu_tanh,  # its tanh approximation: GPT-2, FLAN-T5
    "silu": F.silu,  # x σ(x): Llama; MarianMT calls it swish
    "tanh": Tensor.tanh,  # BERT's pooler
}


class FeedForward(nn.Module):
    """max(0, x W₁ + b₁) W₂ + b₂; gated: (act(x W_gate) · x W₁) W₂. x [..., D] -> [..., D]"""

    def __init__(
        self,
        d_model: int = 512,
        d_ff: int = 2048,
        *,
        activation: Activation = "relu",
        gated: bool = False,
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check("FeedForward: activation", activation, Activation)
        check_arguments("FeedForward", Size, d_model=d_model, d_ff=d_ff)
        self.activation = ACTIVATIONS[activation]
        self.up = nn.Linear(d_model, d_ff, bias=bias)
        self.gate = nn.Linear(d_model, d_ff, bias=bias) if gated else None
        self.down = nn.Linear(d_ff, d_model, bias=bias)
        self.dropout = Dropout(dropout)
        self.hidden = Tap("BTF", "x W₁ + b₁" if bias else "x W₁")
        if gated:
            self.gates = Tap("BTF", f"{activation}(x W_gate{' + b_gate' if bias else ''})")
        self.activated = Tap("BTF", "gates · hidden" if gated else f"{activation}(hidden)")
        self.output = Tap("BTD", "activated W₂ + b₂" if bias else "activated W₂")

    def forward(self, x_BTD: Tensor) -> Tensor:
        hidden_BTF = self.hidden(self.up(x_BTD))
        if self.gate is None:
            activated_BTF = self.activated(self.activation(hidden_BTF))
        else:
            activated_BTF = self.activated(self.gates(self.activation(self.gate(x_BTD))) * hidden_BTF)
        return self.output(self.down(self.dropout(activated_BTF)))
