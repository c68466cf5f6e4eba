"""The training loop: steps, validation, states on disk, and the final model."""

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
"""Steps of the mean loss that is shown."""
_STATE_BYTES = 32  # of a weight at most: itself, its average and two moments, in float64
_LARGEST_FACTS = 50_000_000  # bytes of the rest of a state: its facts, and its tensors' names
ANOTHER_RANK = "another rank"
"""The reason of a rank that stops because another one does."""


class TrainingError(CutawayError):
    """A run that can't go on: its numbers are infinite or NaN, or memory is exhausted."""


@dataclass
class Progress:
    """The progress of a run, all of it saved in its states."""

    step: int = 0
    epoch: int = 0
    place: int = 0  # in the epoch's batches
    epochs: float = 0.0
    tokens: int = 0  # or texts: the unit of the mean loss
    recent: list[float] = field(default_factory=list)  # mean -log p of each of the last steps
    seconds: float = 0.0  # of steps
    validation_seconds: float = 0.0
    validations: list[dict[str, Any]] = field(default_factory=list)  # step and scores of each
    best: int | None = None  # the step of the best
    since_best: int = 0  # validations since then

    @property
    def time(self) -> float:
        """Seconds in all."""
        return self.seconds + self.validation_seconds

    @property
    def recent_loss(self) -> float:
        return sum(self.recent) / len(self.recent)

    def advance(self, step: int, sampler: Sampler, n_tokens: int, nll: float) -> None:
        """Counts a step: the position in the data after it, and its mean -log p."""
        self.step, self.epoch, self.place, self.epochs = step, sampler.epoch, sampler.place, sampler.epochs
        self.tokens += n_tokens
        self.recent = [*self.recent, nll][-RECENT:]

    def scores(self, step: int) -> Scores:
        return next(each["scores"] for each in self.validations if each["step"] == step)


def check_facts(folder: Path, facts: Mapping[str, Any], metric: str | None = None) -> None:
    """Validates the facts of a state, as its folder may come from anywhere."""
    validations, best, config = facts.get("validations", []), facts.get("best"), facts.get("config")
    is_sound = (
        isinstance(config, dict)
        and isinstance(config.get("optimizer"), dict)
        and isinstance(facts.get("data"), dict)
        and all(type(each := facts.get(name, 0)) is int and 0 <= each < 2**53 for name in _COUNTS)
        and is_numbers([facts.get(name, 0.0) for name in ("epochs", "seconds", "validation_seconds")])
        and is_numbers(facts.get("recent", []))
        and isinstance(validations, list)
        and all(_is_validation(each, metric) for each in validations)
        and (best is None or best in [each["step"] for each in validations])
    )
    if not is_sound:
        raise CheckpointError(f"{folder}: the newest state has invalid facts; start the run anew")


_COUNTS = ("step", "epoch", "place", "tokens", "since_best")


def _is_validation(data: Any, metric: str | None) -> bool:
    if not isinstance(data, dict) or type(data.get("step")) is not int or not isinstance(data.get("scores"), dict):
        return False
    return {"loss", metric or "loss"} <= data["scores"].keys() and is_numbers(list(data["scores"].values()))


@dataclass(frozen=True)
class Outcome:
    """The result of a run."""

    reason: str  # "done", "patience", or the reason of `stop`
    progress: Progress
    scores: Scores
    signatures: dict[str, str]
    averaged: tuple[int, ...]  # steps whose weights' mean the model is


def required(value: X | None) -> X:
    """A value of the config that has been chosen by now."""
    assert value is not None
    return value


class Loop:
    """`run()` trains from the newest state, if there is one, to the last step or until `stop` returns a reason."""

    def __init__(
        self, config: TrainConfig, model: Model, task: Task, folder: RunFolder, watch: Watch, facts: dict[str, Any]
    ) -> None:
        """`config` has no open choices left; `facts` (the data's digest, …) are kept in each state."""
        self.config, self.model, self.task = config, model, task
        self.folder, self.watch, self.facts = folder, watch, facts
        self.n_micro_batches, self.steps = required(config.batches.micro_batches), required(config.schedule.steps)
        self.every = required(config.validation.every)
        self.metric = next(metric for metric in task.metrics if metric.name == config.validation.metric)
        self.progress = Progress()
        self.device = distributed.device_of(config.machine.device)
        keep_freed_memory()
        in_parts = distributed.launched() and config.machine.sharding == "fsdp"
        self.network = model.network.train()
        if not in_parts:  # a model that does not fit a device is never whole there, nor validated there
            self.network.to(self.device)
        self.eval_network: Network | None = None  # on rank 0: holds the weights that are validated
        if distributed.rank() == 0:
            self.eval_network = deepcopy(self.network).eval().requires_grad_(False)
        compiled = config.machine.compile and compile_network(self.network, self._trial_step, watch.warn)
        self.parallel = distributed.parallel(
            self.network, task, self.device, self._surroundings, config.machine.sharding, split=not compiled
        )
        distributed.check_micro_batches(self.n_micro_batches, self.parallel.ranks)
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
        self.sampler = Sampler(task.lengths, config.batches.micro_batch_tokens, config.seed)
        self.snapshots = state.Snapshots(folder.training)
        self.saved: dict[str, Any] | None = None  # the facts of the newest state

    def _surroundings(self) -> AbstractContextManager[None]:
        wanted = self.config.machine
        precision: TrainingPrecision = "bfloat16" if wanted.precision == "bfloat16" else "float32"
        return computing(self.device, precision, kernel_choice(wanted))

    def _kernels(self) -> str | None:
        """The digest of the kernels that compute: with others, or with none, the last bits differ."""
        made = kernels() if self.config.machine.kernels == "own" else None
        return None if made is None else made.digest

    def _trial_step(self) -> None:
        """Computes a loss and its gradients, which are dropped."""
        rows = next(Sampler(self.task.lengths, self.config.batches.micro_batch_tokens, self.config.seed))

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

        self.optimizer.zero_gradients()
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
        """Clips the gradient's norm to `clip`; returns the norm before."""
        norms: list[float] = []

        def clip() -> None:
            most = self.config.optimizer.clip or math.inf
            norms.append(float(distributed.gather(torch.nn.utils.clip_grad_norm_(self.weights.values(), most))))

        self.parallel.run_jobs([clip])
        return norms[0]

    def _check_finite(self, step: int, totals: StepTotals, norm: float) -> None:
        for what, value in (("the loss", totals.total), ("the gradient's norm", norm)):
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
        """EMA: each step moves the average by 1 - decay towards the weights; the decay of early steps is smaller."""
        if not self.average:
            return
        decay = min(required(self.config.averaging.ema), (1 + step) / (10 + step))
        with torch.no_grad():
            torch._foreach_lerp_(list(self.average.values()), list(self.weights.values()), 1 - decay)

    def _eval_weights(self) -> dict[str, Tensor]:
        """The weights that are validated and kept, gathered from all ranks."""
        return self.parallel.gather(self.average or self.weights)

    def _steps_to_keep(self) -> list[int]:
        """The steps whose weights the final average needs, and the best one."""
        best = [] if self.progress.best is None else [self.progress.best]
        return sorted({*self._averaged_steps(), *best})

    def _averaged_steps(self) -> list[int]:
        every, count, of = self.progress.validations, self.config.averaging.count, self.config.averaging.of
        if of == "none":
            return []
        ranked = sorted(every, key=lambda each: (self.metric.rank(each["scores"]), each["step"]), reverse=True)
        return sorted(each["step"] for each in (every[-count:] if of == "last" else ranked[:count]))

    def _available_steps(self) -> list[int]:
        """The steps to average whose weights rank 0 has: with a raised averaging.count some are missing."""
        if not (steps := self._averaged_steps()):
            return []
        there = self.parallel.broadcast({str(step): float(self.snapshots.has(step, self.weights)) for step in steps})
        gone = [step for step in steps if not there[str(step)]]
        if gone:
            self.watch.warn(
                f"the weights of step {', '.join(map(str, gone))} are missing or damaged: the average is without"
            )
        return [step for step in steps if step not in gone]

    # --------------------------------------------------------------------------------------------- validation

    def _validate(self) -> None:
        """Validates; keeps these weights if an average may need them; writes the best so far as the folder's model."""
        began = time.monotonic()
        step, weights = self.progress.step, self._eval_weights()
        scores = self._scores(weights, "validating")
        if not math.isfinite(scores["loss"]):
            raise self._diverged(f"the validation loss is {scores['loss']} after step {step}")
        best = self.progress.best
        is_best = best is None or self.metric.better(scores, self.progress.scores(best))
        self.progress.validations.append(
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
        self.progress.validation_seconds += seconds
        self.watch.validated(step, scores, is_best, seconds)

    def _scores(self, weights: dict[str, Tensor], what: str) -> Scores:
        """The scores of these weights; under torchrun rank 0 validates and broadcasts. `what` is shown meanwhile."""
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
            if self.progress.best is None:  # nothing was validated yet: the newest weights are the model
                self.folder.write_weights(whole.get("average", whole["weights"]), self._standing())
            state.save(self.folder.training, self.progress.step, facts, whole, self.config.saving.keep)
            self.snapshots.keep_only(set(self._steps_to_keep()))
            self.watch.saved(self.progress.step)
        self.parallel.wait()

    def _standing(self) -> str:
        return f"stopped after step {self.progress.step:,} of {self.steps:,}, before its first validation"

    def _restore(self) -> None:
        """Restores the newest complete state, on every rank its part."""
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
                "version): it goes on, but rounds differently from a run that was never stopped"
            )
        self._check_fits(found)
        distributed.fill(self.network, found.tensors["weights"])
        average = found.tensors.get("average", found.tensors["weights"])
        for name, value in self.average.items():
            value.copy_(distributed.shard_like(average[name], value))
        before, now = found.facts["config"]["optimizer"].get("kind"), self.config.optimizer.kind
        if before == now:
            self.optimizer.load_state(found.tensors.get("optimizer", {}))
        else:
            self.watch.warn(f"the optimiser was {before} and is {now} now: it starts without its moments")
        self.saved = found.facts
        self.progress = Progress(**{key: found.facts.get(key, value) for key, value in asdict(Progress()).items()})
        self.sampler = Sampler(
            self.sampler.lengths, self.sampler.n_tokens, self.sampler.seed, self.progress.epoch, self.progress.place
        )  # fmt: skip
        self.watch.resumed(self.progress.step)

    def _check_fits(self, found: state.State) -> None:
        """Checks that a state's weights are those of this network, and that it has an optimiser's state."""
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
        """Makes the final model: the chosen average, or the best single weights if these are better."""
        steps = self._available_steps()
        scores = self.progress.scores(self.progress.best) if self.progress.best is not None else {}
        averaged: tuple[int, ...] = ()
        if len(steps) > 1:
            weights = self.snapshots.mean(steps) if self.parallel.rank == 0 else {}
            found = self._scores(weights, "validating the average")
            if not self.metric.better(scores, found):
                scores, averaged = found, tuple(steps)
                if self.parallel.rank == 0:
                    self.folder.write_weights(weights)
        return Outcome(reason, self.progress, scores, self.task.signatures(), averaged)
