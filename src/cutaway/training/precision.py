"""The precision and the kernels of training: float32 or bfloat16, our kernels or torch's. The fastest are found by
timing training steps on this machine, and the choice is written into the run's run.toml."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Literal

import torch
from torch.nn import functional as F

from cutaway.kernels import kernels
from cutaway.kernels.choice import KernelChoice, default, using
from cutaway.kernels.dropout import drawn_from
from cutaway.machine import CLEARLY, processor
from cutaway.machine.environment import PRECISION, forced
from cutaway.machine.measurements import Numbers, best_of, measured
from cutaway.models.build import build
from cutaway.models.config import Config, RecurrentConfig, TransformerConfig
from cutaway.models.presets import preset
from cutaway.training.config import MachineChoice

TrainingPrecision = Literal["float32", "bfloat16"]

NARROW, WIDE = 128, 512
"""Widths that are timed; the nearer one decides for a model. Wide products gain more by bfloat16 than narrow ones: 2.4
and 1.9 times on an EPYC (Zen 5)."""
BORDER = 256


def fastest_precision(device: torch.device, config: Config) -> tuple[TrainingPrecision, str]:
    """The precision of `auto` for this model on this device, and the reason."""
    if device.type != "cpu":
        fast = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        return ("bfloat16" if fast else "float32"), f"by what {device.type} supports"
    if not can_train_in_bfloat16(config):
        return "float32", "torch has no LSTM in bfloat16 on this processor"
    if (asked := forced(PRECISION)) is not None:
        return asked, f"by {PRECISION.name}"  # type: ignore[return-value]  # one of its values
    if not processor.has_bfloat16():
        return "float32", "this processor has no bfloat16 instructions"
    name = "narrow" if width(config) < BORDER else "wide"
    times = step_times()
    gain = times[f"{name} float32"] / times[f"{name} bfloat16"]
    return ("bfloat16" if gain >= CLEARLY else "float32"), f"bfloat16 measured {gain:.2f} × as fast as float32"


def kernel_choice(wanted: MachineChoice) -> KernelChoice:
    """The kernels of a run's config; open ones as chosen for this machine."""
    usual = default()
    return replace(
        usual,
        own=usual.own if wanted.kernels == "auto" else wanted.kernels == "own",
        kernel=usual.kernel if wanted.kernel_length is None else wanted.kernel_length,
        half_steps=usual.half_steps if wanted.steps_length is None else wanted.steps_length,
    )


@contextmanager
def computing(device: torch.device, precision: TrainingPrecision, choice: KernelChoice) -> Iterator[None]:
    """Sets precision and kernels for this block, in this thread."""
    # Threads would share the cache of bfloat16 weights, and the first to fill it would decide the gradients' last bits.
    cached, half = device.type != "cpu", precision == "bfloat16"
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=half, cache_enabled=cached), using(choice):
        yield


def can_train_in_bfloat16(config: Config) -> bool:
    """Whether such a model can train in bfloat16 here. Without instructions for it most can, slowly as a rule; an LSTM,
    which oneDNN computes, can't."""
    is_lstm = isinstance(config, RecurrentConfig) and config.decoder.cell == "lstm"
    return not is_lstm or processor.has_bfloat16()


def width(config: Config) -> int:
    stacks = (config.encoder, config.decoder)
    return max(stack.d_model for stack in stacks if stack is not None)


def step_times() -> Numbers:
    """Seconds of training work on one core, forward and backward in each precision: of a small encoder-decoder, and of
    a wide feed-forward network."""
    built = kernels()
    return measured(f"training {'' if built is None else built.digest}", _measure)


def _measure() -> Numbers:
    torch.set_num_threads(1)  # as in training: a core computes a batch of its own
    cpu, choice = torch.device("cpu"), default()

    def way(work: Callable[[], None], precision: TrainingPrecision) -> Callable[[], None]:
        def run() -> None:
            with computing(cpu, precision, choice):
                work()

        return run

    precisions: tuple[TrainingPrecision, ...] = ("float32", "bfloat16") if processor.has_bfloat16() else ("float32",)
    found: Numbers = {}
    for name, work in (("narrow", _small_network()), ("wide", _feedforward())):
        times = best_of({precision: way(work, precision) for precision in precisions}, 0.03)
        found |= {f"{name} {precision}": seconds for precision, seconds in times.items()}
    return found


def _small_network(n_rows: int = 24, n_tokens: int = 16, vocabulary: int = 1000) -> Callable[[], None]:
    """Forward and backward of a Transformer of one block a side."""
    config = preset("transformer-tiny")
    assert isinstance(config, TransformerConfig)
    changes = {"n_blocks": 1, "d_model": NARROW, "d_ff": 4 * NARROW, "n_heads": 4, "vocabulary": vocabulary}
    stacks = {name: replace(getattr(config, name), **changes, dropout=0.1) for name in ("encoder", "decoder")}
    network = build(replace(config, **stacks)).train()
    generator = torch.Generator().manual_seed(0)
    source, target = (torch.randint(vocabulary, (n_rows, n_tokens), generator=generator) for _ in range(2))
    weights = list(network.parameters())

    def step() -> None:
        with drawn_from(torch.Generator().manual_seed(0)):
            logits = network(source, target).float()
            loss = F.cross_entropy(logits.flatten(0, 1), target.flatten())
        torch.autograd.grad(loss, weights)

    return step


def _feedforward(n_tokens: int = 64) -> Callable[[], None]:
    """Forward and backward of two wide layers."""
    generator = torch.Generator().manual_seed(0)
    x, up, down = (
        torch.randn(shape, generator=generator).requires_grad_()
        for shape in ((n_tokens, WIDE), (4 * WIDE, WIDE), (WIDE, 4 * WIDE))
    )

    def step() -> None:
        y = F.linear(F.linear(x, up).relu(), down)
        torch.autograd.grad(y.float().square().mean(), (x, up, down))

    return step
