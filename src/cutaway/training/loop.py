"""The one training loop: steps, validation, states on disk, and the model in the end."""

import math
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from cutaway.data.batches import Sampler
from cutaway.errors import CheckpointError, CutawayError
from cutaway.kernels import kernels
from cutaway.machine.memory import keep_freed_memory
from cutaway.model import Model
from cutaway.models.network import Network
from cutaway.training import distributed, state
from cutaway.training.compile import compile_network
from cutaway.training.config import TrainConfig
from cutaway.training.folder import RunFolder, is_numbers
from cutaway.training.loss import Loss
from cutaway.training.metrics import Scores
from cutaway.training.micro_batches import StepTotals, accumulate, randomness
from cutaway.training.optimizer import Optimizer
from cutaway.training.precision import TrainingPrecision, computing, kernel_choice
from cutaway.training.schedule import schedule
from cutaway.training.task import Task
from cutaway.training.watch import StepReport, Watch

X = TypeVar("X")


RECENT = 50
"""Steps over which the loss that is shown is the mean."""
_STATE_BYTES = 32  # of a weight at most: itself, its average and two moments, in float64
_LARGEST_FACTS = 50_000_000  # bytes of a state besides: what it says of its run, and its tensors' names
ANOTHER_RANK = "another rank"
"""Why a rank stops that was not told to itself."""


class TrainingError(CutawayError):
    """A run that can't go on: its numbers are no numbers, or memory is out."""


@dataclass
class Progress:
    """Where a run stands. All of it is in the state, so that a run that goes on knows what it knew."""

    step: int = 0
    epoch: int = 0
    place: int = 0  # in the epoch's batches
    epochs: float = 0.0
    tokens: int = 0  # or texts: what the loss is the mean over
    recent: list[float] = field(default_factory=list)  # -log p of a token in each of the last steps
    seconds: float = 0.0  # of steps
    looking: float = 0.0  # seconds of looks
    looks: list[dict[str, Any]] = field(default_factory=list)  # step and scores of each validation
    best: int | None = None  # the step of the best
    since_best: int = 0  # looks since then

    @property
    def time(self) -> float:
        """Seconds in all."""
        return self.seconds + self.looking

    @property
    def recent_loss(self) -> float:
        return sum(self.recent) / len(self.recent)

    def advance(self, step: int, sampler: Sampler, n_tokens: int, nll: float) -> None:
        """A step is done: where the data stands now, and -log p of a token in it."""
        self.step, self.epoch, self.place, self.epochs = step, sampler.epoch, sampler.place, sampler.epochs
        self.tokens += n_tokens
        self.recent = [*self.recent, nll][-RECENT:]

    def scores(self, step: int) -> Scores:
        return next(look["scores"] for look in self.looks if look["step"] == step)


def check_facts(folder: Path, facts: Mapping[str, Any], metric: str | None = None) -> None:
    """What a state says of its run is believed only if it can be so: its folder may come from anywhere."""
    looks, best, config = facts.get("looks", []), facts.get("best"), facts.get("config")
    is_sound = (
        isinstance(config, dict)
        and isinstance(config.get("optimizer"), dict)
        and isinstance(facts.get("data"), dict)
        and all(type(each := facts.get(name, 0)) is int and 0 <= each < 2**53 for name in _COUNTS)
        and is_numbers([facts.get(name, 0.0) for name in ("epochs", "seconds", "looking")])
        and is_numbers(facts.get("recent", []))
        and isinstance(looks, list)
        and all(_is_validate(look, metric) for look in looks)
        and (best is None or best in [look["step"] for look in looks])
    )
    if not is_sound:
        raise CheckpointError(f"{folder}: the newest state does not say where a run stands; start the run anew")


_COUNTS = ("step", "epoch", "place", "tokens", "since_best")


def _is_validate(look: Any, metric: str | None) -> bool:
    if not isinstance(look, dict) or type(look.get("step")) is not int or not isinstance(look.get("scores"), dict):
        return False
    return {"loss", metric or "loss"} <= look["scores"].keys() and is_numbers(list(look["scores"].values()))


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    reason: str  # "done", "patience", or what stopped it
    progress: Progress
    scores: Scores
    signatures: dict[str, str]
    averaged: tuple[int, ...]  # steps whose mean the model is


def required(value: X | None) -> X:
    """A value that the config leaves open until it is chosen."""
    assert value is not None
    return value


class Loop:
    """`run()` goes on from the newest state, if there is one, until the last step or until `stop` says why not."""

    def __init__(
        self, config: TrainConfig, model: Model, task: Task, folder: RunFolder, watch: Watch, facts: dict[str, Any]
    ) -> None:
        """`config` has no open choices left; `facts` (the data's digest, …) are kept in each state."""
        self.config, self.model, self.task = config, model, task
        self.folder, self.watch, self.facts = folder, watch, facts
        self.n_micro_batches, self.steps = required(config.batches.shares), required(config.schedule.steps)
        self.every = required(config.validation.every)
        self.metric = next(metric for metric in task.metrics if metric.name == config.validation.metric)
        self.progress = Progress()
        self.device = distributed.device_of(config.machine.device)
        keep_freed_memory()
        in_parts = distributed.launched() and config.machine.sharding == "fsdp"
        self.network = model.network.train()
        if not in_parts:  # a model that does not fit a device is never whole there, nor looked at there
            self.network.to(self.device)
        self.eval_network: Network | None = None  # on rank 0: holds the weights that are validated
        if distributed.rank() == 0:
            self.eval_network = deepcopy(self.network).eval().requires_grad_(False)
        compiled = config.machine.compile and compile_network(self.network, self._trial, watch.warn)
        self.parallel = distributed.parallel(
            self.network, task, self.device, self._surroundings, config.machine.sharding, split=not compiled
        )
        distributed.check_shares(self.n_micro_batches, self.parallel.ranks)
        self.weights: dict[str, Tensor] = {
            name: weight for name, weight in self.network.named_parameters() if weight.requires_grad
        }
        self.average = {name: weight.detach().clone() for name, weight in self.weights.items() if config.averaging.ema}
        wanted = config.optimizer
        self.optimizer = Optimizer(
            self.network, required(wanted.kind), rate=required(wanted.rate), matrix_rate=wanted.matrix_rate,
            betas=(wanted.beta1, wanted.beta2), epsilon=wanted.epsilon, decay=required(wanted.decay),
        )  # fmt: skip
        self.rate_factor = schedule(config.schedule.kind, required(config.schedule.warmup), self.steps)
        self.sampler = Sampler(task.lengths, config.batches.share_tokens, config.seed)
        self.snapshots = state.Snapshots(folder.training)
        self.saved: dict[str, Any] | None = None  # what the newest state says of itself

    def _surroundings(self) -> AbstractContextManager[None]:
        wanted = self.config.machine
        precision: TrainingPrecision = "bfloat16" if wanted.precision == "bfloat16" else "float32"
        return computing(self.device, precision, kernel_choice(wanted))

    def _kernels(self) -> str | None:
        """Which kernels compute: with others, or with none, the last bits differ."""
        made = kernels() if self.config.machine.kernels == "own" else None
        return None if made is None else made.digest

    def _trial(self) -> None:
        """A loss and its gradients, which are forgotten."""
        rows = next(Sampler(self.task.lengths, self.config.batches.share_tokens, self.config.seed))

        def compute(_: int, generator: torch.Generator) -> Loss:
            return self.task.loss(self.network, self.task.batch(rows, generator))

        with self._surroundings():
            accumulate([0], compute, randomness(self.config.seed, 0), 1)
        self.network.zero_grad()

    # ------------------------------------------------------------------------------------------------ the run

    def run(self, stop: Callable[[], str | None] = lambda: None) -> Outcome:
        self._restore()
        saved = time.monotonic()
        is_over = self.progress.step >= self.steps or self._patience_is_out()
        reason = "done already" if is_over else "done"
        while self.progress.step < self.steps and not is_over:
            began = time.monotonic()
            self._step()
            self.progress.seconds += time.monotonic() - began
            if self.progress.step % self.every == 0 or self.progress.step == self.steps:
                self._validate()
                if self._patience_is_out():
                    reason = "patience"
                    break
            wants_to_stop, is_due = self.parallel.any_rank(
                [stop() is not None, time.monotonic() - saved > 60 * self.config.saving.minutes]
            )
            if wants_to_stop:
                self._save()
                return Outcome(stop() or ANOTHER_RANK, self.progress, {}, self.task.signatures(), ())
            if is_due:
                self._save()
                saved = time.monotonic()
        self._save()
        return self._finish(reason)

    def _step(self) -> None:
        """One step: micro-batches, loss, backward, clip, step, schedule."""
        began, number = time.monotonic(), self.progress.step + 1
        rows = [next(self.sampler) for _ in range(self.n_micro_batches)]
        n_tokens = sum(map(self.task.n_tokens, rows))

        def loss(i: int, generator: torch.Generator) -> Loss:  # summed over the tokens of a micro-batch
            return self.parallel.loss(self.task.batch(rows[i], generator))

        self.optimizer.forget_gradients()
        totals = self.parallel.backward(loss, len(rows), randomness(self.config.seed, number), n_tokens)
        norm = self._clip_gradients()
        self._check_finite(number, totals, norm)
        rate = self.rate_factor(number)
        self.parallel.run_jobs(self.optimizer.steps(rate))
        self.parallel.run_jobs([partial(self._update_average, number)])
        self.progress.advance(number, self.sampler, n_tokens, totals.nll / totals.n)
        self.watch.step(
            StepReport(
                number, self.steps, totals.total / n_tokens, totals.nll / totals.n, self.progress.recent_loss, norm,
                rate, n_tokens, time.monotonic() - began, self.progress.epochs, self.task.unit,
            )
        )  # fmt: skip

    def _clip_gradients(self) -> float:
        """Cuts the gradient to a length of at most `clip`; gives its length before."""
        norms: list[float] = []

        def clip() -> None:
            most = self.config.optimizer.clip or math.inf
            norms.append(float(distributed.gather(torch.nn.utils.clip_grad_norm_(self.weights.values(), most))))

        self.parallel.run_jobs([clip])
        return norms[0]

    def _check_finite(self, step: int, totals: StepTotals, norm: float) -> None:
        for what, value in (("the loss", totals.total), ("the gradient's length", norm)):
            if not math.isfinite(value):
                raise self._diverged(f"{what} is {value} at step {step}")

    def _diverged(self, what: str) -> TrainingError:
        newest = state.newest(self.folder.training)
        kept = f"the state of {newest} is kept" if newest else "no state was saved yet"
        return TrainingError(
            f"{what}, so learning has broken down; {kept}. Lower optimizer.rate (now "
            f"{self.config.optimizer.rate:g}), or raise schedule.warmup (now {self.config.schedule.warmup})"
        )

    # ----------------------------------------------------------------------------------------------- averages

    def _update_average(self, step: int) -> None:
        """EMA: each step moves the average by 1 - memory towards the weights; early ones forget faster."""
        if not self.average:
            return
        memory = min(required(self.config.averaging.ema), (1 + step) / (10 + step))
        with torch.no_grad():
            torch._foreach_lerp_(list(self.average.values()), list(self.weights.values()), 1 - memory)

    def _eval_weights(self) -> dict[str, Tensor]:
        """The weights that are looked at and kept, whole."""
        return self.parallel.gather(self.average or self.weights)

    def _steps_to_keep(self) -> list[int]:
        """The looks whose weights the average at the end needs, and the best."""
        best = [] if self.progress.best is None else [self.progress.best]
        return sorted({*self._averaged_steps(), *best})

    def _averaged_steps(self) -> list[int]:
        looks, count, of = self.progress.looks, self.config.averaging.count, self.config.averaging.of
        if of == "none":
            return []
        ranked = sorted(looks, key=lambda look: (self.metric.rank(look["scores"]), look["step"]), reverse=True)
        return sorted(look["step"] for look in (looks[-count:] if of == "last" else ranked[:count]))

    def _steps_at_hand(self) -> list[int]:
        """Rank 0 knows. Not all are if more were asked for later, or if somebody took some away or damaged them."""
        if not (steps := self._averaged_steps()):
            return []
        there = self.parallel.broadcast({str(step): float(self.snapshots.has(step, self.weights)) for step in steps})
        gone = [step for step in steps if not there[str(step)]]
        if gone:
            self.watch.warn(
                f"the weights of step {', '.join(map(str, gone))} are gone or damaged: the average is without"
            )
        return [step for step in steps if step not in gone]

    # --------------------------------------------------------------------------------------------- validation

    def _validate(self) -> None:
        """Validates; keeps these weights if an average may need them; the best so far becomes the folder's model."""
        began = time.monotonic()
        step, weights = self.progress.step, self._eval_weights()
        scores = self._scores(weights, "looking at the validation examples")
        if not math.isfinite(scores["loss"]):
            raise self._diverged(f"the validation loss is {scores['loss']} after step {step}")
        best = self.progress.best
        is_best = best is None or self.metric.better(scores, self.progress.scores(best))
        self.progress.looks.append(
            {"step": step, "tokens": self.progress.tokens, "seconds": self.progress.time, "scores": scores}
        )
        self.progress.best = step if is_best else best
        self.progress.since_best = 0 if is_best else self.progress.since_best + 1
        if self.parallel.rank == 0:
            if step in self._steps_to_keep():
                self.snapshots.write(step, weights)
            if is_best:
                self.folder.write_weights(weights)
        seconds = time.monotonic() - began
        self.progress.looking += seconds
        self.watch.look(step, scores, is_best, seconds)

    def _scores(self, weights: dict[str, Tensor], what: str) -> Scores:
        """Of these weights; under torchrun rank 0 validates and broadcasts. `what` is shown meanwhile."""
        scores = {metric.name: 0.0 for metric in self.task.metrics}
        self.watch.busy(what)
        if self.parallel.rank == 0:
            assert self.eval_network is not None
            distributed.fill(self.eval_network, weights)
            model = Model(self.eval_network, self.model.tokenizer, self.model.usage, self.model.name)
            scores |= self.task.validate(model, partial(self.watch.busy, what))
        self.watch.busy("")
        return self.parallel.broadcast(scores)

    def _patience_is_out(self) -> bool:
        patience = self.config.validation.patience
        return bool(patience) and self.progress.since_best >= patience

    # -------------------------------------------------------------------------------------------------- state

    def _save(self) -> None:
        facts = {**self.facts, **asdict(self.progress), "kernels": self._kernels()}
        if self.parallel.broadcast({"new": float(facts != self.saved)})["new"] == 0.0:
            return
        self.saved = facts
        tensors = {"weights": self.weights, "average": self.average, "optimizer": self.optimizer.tensors()}
        whole = {file: self.parallel.gather(values) for file, values in tensors.items() if values}
        if self.parallel.rank == 0:
            if self.progress.best is None:  # nothing was validated yet, but there are weights: a model of their own
                self.folder.write_weights(whole.get("average", whole["weights"]), self._standing())
            state.save(self.folder.training, self.progress.step, facts, whole, self.config.saving.keep)
            self.snapshots.forget_all_but(set(self._steps_to_keep()))
            self.watch.saved(self.progress.step)
        self.parallel.wait()

    def _standing(self) -> str:
        return f"stopped after step {self.progress.step:,} of {self.steps:,}, before its first validation"

    def _restore(self) -> None:
        """The newest state that is whole; weights go back where they are, whoever holds which part."""
        most = _LARGEST_FACTS + sum(_STATE_BYTES * weight.numel() for weight in self.network.parameters())
        found = state.load(self.folder.training, self.watch.warn, most)
        if found is None:
            if self.parallel.rank == 0:
                self.folder.forget_after(0)  # of a run that was killed before its first state
            return
        check_facts(self.folder.training, found.facts, self.metric.name)
        if found.facts.get("kernels") != self._kernels():
            self.watch.warn(
                "the kernels that computed so far are not the ones of this machine (another processor, compiler or "
                "version): it goes on, but rounds otherwise than a run that was never stopped"
            )
        self._check_fits(found)
        distributed.fill(self.network, found.tensors["weights"])
        average = found.tensors.get("average", found.tensors["weights"])
        for name, value in self.average.items():
            value.copy_(distributed.shard_like(average[name], value))
        before, now = found.facts["config"]["optimizer"].get("kind"), self.config.optimizer.kind
        if before == now:
            self.optimizer.remember(found.tensors.get("optimizer", {}))
        else:
            self.watch.warn(f"the optimiser was {before} and is {now} now: it begins without a memory")
        self.saved = found.facts
        self.progress = Progress(**{key: found.facts.get(key, value) for key, value in asdict(Progress()).items()})
        self.sampler = Sampler(
            self.sampler.lengths, self.sampler.n_tokens, self.sampler.seed, self.progress.epoch, self.progress.place
        )  # fmt: skip
        self.watch.resumed(self.progress.step)

    def _check_fits(self, found: state.State) -> None:
        """The weights of a state are those of this network, and its optimiser remembers something."""
        shapes = {name: weight.shape for name, weight in self.weights.items()}
        sides = [found.tensors.get(file, {}) for file in ("weights", "average") if file in ("weights", *found.tensors)]
        fits = all({name: side[name].shape for name in side} == shapes for side in sides)
        if not fits or (found.step > 0 and "optimizer" not in found.tensors):
            raise CheckpointError(
                f"{self.folder.training}: the newest state is not one of the model that {self.folder.path} describes; "
                f"start the run anew"
            )

    # ---------------------------------------------------------------------------------------------------- end

    def _finish(self, reason: str) -> Outcome:
        """The average that was asked for, or the best single weights if these are better."""
        steps = self._steps_at_hand()
        scores = self.progress.scores(self.progress.best) if self.progress.best is not None else {}
        averaged: tuple[int, ...] = ()
        if len(steps) > 1:
            weights = self.snapshots.mean(steps) if self.parallel.rank == 0 else {}
            found = self._scores(weights, "looking at the average")
            if not self.metric.better(scores, found):
                scores, averaged = found, tuple(steps)
                if self.parallel.rank == 0:
                    self.folder.write_weights(weights)
        return Outcome(reason, self.progress, scores, self.task.signatures(), averaged)
