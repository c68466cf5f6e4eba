"""One process, or many under torchrun: the micro-batches of each rank, and the sum of their gradients.

`torchrun --nproc-per-node 2 -m cutaway train …` starts the ranks; nothing here starts processes. Rank r of R computes
the micro-batches r, r + R, r + 2R, … of every step: a run may be resumed with more or fewer ranks.
"""

import gc
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from torch import Tensor, nn

from cutaway import devices
from cutaway.errors import CheckpointError, ConfigError
from cutaway.models.network import Network
from cutaway.training.loss import Loss
from cutaway.training.micro_batches import Compute, Cores, Randomness, StepTotals, accumulate

if TYPE_CHECKING:
    from cutaway.training.task import Task

Batch = Any
Surroundings = Callable[[], AbstractContextManager[object]]
PATIENCE = timedelta(hours=12)
"""Ranks wait for rank 0 while it encodes a corpus, or translates to validate; torchrun detects ranks that die."""


class Objective(nn.Module):
    """batch -> loss, as one module: DDP and FSDP need the whole computation in its forward()."""

    def __init__(self, network: Network, task: "Task") -> None:
        super().__init__()
        self.network, self.task = network, task
        self.seen = (0.0, 0)

    def forward(self, batch: Batch) -> Tensor:
        loss = self.task.loss(self.network, batch)
        self.seen = (loss.nll, loss.n)
        return loss.total


class SingleProcess:
    """One process; on a CPU a thread for each core."""

    rank, ranks = 0, 1

    def __init__(
        self, network: Network, task: "Task", device: torch.device, surroundings: Surroundings, split: bool = True
    ) -> None:
        """`split`: whether cores compute micro-batches in parallel. Compiled code has threads of its own."""
        self.network, self.task, self.surroundings = network, task, surroundings
        self.weights = [weight for weight in network.parameters() if weight.requires_grad]
        n = torch.get_num_threads()
        self.cores = Cores(n, surroundings) if device.type == "cpu" and n > 1 and split else None

    def loss(self, batch: Batch) -> Loss:
        return self.task.loss(self.network, batch)

    def backward(self, loss: Compute, n: int, random: Randomness, n_tokens: int) -> StepTotals:
        """Adds the gradients of the mean loss of n micro-batches, each with its own random numbers, to the weights."""
        if self.cores is not None:
            return self.cores(self.weights, range(n), loss, random, n_tokens)
        threads = torch.get_num_threads()
        with self.surroundings():
            totals = accumulate(range(n), loss, random, n_tokens)
        torch.set_num_threads(threads)
        return totals

    def run_jobs(self, jobs: Sequence[Callable[[], object]]) -> None:
        """Runs independent jobs: on a CPU in parallel, each on one core. All cores on one operation would wait for each
        other after each, the longer the busier the machine is."""
        if self.cores is not None:
            self.cores.run_jobs(jobs)
        else:
            for job in jobs:
                job()

    def any_rank(self, flags: Sequence[bool]) -> list[bool]:
        """Each flag is true if it is true on any rank."""
        return list(flags)

    def gather(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Whole tensors from the ranks' parts: on rank 0, in CPU memory."""
        return tensors

    def broadcast(self, scores: dict[str, float]) -> dict[str, float]:
        """The scores of rank 0."""
        return scores

    def wait(self) -> None:
        """Waits until every rank is here."""

    def close(self) -> None:
        if self.cores is not None:
            self.cores.close()


class Distributed:
    """Many processes, each with the whole model (ddp) or a part of it (fsdp)."""

    def __init__(
        self,
        network: Network,
        task: "Task",
        device: torch.device,
        surroundings: Surroundings,
        sharding: Literal["ddp", "fsdp"],
    ) -> None:
        import torch.distributed as dist

        self.dist, self.device, self.task, self.sharding, self.surroundings = dist, device, task, sharding, surroundings
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.objective: nn.Module = Objective(network, task)
        if sharding == "fsdp":
            shard(network, self.objective)
            self.module: nn.Module = self.objective
        else:
            ids = [device.index or 0] if device.type == "cuda" else None
            self.module = nn.parallel.DistributedDataParallel(self.objective, device_ids=ids)

    def loss(self, batch: Batch) -> Loss:
        total = self.module(batch)
        nll, n = cast(Objective, self.objective).seen
        return Loss(total, nll, n)

    def backward(self, loss: Compute, n: int, random: Randomness, n_tokens: int) -> StepTotals:
        mine = list(range(self.rank, n, self.ranks))

        def compute(i: int, generator: torch.Generator) -> Loss:
            last = i == mine[-1]  # ranks add their gradients once
            if isinstance(self.module, nn.parallel.DistributedDataParallel):
                self.module.require_backward_grad_sync = last
            else:
                cast(Any, self.module).set_requires_gradient_sync(last)
            return loss(i, generator)

        with self.surroundings():
            # both average over the ranks, where the sum is needed
            totals = accumulate(mine, compute, random, n_tokens / self.ranks)
        seen = torch.tensor([totals.total, totals.nll, totals.n], dtype=torch.float64, device=self.device)
        self.dist.all_reduce(seen)
        return StepTotals(float(seen[0]), float(seen[1]), int(seen[2]))

    def run_jobs(self, jobs: Sequence[Callable[[], object]]) -> None:
        for job in jobs:
            job()

    def any_rank(self, flags: Sequence[bool]) -> list[bool]:
        found = torch.tensor([int(flag) for flag in flags], device=self.device)
        self.dist.all_reduce(found, op=self.dist.ReduceOp.MAX)
        return [bool(flag) for flag in found.tolist()]

    def gather(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            together = gather(tensor)  # all ranks take part, one tensor after another
            if self.rank == 0:
                found[name] = together if together is tensor else together.cpu()
        return found

    def broadcast(self, scores: dict[str, float]) -> dict[str, float]:
        values = torch.tensor(list(scores.values()), dtype=torch.float64, device=self.device)
        self.dist.broadcast(values, src=0)
        return dict(zip(scores, values.tolist(), strict=True))

    def wait(self) -> None:
        self.dist.barrier()

    def close(self) -> None:
        """Ends the group's threads before Python ends: a thread that frees a tensor after that aborts the process."""
        del self.module, self.objective  # they hold the group
        gc.collect()
        self.dist.destroy_process_group()


def shard(network: Network, objective: nn.Module) -> None:
    """FSDP2: each block's weights are gathered when it runs, then freed; the other weights are one group."""
    from torch.distributed.fsdp import fully_shard

    for half in ("encoder", "decoder"):
        for block in getattr(getattr(network, half, None), "blocks", ()):  # recurrent layers run step by step
            fully_shard(block)
    fully_shard(objective)


def gather(tensor: Tensor) -> Tensor:
    """The whole tensor from the ranks' parts."""
    return cast(Any, tensor).full_tensor() if hasattr(tensor, "full_tensor") else tensor


def shard_like(tensor: Tensor, like: Tensor) -> Tensor:
    """This rank's part of a whole tensor, sharded as `like`."""
    if not hasattr(like, "full_tensor"):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor.to(like.device), cast(Any, like).device_mesh, cast(Any, like).placements)


def fill(network: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Copies whole tensors into a network's weights, sharded or not."""
    weights = dict(network.named_parameters())
    if not tensors.keys() <= weights.keys():
        raise CheckpointError("the state is of another model: its weights have other names")
    with torch.no_grad():
        for name, tensor in tensors.items():
            weights[name].copy_(shard_like(tensor, weights[name]))


def workers(device: torch.device) -> int:
    """The number of parallel workers: the ranks, on a CPU times the cores of each."""
    return ranks() * (torch.get_num_threads() if device.type == "cpu" else 1)


def launched() -> bool:
    """Whether torchrun started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ or ranks() > 1


def rank() -> int:
    return int(os.environ.get("RANK", "0"))


def ranks() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def restarts() -> int:
    """The number of times that torchrun has restarted the ranks."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def wait() -> None:
    """Waits until every rank is here."""
    if launched():
        import torch.distributed as dist

        dist.barrier()


def join(device: torch.device) -> None:
    """Joins the process group, at the addresses from torchrun."""
    import torch.distributed as torch_distributed

    dist: Any = torch_distributed  # its types are incomplete
    if dist.is_initialized():
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)  # NCCL works on the current one
    # Ranks exchange their addresses through a store that outlives them; under one name, restarted ranks may find the
    # addresses of ended ones.
    store, rank, ranks = next(dist.rendezvous("env://"))
    own = dist.PrefixStore(f"start-{restarts()}", store)
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=own, rank=rank, world_size=ranks, timeout=PATIENCE)


def device_of(name: str) -> torch.device:
    """The device that `machine.device` names; under torchrun, of several GPUs this rank's."""
    device = devices.device_of(name, "machine.device")
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return device


def check_micro_batches(n: int, ranks: int) -> None:
    if n % ranks:
        raise ConfigError(
            f"a step has {n} micro-batches (batches.micro_batches), which {ranks} ranks can't divide evenly; start as "
            f"many ranks as divide it, or train anew with another number"
        )


Parallel = SingleProcess | Distributed


def parallel(
    network: Network,
    task: "Task",
    device: torch.device,
    surroundings: Surroundings,
    sharding: Literal["ddp", "fsdp"],
    split: bool = True,
) -> Parallel:
    if launched():
        return Distributed(network, task, device, surroundings, sharding)
    return SingleProcess(network, task, device, surroundings, split)
