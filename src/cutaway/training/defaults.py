"""What is chosen where a run leaves it open: sizes and rates that fit the amount of data, each with its reason."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from cutaway.errors import ConfigError
from cutaway.models.config import Classifier, Config, RecurrentConfig, StackConfig, TransformerConfig
from cutaway.models.presets import preset
from cutaway.training.config import DROPOUTS, ModelChoice, TrainConfig
from cutaway.training.task import SizeDefaults
from cutaway.training.tasks import task_class

Say = Callable[[str], None]


FINE_TUNING_RATE, FINE_TUNING_EPOCHS = 5e-5, 3.0


def sizes_for(task: str, n: int) -> SizeDefaults:
    """What suits n examples."""
    return next(sizes for sizes in task_class(task).sizes if n < sizes.most)


def with_model(config: TrainConfig, n: int, say: Say) -> TrainConfig:
    """The preset, its dropout and the vocabulary, for n examples."""
    fit, model = sizes_for(config.task, n), config.model
    if model.start is None:
        if model.preset is None:
            model = replace(model, preset=fit.preset)
            say(f"model.preset = {fit.preset}: what {n:,} examples can fill")
        dropout = fit.dropout if model.dropout is None else model.dropout
        model = replace(model, dropout=dropout)
        if not is_recurrent(model):
            changes: dict[str, Any] = {
                "attention_dropout": fit.attention_dropout,
                **task_class(config.task).preset_changes,
            }
            model = replace(model, **{name: value for name, value in changes.items() if getattr(model, name) is None})
    tokenizer = config.tokenizer
    if tokenizer.vocabulary is None and tokenizer.start is None and model.start is None:
        tokenizer = replace(tokenizer, vocabulary=fit.vocabulary)
    return replace(config, model=model, tokenizer=tokenizer)


def with_steps(
    config: TrainConfig,
    n: int,
    n_tokens: int,
    say: Say,
    *,
    longest: int = 1,
    workers: int = 2,
    ranks: int = 1,
    on_cpu: bool = True,
) -> TrainConfig:
    """Batches, rates and lengths, once it is known how many tokens an epoch has, and its longest example."""
    recurrent = is_recurrent(config.model)
    fit, fine = sizes_for(config.task, n), config.model.start is not None
    tokens = config.batches.tokens or min(fit.tokens, max(256, n_tokens // 8))
    most = CORE_TOKENS if on_cpu and not recurrent else MOST_TOKENS
    shares = config.batches.micro_batches or ranks * math.ceil(shares_of(tokens, workers, max(most, longest)) / ranks)
    if config.batches.tokens is None:
        tokens = max(tokens, shares * longest)
    steps = config.schedule.steps
    if steps is None:
        epochs = FINE_TUNING_EPOCHS if fine else min(fit.longest, max(fit.least, fit.seen * 1e6 / n_tokens))
        steps = max(100, round(epochs * n_tokens / tokens))
        say(f"schedule.steps = {steps:,}: {steps * tokens / n_tokens:.0f} epochs of {n_tokens:,} tokens")
    warmup = config.schedule.warmup if config.schedule.warmup is not None else min(600, max(1, steps // 10))
    kind = config.optimizer.kind or ("adamw" if fine or recurrent else fit.kind)
    rate = config.optimizer.rate or (FINE_TUNING_RATE if fine else 1e-3 if recurrent else fit.rate)
    decay = config.optimizer.decay
    if decay is None:
        decay = 1e-4 if fine or recurrent else fit.decay
    every = config.validation.every or min(steps, max(50, min(500, steps // 20)))
    ema = config.averaging.ema if config.averaging.ema is not None else round(min(0.999, max(0.5, 1 - 10 / steps)), 4)
    metric = config.validation.metric or task_class(config.task).metric.name
    return replace(
        config,
        batches=replace(config.batches, tokens=tokens, micro_batches=shares),
        optimizer=replace(config.optimizer, rate=rate, kind=kind, decay=decay),
        schedule=replace(config.schedule, steps=steps, warmup=warmup),
        validation=replace(config.validation, every=every, metric=metric),
        averaging=replace(config.averaging, ema=ema),
    )


CORE_TOKENS, MOST_TOKENS = 1024, 4096
"""Of one share, at most: a core is as fast with 1024 tokens at a time as with more, and holds fewer numbers; with 512,
transformer-tiny is 17 % slower. GPUs, and models that read word after word, want many rows at once."""


def shares_of(tokens: int, workers: int, most: int = CORE_TOKENS) -> int:
    """A power of 2, so that cores divide it: one for each worker, of 512 tokens or more and of `most` at most."""
    least = max(2, 2 ** math.ceil(math.log2(tokens / most)))
    return max(least, 2 ** int(math.log2(max(1, min(workers, tokens // 512)))))


def is_recurrent(model: ModelChoice) -> bool:
    return model.preset is not None and isinstance(preset(model.preset), RecurrentConfig)


def network_config(
    task: str, choice: ModelChoice, words: tuple[int, int], n_classes: int = 0, *, joint: bool = True
) -> Config:
    """The preset with the changes that were asked for, and vocabularies of so many `words` on each side; `joint`: they
    are the same one."""
    assert choice.preset is not None
    config = preset(choice.preset)
    check_halves(task, config, f"model.preset={choice.preset!r}")
    given = {
        name: value for name, value in vars(choice).items() if value is not None and name not in ("preset", "start")
    }
    shared = joint and config.encoder is not None and config.decoder is not None
    if isinstance(config, RecurrentConfig):
        names = {"n_blocks": "n_layers", "d_model": "d_model", "d_hidden": "d_hidden", "dropout": "dropout"}
        _check_preset_has(given, names, choice.preset)
        changes: dict[str, Any] = {names[name]: value for name, value in given.items()}
        encoder = None if config.encoder is None else replace(config.encoder, vocabulary=words[0], **changes)
        decoder = replace(config.decoder, vocabulary=words[1], **changes)
        return replace(config, encoder=encoder, decoder=decoder, share_embeddings=shared)
    _check_preset_has(given, {name: name for name in given if name != "d_hidden"}, choice.preset)

    def changed(stack: StackConfig | None, n_words: int) -> StackConfig | None:
        if stack is None:
            return None
        if stack.patches is not None:
            raise ConfigError(f"model.preset={choice.preset!r} reads images, and {task} reads text")
        return replace(stack, vocabulary=n_words, **given)

    assert isinstance(config, TransformerConfig)
    head = Classifier(n_classes=n_classes, hidden="tanh", dropout=choice.dropout or 0.0) if n_classes else config.head
    return replace(
        config, encoder=changed(config.encoder, words[0]), decoder=changed(config.decoder, words[1]), head=head,
        share_embeddings=shared,
    )  # fmt: skip


def check_halves(task: str, config: Config, name: str) -> None:
    halves = task_class(task).halves
    found = " and ".join(half for half in ("encoder", "decoder") if getattr(config, half) is not None)
    if found != halves:
        raise ConfigError(f"{name} has {found}; the task {task} needs {halves}")


def dropping(config: Config, choice: ModelChoice) -> Config:
    """The same model with the dropouts that were asked for."""
    given = {name: getattr(choice, name) for name in DROPOUTS if getattr(choice, name) is not None}
    if isinstance(config, RecurrentConfig):
        _check_preset_has(given, {"dropout": "dropout"}, "a recurrent model")
    stacks = {name: stack for name in ("encoder", "decoder") if (stack := getattr(config, name)) is not None}
    return replace(config, **{name: replace(stack, **given) for name, stack in stacks.items()})


def _check_preset_has(given: dict[str, Any], names: dict[str, str], preset_name: str) -> None:
    for name in given:
        if name not in names:
            raise ConfigError(f"model.{name} was given, but {preset_name} has nothing of that kind; leave it out")
