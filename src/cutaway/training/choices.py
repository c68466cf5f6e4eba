"""What is chosen where a run leaves it open: sizes and rates that fit the amount of data, each with its reason."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from cutaway.models.config import Config, RecurrentConfig, TransformerConfig
from cutaway.models.presets import preset
from cutaway.training.config import ModelChoice, TrainConfig

Say = Callable[[str], None]


@dataclass(frozen=True)
class Fitting:
    """What suits corpora of up to `pairs` pairs."""

    pairs: float
    preset: str
    vocabulary: int
    dropout: float
    tokens: int  # of one step
    rate: float  # AdamW's
    seen: float  # target tokens to be seen in all, in millions, at least `epochs` times each
    epochs: float


FITTING = (
    Fitting(60_000, "transformer-tiny", 8_000, 0.3, 4096, 5e-3, 25.0, 4.0),
    Fitting(1_000_000, "transformer-small", 10_000, 0.2, 8192, 2e-3, 80.0, 4.0),
    Fitting(float("inf"), "transformer-base", 32_000, 0.1, 25_000, 7e-4, 1_000.0, 2.0),
)


def fitting(n_pairs: int) -> Fitting:
    return next(each for each in FITTING if n_pairs < each.pairs)


def with_model(config: TrainConfig, n_pairs: int, say: Say) -> TrainConfig:
    """The preset, its dropout and the vocabulary."""
    fit = fitting(n_pairs)
    model = config.model
    if model.start is None and model.preset is None:
        model = replace(model, preset=fit.preset)
        say(f"model.preset = {fit.preset}: what {n_pairs:,} pairs can fill")
    if model.start is None and model.dropout is None:
        model = replace(model, dropout=fit.dropout)
    tokenizer = config.tokenizer
    if tokenizer.vocabulary is None:
        tokenizer = replace(tokenizer, vocabulary=fit.vocabulary)
    return replace(config, model=model, tokenizer=tokenizer)


def with_steps(config: TrainConfig, n_pairs: int, n_tokens: int, say: Say) -> TrainConfig:
    """Batches, rates and lengths, once it is known how many target tokens an epoch has."""
    fit = fitting(n_pairs)
    tokens = config.batches.tokens or min(fit.tokens, max(256, n_tokens // 8))
    shares = config.batches.shares or max(2, -(-tokens // 4096))
    steps = config.schedule.steps
    if steps is None:
        steps = max(100, round(max(fit.seen * 1e6, fit.epochs * n_tokens) / tokens))
        if (most := round(100 * n_tokens / tokens)) < steps:
            steps = max(100, most)
        say(f"schedule.steps = {steps:,}: {steps * tokens / n_tokens:.0f} epochs of {n_tokens:,} target tokens")
    warmup = config.schedule.warmup if config.schedule.warmup is not None else min(400, max(1, steps // 10))
    rate = config.optimizer.rate or (1e-3 if is_recurrent(config) else fit.rate)
    every = config.validation.every or max(1, min(500, steps // 20))
    return replace(
        config,
        batches=replace(config.batches, tokens=tokens, shares=shares),
        optimizer=replace(config.optimizer, rate=rate),
        schedule=replace(config.schedule, steps=steps, warmup=warmup),
        validation=replace(config.validation, every=every, metric=config.validation.metric or "bleu"),
    )


def is_recurrent(config: TrainConfig) -> bool:
    return config.model.preset is not None and isinstance(preset(config.model.preset), RecurrentConfig)


def network_config(choice: ModelChoice, source_words: int, target_words: int) -> Config:
    """The preset with the changes that were asked for, and the vocabularies of the tokenizer."""
    from cutaway.errors import ConfigError

    assert choice.preset is not None
    config = preset(choice.preset)
    if config.encoder is None or config.decoder is None:
        raise ConfigError(
            f"model.preset={choice.preset!r} has one half only; translating needs an encoder and a decoder"
        )
    given = {
        name: value for name, value in vars(choice).items() if value is not None and name not in ("preset", "start")
    }
    if isinstance(config, RecurrentConfig):
        names = {"n_blocks": "n_layers", "d_model": "d_model", "d_hidden": "d_hidden", "dropout": "dropout"}
        _check(given, names, choice.preset)
        changes = {names[name]: value for name, value in given.items()}
        encoder = replace(config.encoder, vocabulary=source_words, **changes)
        decoder = replace(config.decoder, vocabulary=target_words, **changes)
        return replace(config, encoder=encoder, decoder=decoder, share_embeddings=source_words == target_words)
    assert isinstance(config, TransformerConfig)
    names = {name: name for name in given if name != "d_hidden"}
    _check(given, names, choice.preset)
    stacks = [
        replace(stack, vocabulary=words, **given)
        for stack, words in ((config.encoder, source_words), (config.decoder, target_words))
        if stack is not None
    ]
    return replace(config, encoder=stacks[0], decoder=stacks[1], share_embeddings=source_words == target_words)


def _check(given: dict[str, object], names: dict[str, str], preset_name: str) -> None:
    from cutaway.errors import ConfigError

    for name in given:
        if name not in names:
            raise ConfigError(f"model.{name} was given, but {preset_name} has nothing of that kind; leave it out")
