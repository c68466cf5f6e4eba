"""The rule that turns gradients into steps: AdamW for every weight, or Muon for the matrices inside the blocks."""

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from cutaway.errors import CheckpointError
from cutaway.models.network import Network
from cutaway.training.distributed import part_like

Kind = Literal["adamw", "muon"]


class Optimizer:
    """`step(factor)` moves every weight by its gradient, at the highest rate times `factor`.

    Muon moves a matrix by its gradient with all singular values made equal; words, positions, norms, biases and the
    head keep AdamW. Weight decay is for matrices only, never for a table of words.
    """

    def __init__(
        self,
        network: Network,
        kind: Kind = "adamw",
        *,
        rate: float,
        matrix_rate: float = 0.02,
        betas: tuple[float, float] = (0.9, 0.98),
        epsilon: float = 1e-9,
        decay: float = 0.0,
    ) -> None:
        self.names: dict[Tensor, str] = {
            weight: name for name, weight in network.named_parameters() if weight.requires_grad
        }
        matrices = [weight for weight in matrices_of(network) if weight.requires_grad]
        inside = set(matrices)
        others = [weight for weight in self.names if weight not in inside]
        adam = [{"params": others, "weight_decay": 0.0}]
        self._parts: list[tuple[torch.optim.Optimizer, float]] = []
        if kind == "muon" and matrices:
            muon = torch.optim.Muon(matrices, lr=matrix_rate, weight_decay=decay, adjust_lr_fn="original")
            self._parts.append((muon, matrix_rate))
        else:
            adam.append({"params": matrices, "weight_decay": decay})
        groups = [group for group in adam if group["params"]]
        if groups:
            self._parts.append((torch.optim.AdamW(groups, lr=rate, betas=betas, eps=epsilon, fused=True), rate))

    def step(self, factor: float) -> None:
        for part, rate in self._parts:
            for group in part.param_groups:
                group["lr"] = rate * factor
            part.step()

    def forget_gradients(self) -> None:
        for weight in self.names:
            weight.grad = None

    def tensors(self) -> dict[str, Tensor]:
        """All that it remembers: `blocks.0.…weight/exp_avg` -> tensor."""
        return {
            f"{self.names[weight]}/{key}": value
            for part, _ in self._parts
            for weight, memory in part.state.items()
            for key, value in memory.items()
        }

    def remember(self, tensors: Mapping[str, Tensor]) -> None:
        """What `tensors` gave before."""
        weights = {name: weight for weight, name in self.names.items()}
        owner = {weight: part for part, _ in self._parts for group in part.param_groups for weight in group["params"]}
        for name, value in tensors.items():
            weight, _, key = name.rpartition("/")
            if weight not in weights:
                raise CheckpointError(f"the optimiser's state has {name}, which is no weight of this model")
            memory = owner[weights[weight]].state.setdefault(weights[weight], {})
            whole = value.shape == weights[weight].shape and value.dim() > 0
            memory[key] = part_like(value, weights[weight]) if whole else value


def matrices_of(network: nn.Module) -> list[Tensor]:
    """The weights of linear layers inside the blocks (or recurrent layers): what is neither a table nor a head."""
    return [
        module.weight
        for name, module in network.named_modules()
        if isinstance(module, nn.Linear) and not name.startswith("head")
    ]
