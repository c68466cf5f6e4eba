"""The two calls of training: `train` starts a run in a new folder, `resume` continues one."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

from cutaway import schema
from cutaway.checkpoints import native
from cutaway.data.hub import PREFIX
from cutaway.devices import is_out_of_memory
from cutaway.errors import CheckpointError, ConfigError, InputError
from cutaway.kernels import kernels
from cutaway.model import Model
from cutaway.models.build import build
from cutaway.text.files import load_tokenizer
from cutaway.training import distributed, memory, state
from cutaway.training.card import write_card
from cutaway.training.config import FIXED, UNCHANGING, TrainConfig
from cutaway.training.folder import RunFolder
from cutaway.training.loop import Loop, Outcome, TrainingError, check_facts
from cutaway.training.record import Recorder
from cutaway.training.setup import prepare
from cutaway.training.task import Prepared
from cutaway.training.toml import read_config, write_config
from cutaway.training.tuning import tune
from cutaway.training.watch import Stop, Watch

_HEAD = "Every key of this run, with what was chosen for it. `cutaway train` reads it; so does `cutaway resume`."


def never() -> None:
    return None


def train(
    config: TrainConfig, out: str | Path, *, watch: Watch | None = None, force: bool = False, stop: Stop = never
) -> Outcome:
    """Trains a model into the folder `out`: load it with `cutaway.load(out)`.

    Under torchrun every rank calls this; rank 0 prepares first, and the others find its results.
    """
    folder, watch = RunFolder(Path(out)), watch or Watch()
    distributed.device_of(config.machine.device)  # a missing one is an error before anything is written
    _join(config)
    prepared: Prepared | None = None
    with ExitStack() as stack:
        stack.enter_context(_memory_explained(folder, config))
        if distributed.rank() == 0 and not _is_restart(folder, config):
            folder.check_free(force)
            with _building_kernels():
                prepared = prepare(config, watch)
            distributed.check_micro_batches(prepared.config.batches.micro_batches or 0, distributed.ranks())
            stack.enter_context(folder.claimed(anew=True))
            folder.check_still_free(force)
            folder.clear()
            folder.begin(prepared.model, write_config(prepared.config, _HEAD))
        distributed.wait()
        return resume(out, watch=watch, stop=stop) if prepared is None else _run(folder, prepared, watch, stop)


@contextmanager
def _memory_explained(folder: RunFolder, config: TrainConfig) -> Iterator[None]:
    """Turns a failed allocation into a TrainingError with a way out."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        if folder.config.is_file():
            config = read_config(folder.config)  # with all choices made
        newest = state.newest(folder.training)
        raise TrainingError(
            f"out of memory: lower batches.tokens (now {config.batches.tokens or 'open'}), data.max_tokens (now "
            f"{config.data.max_tokens}), or choose a smaller model.preset; "
            + (f"the state of {newest} is kept" if newest else "no state was saved yet")
        ) from None


@contextmanager
def _building_kernels() -> Iterator[None]:
    """Compiles the kernels, on a machine's first run some seconds' work, while the data is read."""
    building = Thread(target=kernels)
    building.start()
    try:
        yield
    finally:
        building.join()


def _join(config: TrainConfig) -> None:
    if distributed.launched():
        distributed.join(distributed.device_of(config.machine.device))


def _is_restart(folder: RunFolder, config: TrainConfig) -> bool:
    """Whether torchrun has restarted this command after a rank was lost: the folder has the same run, to be resumed."""
    if distributed.restarts() == 0 or not folder.config.is_file():
        return False
    return _agrees(schema.to_json(config), schema.to_json(read_config(folder.config)))


def _agrees(given: Any, kept: Any) -> bool:
    """Whether the kept config has all given values; None and "auto" were open."""
    if isinstance(given, dict) and isinstance(kept, dict):
        return all(_agrees(value, kept.get(name)) for name, value in given.items())
    return given in (None, "auto") or given == kept


def resume(
    out: str | Path,
    *,
    watch: Watch | None = None,
    force: bool = False,
    stop: Stop = never,
    device: str | None = None,
) -> Outcome:
    """Resumes the run of this folder, to the same weights as if it had never stopped.

    `device`: another device than its run.toml has, for this time.
    """
    folder, watch = RunFolder(Path(out)), watch or Watch()
    if not folder.config.is_file():
        raise CheckpointError(f"{folder.path} holds no run: it has no run.toml; begin one with cutaway train")
    folder.check_links()
    config = read_config(folder.config)
    if device is not None:
        config = replace(config, machine=replace(config.machine, device=device))
    distributed.device_of(config.machine.device)  # as in train
    _join(config)
    with _memory_explained(folder, config):
        return _go_on(folder, config, watch, force, stop)


def _go_on(folder: RunFolder, config: TrainConfig, watch: Watch, force: bool, stop: Stop) -> Outcome:
    kept: Model | None = None
    if config.model.start is None or state.newest(folder.training) is not None:
        described = native.describe(folder.path)
        memory.check(config, described.config)
        network, tokenizer = build(described.config, config.seed), load_tokenizer(folder.path)
        kept = Model(network, tokenizer, described.usage, folder.path.name, folder=folder.path)
    _check_files(folder, config)
    with _building_kernels():
        prepared = prepare(config, watch, kept)  # without a state, a fine-tuning starts from its model again
    _check_unchanged(folder, prepared, force)
    with folder.claimed() if distributed.rank() == 0 else nullcontext():
        return _run(folder, prepared, watch, stop)


def _run(folder: RunFolder, prepared: Prepared, watch: Watch, stop: Stop) -> Outcome:
    """Trains, tunes and writes the card; rank 0 has locked the folder."""
    recorder = Recorder(folder, watch) if distributed.rank() == 0 else Watch()
    loop = Loop(prepared.config, prepared.model, prepared.task, folder, recorder, prepared.facts)
    try:
        outcome = loop.run(stop)
        if distributed.rank() == 0:
            write_card(folder, prepared, outcome)
            wanted = outcome.scores and prepared.config.validation.tune
            if wanted and tune(folder, prepared.task, outcome, watch, stop, loop.device):
                write_card(folder, prepared, outcome)
        return outcome
    finally:
        recorder.close()
        loop.parallel.close()


def _check_files(folder: RunFolder, config: TrainConfig) -> None:
    """Checks that the data files are there; relative paths are those of the folder in which the run was started."""
    for name in (name for names in vars(config.data).values() if isinstance(names, tuple) for name in names):
        if name not in config.data.columns and not name.startswith(PREFIX) and not Path(name).exists():
            raise InputError(
                f"{name}, which {folder.config} names, is not here; resume the run from the folder in which it was "
                f"begun, or correct the name there"
            )


def _check_unchanged(folder: RunFolder, prepared: Prepared, force: bool) -> None:
    """Checks that config and data have not changed since the newest state."""
    if (found := state.facts(folder.training)) is None:
        return
    newest, facts = found
    check_facts(folder.training, facts)
    before, now = _completed(facts["config"]), schema.to_json(prepared.config)
    changed = [name for name in _differences(before, now) if name.split(".")[0] not in UNCHANGING]
    fixed = [name for name in changed if name.split(".")[0] in FIXED]
    if fixed:
        raise ConfigError(
            f"{folder.config} asks for another model or tokenizer than {newest} has: {', '.join(fixed[:5])}; set it "
            f"back, or train anew with cutaway train {folder.config} --out another"
        )
    if force:
        return
    if changed:
        raise ConfigError(
            f"{folder.config} has changed since {newest}: {', '.join(changed[:5])}; set it back, or go on all the same "
            f"with --force"
        )
    if facts.get("data") != prepared.facts["data"]:
        which = [name for name in facts["data"] if facts["data"][name] != prepared.facts["data"].get(name)]
        names = {"train": "the training data", "valid": "the validation data"}
        raise ConfigError(
            f"{' and '.join(names.get(name, name) for name in which)} of {folder.path} changed since {newest}; put the "
            f"old files back, or go on with the new ones with --force"
        )


def _completed(config: Any) -> Any:
    """A config of an older version, with the defaults of newer keys."""
    try:
        return schema.to_json(schema.from_json(TrainConfig, config, "config"))
    except ConfigError:  # it has keys that are gone: they are reported as differences
        return config


def _differences(before: Any, now: Any, path: str = "") -> Iterator[str]:
    """`optimizer.rate (0.005, now 0.001)` for every key that differs."""
    if isinstance(before, dict) and isinstance(now, dict):
        for name in {**before, **now}:
            yield from _differences(before.get(name), now.get(name), f"{path}.{name}" if path else name)
    elif before != now:
        yield f"{path} ({before}, now {now})"
