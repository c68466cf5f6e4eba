"""The memory of a run, estimated before it starts, and the memory that is available."""

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from cutaway.errors import ConfigError
from cutaway.models.build import on_meta
from cutaway.models.config import Classifier, Config, StackConfig
from cutaway.models.network import Network
from cutaway.parts.attention import Attention
from cutaway.parts.recurrent_attention import RecurrentAttention
from cutaway.training import distributed
from cutaway.training.config import TrainConfig
from cutaway.training.optimizer import matrices_of
from cutaway.training.precision import fastest_precision

_FLOAT = 4  # bytes of a float32: weights, gradients and the optimiser's state, whatever the precision
_BFLOAT = 2
_LOGITS = 512  # tokens whose logits exist at once, see loss.py
_BASE = 80_000_000  # threads, kernels, oneDNN's scratch space
_SPARE = 1.3  # overhead of temporary tensors: the allocator keeps freed blocks (machine/memory.py)


@dataclass(frozen=True)
class Batch:
    """The largest micro-batch: its rows, and the tokens of each on its longer side."""

    rows: int
    tokens: int


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes that a run takes at most, by purpose."""

    parts: dict[str, int]

    @property
    def total(self) -> int:
        return sum(self.parts.values())

    def __str__(self) -> str:
        listed = ", ".join(f"{name} {gigabytes(n)}" for name, n in self.parts.items() if n)
        return f"{gigabytes(self.total)} ({listed})"


def estimate_memory(config: TrainConfig, model: Config, batch: Batch | None = None) -> MemoryEstimate:
    """Estimates the training of a network of this config; without a batch, or with open choices, a lower bound."""
    network = on_meta(model)
    device = distributed.device_of(config.machine.device)
    threads = torch.get_num_threads() if device.type == "cpu" and not distributed.launched() else 1
    n = sum(weight.numel() for weight in network.parameters())
    by_shape: Counter[torch.Size] = Counter()
    for weight in matrices_of(network):
        by_shape[weight.shape] += weight.numel()
    muon = config.optimizer.kind != "adamw"  # open: the smaller of the two
    n_micro = config.batches.micro_batches or 1
    whole = _FLOAT * n
    saved = 0 if batch is None else activations(network, config, batch, str(device))
    if threads > 1:  # each thread's gradients take the place of its activations, and are added to those before
        gradients, temporary = whole * min(n_micro, threads + 1), min(n_micro, threads) * max(0, saved - whole)
    else:
        gradients, temporary = whole, saved
    turning = 4 * _FLOAT * max(by_shape.values(), default=0) if muon and batch is not None else 0  # Muon's, see there
    averaging = 2 * whole if config.averaging.of != "none" and batch is not None else 0  # sums in float64, in the end
    passing = max(gradients + int(_SPARE * temporary), whole + int(_SPARE * turning), whole + averaging)
    parts = {
        "weights": whole,
        "gradients": gradients,
        "optimizer": _FLOAT * (2 * n - (by_shape.total() if muon else 0)),
        "copies to average and to validate": whole * (1 if config.averaging.ema == 0 else 2),
        "activations and sums": passing - gradients + (0 if batch is None else _BASE),
    }
    if config.machine.sharding == "fsdp" and distributed.launched():  # each rank has its part of all but the first
        parts = {name: size if name == "weights" else size // distributed.ranks() for name, size in parts.items()}
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if device.type == "cpu" else 1
    return MemoryEstimate({name: here * size for name, size in parts.items()})


def activations(network: Network, config: TrainConfig, batch: Batch, device: str) -> int:
    """Bytes that one micro-batch keeps for its backward pass, and the loss of some of its tokens.

    Every linear layer's output is kept, and about as much again between them (norms, residuals, activations); attention
    keeps its weights, for each pair of tokens.
    """
    rows = batch.rows * (2 if config.regularization.r_drop else 1)
    tokens, floats = rows * batch.tokens, 0
    for name, module in network.named_modules():
        if name.startswith("head"):
            continue
        if isinstance(module, nn.Linear):
            floats += 2 * tokens * module.out_features
        elif isinstance(module, Attention):
            floats += rows * module.n_heads * batch.tokens**2
        elif isinstance(module, RecurrentAttention) and module.kind == "additive":
            floats += 2 * tokens * batch.tokens * module.k.out_features
    wanted: str = config.machine.precision
    if wanted == "auto":
        wanted, _ = fastest_precision(torch.device(device), network.config)
    # bfloat16 halves some of these, but its products take scratch space: measured, it is as much.
    cast = _BFLOAT * sum(weight.numel() for weight in network.parameters()) if wanted == "bfloat16" else 0
    last = network.config.decoder or network.config.encoder
    words = 0 if isinstance(network.config.head, Classifier) or last is None else last.vocabulary or 0
    logits = min(tokens, _LOGITS) * words * 3 * _FLOAT
    return floats * _FLOAT + cast + logits


def largest_batch(config: TrainConfig, lengths: Tensor, model: Config) -> Batch:
    """`lengths`: tokens of each example, on each of its sides."""
    limits = [half.max_positions for half in (model.encoder, model.decoder) if isinstance(half, StackConfig)]
    longest = min([int(lengths.max()), *(limit for limit in limits if limit is not None)])
    return Batch(min(len(lengths), max(1, config.batches.micro_batch_tokens // longest)), longest)


def check(config: TrainConfig, model: Config, lengths: Tensor | None = None, *, taken: int = 0) -> None:
    """Refuses a run that needs more memory than is available. `taken`: bytes that it already has."""
    if config.machine.memory == "ignore" or distributed.rank() != 0:
        return
    device = distributed.device_of(config.machine.device)
    if (free := available(device)) is None:
        return
    batch = None if lengths is None else largest_batch(config, lengths, model)
    estimate = estimate_memory(config, model, batch)
    if estimate.total - taken > free:
        least = "at least" if batch is None else "about"
        where = "" if device.type == "cpu" else f" on {device}"
        raise ConfigError(
            f"training would take {least} {estimate} of memory{where}, and {gigabytes(free + taken)} are free: choose "
            f"a smaller model (--preset), lower batches.tokens, or start it anyway with --set machine.memory=ignore "
            f"(to resume a run: in its run.toml)"
        )


def available(device: torch.device) -> int | None:
    """Bytes that a process may still allocate there; None where the system does not report them."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if device.type != "cpu":
        return None
    found = [free for free in (_of_system(), _of_process(), *_of_groups()) if free is not None]
    return min(found, default=None)


def _of_system() -> int | None:
    """On Linux the bytes that are free or can be freed; on other systems all memory, or None."""
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def _of_process() -> int | None:
    """Bytes that `ulimit -v` leaves to this process."""
    try:
        import resource

        most, _ = resource.getrlimit(resource.RLIMIT_AS)
        taken = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    except (ImportError, OSError, ValueError):
        return None
    return None if most == resource.RLIM_INFINITY else max(0, most - taken)


def _of_groups(root: Path = Path("/sys/fs/cgroup"), process: Path = Path("/proc/self/cgroup")) -> list[int]:
    """Bytes that a container's limits leave: those of each cgroup of this process, and of its parents."""
    try:
        lines = process.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, kinds, path = line.split(":", 2)
        if kinds and "memory" not in kinds.split(","):
            continue
        top = root / "memory" if kinds else root
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes") if kinds else ("memory.max", "memory.current")
        group = top / path.strip("/")
        for folder in (group, *group.parents):
            if (left := _left(folder, *names)) is not None:
                found.append(left)
            if folder == top:
                break
    return found


def _left(group: Path, limit: str, usage: str) -> int | None:
    """Bytes below a group's limit; its cached files count as free."""
    try:
        most = (group / limit).read_text(encoding="ascii").strip()
        if most == "max" or int(most) >= 2**60:  # no limit, in either version
            return None
        used = int((group / usage).read_text(encoding="ascii"))
        stats = dict(line.split() for line in (group / "memory.stat").read_text(encoding="ascii").splitlines())
        cached = int(stats.get("total_inactive_file", stats.get("inactive_file", 0)))
        return max(0, int(most) - used + cached)
    except (OSError, ValueError):
        return None


def gigabytes(n: int) -> str:
    return f"{n / 1e9:.1f} GB" if n >= 1e8 else f"{n / 1e6:.0f} MB"
