"""What is chosen where a run leaves it open: sizes and rates that fit the amount of data, each with its reason."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from cutaway.errors import ConfigError
from cutaway.models.config import Classifier, Config, RecurrentConfig, StackConfig, TransformerConfig
from cutaway.models.presets import preset
from cutaway.training import optimizer
from cutaway.training.config import DROPOUTS, Metric, ModelChoice, TaskName, TrainConfig

Say = Callable[[str], None]


@dataclass(frozen=True)
class SizeDefaults:
    """What suits data of up to `most` examples (pairs, lines of text, texts with a class)."""

    most: float
    preset: str
    vocabulary: int
    dropout: float
    tokens: int  # of one step
    rate: float  # AdamW's, or that of all but the matrices under Muon
    seen: float  # tokens to be seen in all, in millions …
    least: float  # … but at least so many epochs,
    longest: float  # and at most so many
    kind: optimizer.Kind = "muon"
    decay: float = 1e-4
    attention_dropout: float | None = None  # None: the preset's


ALL = float("inf")
FITTING: dict[TaskName, tuple[SizeDefaults, ...]] = {
    "translate": (
        SizeDefaults(
            25_000, "transformer-tiny", 6_000, 0.3, 2048, 5e-3, 35.0, 4.0, 100.0
        ),  # few steps: Muon leads there
        SizeDefaults(60_000, "transformer-tiny", 10_000, 0.3, 2048, 4e-3, 39.0, 4.0, 100.0, "adamw", 0.05, 0.1),
        SizeDefaults(1_000_000, "transformer-small", 10_000, 0.2, 8192, 2e-3, 80.0, 4.0, 60.0),
        SizeDefaults(ALL, "transformer-base", 32_000, 0.1, 25_000, 7e-4, 1_000.0, 2.0, 40.0),
    ),
    "complete": (
        SizeDefaults(200_000, "gpt2-tiny", 4_000, 0.2, 8192, 2e-3, 20.0, 2.0, 30.0),
        SizeDefaults(ALL, "gpt2", 32_000, 0.1, 32_768, 6e-4, 500.0, 1.0, 10.0),
    ),
    "classify": (SizeDefaults(ALL, "bert-tiny", 8_000, 0.1, 4096, 1e-3, 0.0, 5.0, 5.0, "adamw"),),
}
FINE_TUNING_RATE, FINE_TUNING_EPOCHS = 5e-5, 3.0
METRICS: dict[TaskName, Metric] = {"translate": "bleu", "complete": "loss", "classify": "accuracy"}


def fitting(task: TaskName, n: int) -> SizeDefaults:
    return next(each for each in FITTING[task] if n < each.most)


def with_model(config: TrainConfig, n: int, say: Say) -> TrainConfig:
    """The preset, its dropout and the vocabulary, for n examples."""
    fit, model = fitting(config.task, n), config.model
    if model.start is None:
        if model.preset is None:
            model = replace(model, preset=fit.preset)
            say(f"model.preset = {fit.preset}: what {n:,} examples can fill")
        dropout = fit.dropout if model.dropout is None else model.dropout
        model = replace(model, dropout=dropout)
        if not is_recurrent(model):
            if model.attention_dropout is None:
                model = replace(model, attention_dropout=fit.attention_dropout)
            if model.norm_place is None and config.task == "translate":
                model = replace(model, norm_place="pre")  # learns sooner, and with higher rates: docs/results.md
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
    fit, fine = fitting(config.task, n), config.model.start is not None
    tokens = config.batches.tokens or min(fit.tokens, max(256, n_tokens // 8))
    most = CORE_TOKENS if on_cpu and not recurrent else MOST_TOKENS
    shares = config.batches.shares or ranks * math.ceil(shares_of(tokens, workers, max(most, longest)) / ranks)
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
    return replace(
        config,
        batches=replace(config.batches, tokens=tokens, shares=shares),
        optimizer=replace(config.optimizer, rate=rate, kind=kind, decay=decay),
        schedule=replace(config.schedule, steps=steps, warmup=warmup),
        validation=replace(config.validation, every=every, metric=config.validation.metric or METRICS[config.task]),
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
    task: TaskName, choice: ModelChoice, words: tuple[int, int], n_classes: int = 0, *, joint: bool = True
) -> Config:
    """The preset with the changes that were asked for, and vocabularies of so many `words` on each side; `joint`: they
    are the same one."""
    assert choice.preset is not None
    config = preset(choice.preset)
    check_halves(task, config, f"model.preset={choice.preset!r}")
    given = {
        name: value for name, value in vars(choice).items() if value is not None and name not in ("preset", "start")
    }
    shared = task == "translate" and joint
    if isinstance(config, RecurrentConfig):
        names = {"n_blocks": "n_layers", "d_model": "d_model", "d_hidden": "d_hidden", "dropout": "dropout"}
        _check(given, names, choice.preset)
        changes: dict[str, Any] = {names[name]: value for name, value in given.items()}
        encoder = None if config.encoder is None else replace(config.encoder, vocabulary=words[0], **changes)
        decoder = replace(config.decoder, vocabulary=words[1], **changes)
        return replace(config, encoder=encoder, decoder=decoder, share_embeddings=shared)
    _check(given, {name: name for name in given if name != "d_hidden"}, choice.preset)

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


def check_halves(task: TaskName, config: Config, name: str) -> None:
    halves = {"translate": "encoder and decoder", "complete": "decoder", "classify": "encoder"}[task]
    found = " and ".join(half for half in ("encoder", "decoder") if getattr(config, half) is not None)
    if found != halves:
        raise ConfigError(f"{name} has {found}; the task {task} needs {halves}")


def dropping(config: Config, choice: ModelChoice) -> Config:
    """The same model with the dropouts that were asked for."""
    given = {name: getattr(choice, name) for name in DROPOUTS if getattr(choice, name) is not None}
    if isinstance(config, RecurrentConfig):
        _check(given, {"dropout": "dropout"}, "a recurrent model")
    stacks = {name: stack for name in ("encoder", "decoder") if (stack := getattr(config, name)) is not None}
    return replace(config, **{name: replace(stack, **given) for name, stack in stacks.items()})


def _check(given: dict[str, Any], names: dict[str, str], preset_name: str) -> None:
    for name in given:
        if name not in names:
            raise ConfigError(f"model.{name} was given, but {preset_name} has nothing of that kind; leave it out")
