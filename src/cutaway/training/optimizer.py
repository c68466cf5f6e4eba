"""The optimizer: AdamW for every weight, or Muon for the matrices inside the blocks."""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from cutaway.errors import CheckpointError
from cutaway.models.network import Network
from cutaway.training.distributed import shard_like

Kind = Literal["adamw", "muon"]


class Optimizer:
    """`steps(factor)` updates every weight, at the highest rate times `factor`.

    Muon moves a matrix by its gradient with all singular values made equal; words, positions, norms, biases and the
    head keep AdamW. Weight decay is for matrices only, never for an embedding.
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
            for some in _evenly(matrices, torch.get_num_threads()):
                self._parts.append((Muon(some, rate=matrix_rate, decay=decay), matrix_rate))
        else:
            adam.append({"params": matrices, "weight_decay": decay})
        groups = [group for group in adam if group["params"]]
        if groups:
            self._parts.append((torch.optim.AdamW(groups, lr=rate, betas=betas, eps=epsilon, fused=True), rate))

    def steps(self, factor: float) -> list[Callable[[], object]]:
        """One step as independent jobs: each updates other weights."""
        for part, rate in self._parts:
            for group in part.param_groups:
                group["lr"] = rate * factor
        return [part.step for part, _ in self._parts]

    def step(self, factor: float) -> None:
        """Runs the jobs of a step, one after another."""
        for job in self.steps(factor):
            job()

    def zero_gradients(self) -> None:
        for weight in self.names:
            weight.grad = None

    def tensors(self) -> dict[str, Tensor]:
        """The optimizer's state: `blocks.0.…weight/exp_avg` -> tensor."""
        return {
            f"{self.names[weight]}/{key}": value
            for part, _ in self._parts
            for weight, memory in part.state.items()
            for key, value in memory.items()
        }

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restores the state of `tensors`. torch's kernel does not check shapes: it would write past a small tensor."""
        of_name = {name: weight for weight, name in self.names.items()}
        owner = {weight: part for part, _ in self._parts for group in part.param_groups for weight in group["params"]}
        found: dict[str, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            of, _, key = name.rpartition("/")
            if of not in of_name:
                raise CheckpointError(f"the optimiser's state has {name}, which is no weight of this model")
            found.setdefault(of, {})[key] = value
        for name, memory in found.items():
            weight = of_name[name]
            _check_state(name, memory, weight, _MOMENTUM if isinstance(owner[weight], Muon) else _ADAM)
            owner[weight].state[weight] = {
                key: (value if key == _STEP else shard_like(value, weight)).to(weight.device)
                for key, value in memory.items()
            }


_STEP = "step"  # a number; all else is as large as the weight
_ADAM, _MOMENTUM = {_STEP, "exp_avg", "exp_avg_sq"}, {"momentum"}


def _check_state(name: str, memory: Mapping[str, Tensor], weight: Tensor, keys: set[str]) -> None:
    """Checks that a weight's state is complete, and that its tensors have the optimiser's shapes and dtypes."""
    if memory.keys() != keys:
        raise CheckpointError(
            f"the optimiser's state has {', '.join(sorted(memory))[:200]} of {name}, expected {', '.join(sorted(keys))}"
        )
    for key, value in memory.items():
        shape, dtype = ((), torch.float32) if key == _STEP else (tuple(weight.shape), weight.dtype)
        if (tuple(value.shape), value.dtype) != (shape, dtype):
            raise CheckpointError(
                f"the optimiser's state has {name}/{key} as {value.dtype} of shape {list(value.shape)}, expected "
                f"{dtype} of shape {list(shape)}"
            )


def _evenly(matrices: Sequence[Tensor], n: int) -> list[list[Tensor]]:
    """At most n lists of about equal work, each with matrices of few shapes."""
    ordered = sorted(matrices, key=lambda matrix: tuple(matrix.shape))
    return [some for some in (ordered[i::n] for i in range(n)) if some]


class Muon(torch.optim.Optimizer):
    """W ← W - η √max(1, rows/columns) · U Vᵀ, where U S Vᵀ is the momentum of W's gradient (Jordan 2024).

    torch.optim.Muon computes in bfloat16, which many CPUs emulate: 19 ms for a 128 × 128 matrix instead of 1.2 in
    float32. Here the matrices of one shape go together, in float32 where bfloat16 is not faster.
    """

    def __init__(self, matrices: Sequence[Tensor], *, rate: float, decay: float = 0.0, momentum: float = 0.95) -> None:
        super().__init__(matrices, {"lr": rate, "decay": decay, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # no closure is used
        for group in self.param_groups:
            alike: dict[torch.Size, list[Tensor]] = {}
            for weight in group["params"]:
                if weight.grad is not None:
                    alike.setdefault(weight.shape, []).append(weight)
            for shape, weights in alike.items():
                moments = [self._moment(weight, group["momentum"]) for weight in weights]
                turned = orthogonal(torch.stack(moments))
                scale = max(1.0, shape[0] / shape[1]) ** 0.5
                for weight, direction in zip(weights, turned, strict=True):
                    weight.mul_(1 - group["lr"] * group["decay"]).sub_(direction, alpha=group["lr"] * scale)

    def _moment(self, weight: Tensor, momentum: float) -> Tensor:
        """Nesterov's: the gradient, and the mean of those before it, one step ahead."""
        assert weight.grad is not None
        memory = self.state[weight]
        if not memory:
            memory["momentum"] = torch.zeros_like(weight)
        memory["momentum"].lerp_(weight.grad, 1 - momentum)
        return weight.grad.lerp(memory["momentum"], momentum)


def orthogonal(matrices_NIJ: Tensor) -> Tensor:
    """Each matrix with its singular values brought near 1: five steps of X ← a X + (b A + c A²) X, A = X Xᵀ."""
    a, b, c = 3.4445, -4.7750, 2.0315  # chosen by Jordan: small values grow fast, all end between 0.7 and 1.2
    wide = matrices_NIJ.shape[1] <= matrices_NIJ.shape[2]
    x = matrices_NIJ if wide else matrices_NIJ.mT
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp_min(1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x if wide else x.mT


def matrices_of(network: nn.Module) -> list[Tensor]:
    """The weights of linear layers inside the blocks (or recurrent layers), without embeddings and heads."""
    return [
        module.weight
        for name, module in network.named_modules()
        if isinstance(module, nn.Linear) and not name.startswith("head")
    ]
