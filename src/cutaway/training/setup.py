"""From a run's config to what the loop needs, and what all tasks share on the way: data, tokenizer, network, memory."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from torch import Tensor

from cutaway import schema
from cutaway.checkpoints.huggingface import Saved
from cutaway.data.batches import check_fits
from cutaway.data.encoding import Encode, EncodedCorpus
from cutaway.errors import ConfigError, InputError
from cutaway.generation import Generation
from cutaway.kernels import kernels
from cutaway.loading import load, locate
from cutaway.model import Model
from cutaway.models.build import build
from cutaway.models.config import Classifier
from cutaway.models.network import Network
from cutaway.models.usage import Usage
from cutaway.text.files import load_tokenizer
from cutaway.text.source_target import TwoTokenizers
from cutaway.text.tokenizer import SpecialTokens, Tokenizer
from cutaway.text.train import Frame, train_tokenizer
from cutaway.training import defaults, distributed, memory
from cutaway.training.config import ModelChoice, TrainConfig
from cutaway.training.corpus import PairCorpus
from cutaway.training.precision import can_train_in_bfloat16, fastest_precision, kernel_choice
from cutaway.training.task import Prepared
from cutaway.training.tasks import task_class
from cutaway.training.watch import Watch

FOR_TOKENIZER = 1_000_000
"""Texts that a vocabulary is learnt from, at most."""


def prepare(config: TrainConfig, watch: Watch, kept: Model | None = None) -> Prepared:
    """`kept`: the model of a run that goes on; its tokenizer is not learnt again."""
    task, model = task_class(config.task), config.model
    if kept is None and model.preset is not None and model.start is None:  # what can't be built is told before reading
        words = config.tokenizer.vocabulary or 1000
        memory.check(config, defaults.network_config(config.task, model, (words, words), task.least_classes))
    prepared = task.prepare(config, watch, kept)
    check_fits(prepared.task.lengths, prepared.config.batches.micro_batch_tokens)
    prepared = replace(prepared, config=_with_machine(prepared, watch))
    prepared.facts["config"] = schema.to_json(prepared.config)
    digests = prepared.facts["data"]
    if digests["train"] == digests.get("valid"):
        watch.warn("it is judged by what it learns from: the scores say what it knows by heart, not how good it is")
    return prepared


def _with_machine(prepared: Prepared, watch: Watch) -> TrainConfig:
    """How this machine computes fastest, written down: a run that goes on computes as it began."""
    config, chosen = prepared.config, prepared.config.machine
    device, network = distributed.device_of(chosen.device), prepared.model.config
    if chosen.precision == "auto":
        precision, reason = fastest_precision(device, network)
        chosen = replace(chosen, precision=precision)
        watch.say(f"machine.precision = {precision}: {reason}")
    elif chosen.precision == "bfloat16" and device.type == "cpu" and not can_train_in_bfloat16(network):
        raise ConfigError(
            "machine.precision is bfloat16, in which torch has no LSTM on this processor; choose auto or float32"
        )
    if device.type == "cpu":
        found = kernel_choice(chosen)
        own = found.own and (kernels() is not None or chosen.kernels == "own")
        chosen = replace(
            chosen, kernels="own" if own else "torch", kernel_length=found.kernel, steps_length=found.half_steps
        )
    return replace(config, machine=chosen)


# ------------------------------------------------------------------------------------------------------------ shared


def facts(config: TrainConfig, digests: dict[str, str], n: int, report: str) -> dict[str, Any]:
    """What a state keeps of its data."""
    return {"config": schema.to_json(config), "data": digests, "examples": n, "report": report}


def encoded_examples(
    corpus: PairCorpus, sides: dict[str, Encode], tokenizer: Tokenizer
) -> tuple[EncodedCorpus, EncodedCorpus]:
    """To learn from and to validate on; some of each."""
    train, valid = (corpus.encoded(which, sides, tokenizer) for which in ("train", "valid"))
    for found, purpose in ((train, "learn from"), (valid, "validate on")):
        if not len(found.sides["source"]):
            raise InputError(f"no example is left to {purpose}: {summary(found)}")
    return train, valid


def summary(found: EncodedCorpus) -> str:
    """How many examples were kept, and how many left out for which reason."""
    text = str(found.report["text"])
    if found.report["tokens"]:
        text += f"; left out {found.report['tokens']:,} of more than data.max_tokens tokens"
    return text


def tell_left_out(valid: EncodedCorpus, watch: Watch) -> None:
    """Examples that were given to validate on, and are not."""
    if valid.report["dropped"] or valid.report["tokens"]:
        watch.say(f"{len(valid.sides['source']):,} to judge by: {summary(valid)}")


def with_steps(config: TrainConfig, n: int, lengths: Tensor, watch: Watch, longest: int | None = None) -> TrainConfig:
    """`lengths`: tokens that are learnt of each example; `longest`: of its longest side, where it has two."""
    device = distributed.device_of(config.machine.device)
    return defaults.with_steps(
        config, n, int(lengths.sum()), watch.say,
        longest=int(lengths.max()) if longest is None else longest,
        workers=distributed.workers(device), ranks=distributed.ranks(), on_cpu=device.type == "cpu",
    )  # fmt: skip


def new_model(config: TrainConfig, tokenizer: Tokenizer, lengths: Tensor, usage: Usage, n_classes: int = 0) -> Model:
    """With its first weights. `lengths`: tokens of each example, on each of its sides."""
    joint = not isinstance(tokenizer, TwoTokenizers)
    source, target = (tokenizer.source, tokenizer.target) if isinstance(tokenizer, TwoTokenizers) else (tokenizer,) * 2
    words = (source.vocabulary_size, target.vocabulary_size)
    chosen = defaults.network_config(config.task, config.model, words, n_classes, joint=joint)
    memory.check(config, chosen, lengths)
    return Model(build(chosen, config.seed), tokenizer, usage)


def model_to_start_from(
    config: TrainConfig, tokenizer: Tokenizer, lengths: Tensor, head: Classifier | Saved = "saved"
) -> Model:
    """The one that model.start names, with the dropouts that were asked for; `head`: with another head."""
    assert config.model.start is not None
    model = load(config.model.start, head=head, device="cpu")
    if head == "saved":
        defaults.check_halves(config.task, model.config, f"model.start={config.model.start!r}")
    memory.check(config, model.config, lengths)
    usage = replace(model.usage, task=task_class(config.task).command)
    return Model(_further(model.network, config.model), tokenizer, usage, model.name, model.origin)


def generative_model(config: TrainConfig, tokenizer: Tokenizer, lengths: Tensor, *, beams: int = 1) -> Model:
    """The model to train for a task that generates text: the one of model.start, or else a new one, which searches with
    so many beams."""
    if config.model.start is not None:
        return model_to_start_from(config, tokenizer, lengths)
    return new_model(config, tokenizer, lengths, _generative_usage(config, tokenizer.special, beams))


def _generative_usage(config: TrainConfig, special: SpecialTokens, beams: int) -> Usage:
    if special.end is None or special.pad is None:
        raise ConfigError(
            f"the tokenizer has no end or no pad token, which {config.task} needs; leave it out, and one is learnt"
        )
    start = special.start if special.start is not None else special.pad
    never = tuple(i for i in (special.pad, special.unknown, special.start, special.mask) if i is not None)
    return Usage(
        task=task_class(config.task).command, start=start, end=(special.end,), pad=special.pad, never=never,
        generation=Generation(beams=beams), max_length=config.data.max_tokens,
    )  # fmt: skip


def check_memory(config: TrainConfig, kept: Model | None, lengths: Tensor) -> None:
    """Of a run that goes on: its network is there already."""
    if kept is not None:
        taken = sum(weight.numel() * weight.element_size() for weight in kept.network.parameters())
        memory.check(config, kept.config, lengths, taken=taken)


def _further(network: Network, choice: ModelChoice) -> Network:
    """A network to go on from, with the dropouts that were asked for."""
    found = build(defaults.dropping(network.config, choice))
    found.load_state_dict(network.state_dict())
    return found


def tokenizer_of(kept: Model) -> Tokenizer:
    if kept.tokenizer is None:
        raise InputError(f"{kept.name} has lost its tokenizer; start the run anew")
    return kept.tokenizer


def tokenizer_for(config: TrainConfig, texts: Callable[[], Iterable[str]], frame: Frame, watch: Watch) -> Tokenizer:
    """Given, or learnt from the training texts."""
    given = config.tokenizer.start or config.model.start
    if given is not None:
        tokenizer = load_tokenizer(locate(given))
        if tokenizer is None:
            key = "tokenizer.start" if config.tokenizer.start else "model.start (--from)"
            raise ConfigError(f"{given} has no tokenizer; leave {key} out, and one is learnt")
        return tokenizer
    chosen = config.tokenizer
    assert chosen.vocabulary is not None
    watch.say(f"learning a vocabulary ({chosen.kind}, at most {chosen.vocabulary:,} tokens)")
    return train_tokenizer(
        texts(), chosen.kind, chosen.vocabulary, lowercase=chosen.lowercase, elisions=chosen.elisions, frame=frame
    )
