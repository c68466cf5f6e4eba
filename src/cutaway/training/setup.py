"""From a run's config to what the loop needs: the data encoded, a tokenizer, a network, and the task."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from torch import Tensor

from cutaway import schema
from cutaway.data.batches import check_fits
from cutaway.data.clean import Dropped
from cutaway.data.encoding import Encode, Encoded
from cutaway.errors import ConfigError, InputError
from cutaway.generation import Generation
from cutaway.kernels import kernels
from cutaway.loading import load, locate
from cutaway.model import Model
from cutaway.models.build import build
from cutaway.models.config import Classifier
from cutaway.models.network import Network
from cutaway.models.usage import Usage
from cutaway.text.bpe_dropout import Sampled
from cutaway.text.files import load_tokenizer
from cutaway.text.source_target import TwoTokenizers
from cutaway.text.tokenizer import SpecialTokens, Tokenizer
from cutaway.text.train import Frame, train_tokenizer
from cutaway.training import defaults, distributed, memory, metrics
from cutaway.training.classification import Classification
from cutaway.training.config import ModelChoice, TaskName, TrainConfig
from cutaway.training.corpus import PairCorpus, TextCorpus
from cutaway.training.language import Language
from cutaway.training.precision import can_train_in_bfloat16, fastest_precision, kernel_choice
from cutaway.training.task import Task
from cutaway.training.translation import Pairs, Translation
from cutaway.training.watch import Watch

_FOR_TOKENIZER = 1_000_000  # texts that a vocabulary is learnt from, at most
MOST_CLASSES = 10_000


@dataclass(frozen=True)
class Prepared:
    """`config` has no open choices left; `facts` tell data apart."""

    config: TrainConfig
    model: Model
    task: Task
    facts: dict[str, Any]


def prepare(config: TrainConfig, watch: Watch, kept: Model | None = None) -> Prepared:
    """`kept`: the model of a run that goes on; its tokenizer is not learnt again."""
    kind, prepare_it = _TASKS[config.task]
    metric, model = config.validation.metric, config.model
    if metric is not None and metric not in kind.metrics:
        known = ", ".join(kind.metrics)
        raise ConfigError(f"validation.metric={metric!r} is no measure of {config.task}; choose {known}")
    if kept is None and model.preset is not None and model.start is None:  # what can't be built is told before reading
        words = config.tokenizer.vocabulary or 1000
        built = defaults.network_config(config.task, model, (words, words), 2 if config.task == "classify" else 0)
        memory.check(config, built)
    prepared = prepare_it(config, watch, kept)
    check_fits(prepared.task.lengths, prepared.config.batches.share_tokens)
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


def _facts(config: TrainConfig, digests: dict[str, str], n: int, text: str) -> dict[str, Any]:
    return {"config": schema.to_json(config), "data": digests, "examples": n, "report": text}


# ------------------------------------------------------------------------------------------------------- translate


def _translation(config: TrainConfig, watch: Watch, kept: Model | None) -> Prepared:
    metrics.check_installed()
    corpus = PairCorpus(config.data, config.data.max_ratio, config.validation.limit)
    n_pairs = corpus.count() if kept is None else 0
    if kept is None:
        config = defaults.with_model(config, n_pairs, watch.say)
    tokenizer = _tokenizer_of(kept) if kept is not None else _pair_tokenizer(config, corpus, watch)
    sides: dict[str, Encode] = {
        "source": lambda texts: tokenizer.ids_many(texts),
        "target": lambda texts: tokenizer.ids_many(texts, target=True),
    }
    train, valid = (corpus.encoded(which, sides, tokenizer) for which in ("train", "valid"))
    n = len(train.sides["target"])
    held_out = f", {len(valid.sides['target']):,} held out to judge by" if corpus.holds_out else ""
    watch.say(f"{n:,} pairs to learn from{held_out}: {_told(train)}")
    _tell_left_out(valid, "target", watch)
    _check_some(train, valid, "target")
    texts = [(source, target) for source, target in valid.report["shown"]]
    lengths = Pairs(train.sides["source"], train.sides["target"]).lengths
    config = _with_steps(config, n_pairs or n, lengths[:, 1], watch, longest=int(lengths.max()))
    model = kept or _translator(config, tokenizer, lengths)
    _check_memory(config, kept, lengths)
    special = tokenizer.special
    assert special.pad is not None
    share = config.regularization.bpe_dropout
    task = Translation(
        Pairs(train.sides["source"], train.sides["target"]),
        Pairs(valid.sides["source"], valid.sides["target"]),
        texts,
        start=model.usage.start if model.usage.start is not None else special.pad,
        pad=special.pad,
        smoothing=config.regularization.smoothing,
        agreement=config.regularization.agreement,
        cut_anew=Sampled(_source(tokenizer), share, config.seed) if share else None,
        beams=config.validation.beams,
    )  # fmt: skip
    return Prepared(config, model, task, _facts(config, corpus.digests, n, _told(train)))


def _source(tokenizer: Tokenizer) -> Tokenizer:
    return tokenizer.source if isinstance(tokenizer, TwoTokenizers) else tokenizer


def _pair_tokenizer(config: TrainConfig, corpus: PairCorpus, watch: Watch) -> Tokenizer:
    def texts(*which: str) -> Iterator[str]:
        for pair in islice(corpus.pairs("train", Dropped()), _FOR_TOKENIZER):
            yield from (getattr(pair, side) for side in which)

    if config.tokenizer.joint:
        return _tokenizer(config, lambda: texts("source", "target"), "end", watch)
    source, target = (_tokenizer(config, lambda side=side: texts(side), "end", watch) for side in ("source", "target"))  # type: ignore[misc]
    return TwoTokenizers(source, target)


def _translator(config: TrainConfig, tokenizer: Tokenizer, lengths: Tensor) -> Model:
    if config.model.start is not None:
        model = load(config.model.start, device="cpu")
        defaults.check_halves("translate", model.config, f"model.start={config.model.start!r}")
        memory.check(config, model.config, lengths)
        usage = replace(model.usage, task="translate")
        return Model(_further(model.network, config.model), tokenizer, usage, model.name, model.origin)
    joint = not isinstance(tokenizer, TwoTokenizers)
    sides = (tokenizer.source, tokenizer.target) if isinstance(tokenizer, TwoTokenizers) else (tokenizer, tokenizer)
    words = (sides[0].vocabulary_size, sides[1].vocabulary_size)
    usage = _usage(tokenizer.special, "translate", config.data.max_tokens)
    chosen = defaults.network_config("translate", config.model, words, joint=joint)
    memory.check(config, chosen, lengths)
    return Model(build(chosen, config.seed), tokenizer, usage)


def _usage(special: SpecialTokens, task: TaskName, max_length: int) -> Usage:
    if special.end is None or special.pad is None:
        raise ConfigError(
            f"the tokenizer has no end or no pad token, which {task} needs; leave it out, and one is learnt"
        )
    start = special.start if special.start is not None else special.pad
    never = tuple(i for i in (special.pad, special.unknown, special.start, special.mask) if i is not None)
    beams = 5 if task == "translate" else 1
    return Usage(
        task=task, start=start, end=(special.end,), pad=special.pad, never=never,
        generation=Generation(beams=beams), max_length=max_length,
    )  # fmt: skip


# -------------------------------------------------------------------------------------------------------- complete


def _language(config: TrainConfig, watch: Watch, kept: Model | None) -> Prepared:
    corpus = TextCorpus(config.data)
    n_lines = sum(1 for _ in corpus.lines("train")) if kept is None else 0
    if kept is None:
        config = defaults.with_model(config, n_lines, watch.say)
        tokenizer = _tokenizer(config, lambda: islice(corpus.lines("train"), _FOR_TOKENIZER), "none", watch)
    else:
        tokenizer = _tokenizer_of(kept)
    train, valid = (corpus.encoded(which, tokenizer).sides["text"].ids for which in ("train", "valid"))
    if len(train) < 2 or len(valid) < 2:
        raise InputError(f"there are {len(train)} tokens to learn from and {len(valid)} to validate on; give more text")
    watch.say(f"{len(train):,} tokens to learn from")
    task = Language(train, valid, config.data.max_tokens, smoothing=config.regularization.smoothing)
    config = _with_steps(config, n_lines or len(train) // 10, task.lengths, watch)
    model = kept or _writer(config, tokenizer, task.lengths)
    _check_memory(config, kept, task.lengths)
    return Prepared(config, model, task, _facts(config, corpus.digests, len(task.lengths), f"{len(train):,} tokens"))


def _writer(config: TrainConfig, tokenizer: Tokenizer, lengths: Tensor) -> Model:
    if config.model.start is not None:
        model = load(config.model.start, device="cpu")
        defaults.check_halves("complete", model.config, f"model.start={config.model.start!r}")
        memory.check(config, model.config, lengths)
        usage = replace(model.usage, task="complete")
        return Model(_further(model.network, config.model), tokenizer, usage, model.name, model.origin)
    words = (tokenizer.vocabulary_size, tokenizer.vocabulary_size)
    usage = _usage(tokenizer.special, "complete", config.data.max_tokens)
    chosen = defaults.network_config("complete", config.model, words)
    memory.check(config, chosen, lengths)
    return Model(build(chosen, config.seed), tokenizer, usage)


# -------------------------------------------------------------------------------------------------------- classify


def _classification(config: TrainConfig, watch: Watch, kept: Model | None) -> Prepared:
    corpus = PairCorpus(config.data, max_ratio=0.0, any_length=True)  # a class is always shorter than its text
    n_texts = corpus.count() if kept is None else 0
    if kept is None:
        config = defaults.with_model(config, n_texts, watch.say)
        texts = (pair.source for pair in islice(corpus.pairs("train", Dropped()), _FOR_TOKENIZER))
        tokenizer = _tokenizer(config, lambda: texts, "both", watch)
        labels = tuple(sorted({pair.target for pair in corpus.pairs("train", Dropped())}))
    else:
        tokenizer, labels = _tokenizer_of(kept), kept.usage.labels
    if not 2 <= len(labels) <= MOST_CLASSES:
        raise InputError(f"there are {len(labels):,} classes; a classifier needs 2 to {MOST_CLASSES:,} of them")
    numbers = {label: number for number, label in enumerate(labels)}
    corpus.only = frozenset(labels)

    def number_of(texts: list[str]) -> list[list[int]]:
        unknown = next((text for text in texts if text not in numbers), None)
        if unknown is not None:
            raise InputError(
                f"the class {unknown[:60]!r} is of a text to validate on, but of none to learn from; leave that text "
                f"out, or give some of its class to learn from"
            )
        return [[numbers[text]] for text in texts]

    most = config.data.max_tokens
    sides: dict[str, Encode] = {
        "source": lambda texts: tokenizer.ids_many(texts, max_length=most),
        "target": number_of,
    }
    train, valid = (corpus.encoded(which, sides, tokenizer) for which in ("train", "valid"))
    _check_some(train, valid, "source")
    n = len(train.sides["source"])
    watch.say(
        f"{n:,} texts of {len(labels)} classes to learn from, of each the first {most} tokens (data.max_tokens): "
        f"{_told(train)}"
    )
    _tell_left_out(valid, "source", watch)
    config = _with_steps(config, n_texts or n, train.sides["source"].lengths, watch)
    special = tokenizer.special
    task = Classification(
        train.sides["source"], train.sides["target"].ids.tolist(), valid.sides["source"],
        valid.sides["target"].ids.tolist(), pad=special.pad or 0, smoothing=config.regularization.smoothing,
    )  # fmt: skip
    model = kept or _classifier(config, tokenizer, labels, train.sides["source"].lengths)
    _check_memory(config, kept, train.sides["source"].lengths)
    return Prepared(config, model, task, _facts(config, corpus.digests, n, _told(train)))


def _classifier(config: TrainConfig, tokenizer: Tokenizer, labels: tuple[str, ...], lengths: Tensor) -> Model:
    if config.model.start is not None:
        model = load(
            config.model.start, head=Classifier(n_classes=len(labels), hidden="tanh", dropout=0.1), device="cpu"
        )
        memory.check(config, model.config, lengths)
        usage = Usage(task="classify", pad=model.usage.pad, labels=labels, max_tokens=model.usage.max_tokens)
        return Model(_further(model.network, config.model), tokenizer, usage, model.name, model.origin)
    words = (tokenizer.vocabulary_size, tokenizer.vocabulary_size)
    chosen = defaults.network_config("classify", config.model, words, len(labels))
    memory.check(config, chosen, lengths)
    usage = Usage(task="classify", pad=tokenizer.special.pad, labels=labels)
    return Model(build(chosen, config.seed), tokenizer, usage)


# ---------------------------------------------------------------------------------------------------------- shared


def _with_steps(config: TrainConfig, n: int, lengths: Tensor, watch: Watch, longest: int | None = None) -> TrainConfig:
    """`lengths`: tokens that are learnt of each example; `longest`: of its longest side, where it has two."""
    device = distributed.device_of(config.machine.device)
    return defaults.with_steps(
        config, n, int(lengths.sum()), watch.say,
        longest=int(lengths.max()) if longest is None else longest,
        workers=distributed.workers(device), ranks=distributed.ranks(), on_cpu=device.type == "cpu",
    )  # fmt: skip


def _check_memory(config: TrainConfig, kept: Model | None, lengths: Tensor) -> None:
    """Of a run that goes on: its network is there already."""
    if kept is not None:
        taken = sum(weight.numel() * weight.element_size() for weight in kept.network.parameters())
        memory.check(config, kept.config, lengths, taken=taken)


def _further(network: Network, choice: ModelChoice) -> Network:
    """A network to go on from, with the dropouts that were asked for."""
    found = build(defaults.dropping(network.config, choice))
    found.load_state_dict(network.state_dict())
    return found


def _tokenizer_of(kept: Model) -> Tokenizer:
    if kept.tokenizer is None:
        raise InputError(f"{kept.name} has lost its tokenizer; start the run anew")
    return kept.tokenizer


def _tokenizer(config: TrainConfig, texts: Callable[[], Iterable[str]], frame: Frame, watch: Watch) -> Tokenizer:
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


def _told(found: Encoded) -> str:
    text = str(found.report["text"])
    if found.report["tokens"]:
        text += f"; left out {found.report['tokens']:,} of more than data.max_tokens tokens"
    return text


def _tell_left_out(valid: Encoded, side: str, watch: Watch) -> None:
    """What is not judged by, though it was given to be."""
    if valid.report["dropped"] or valid.report["tokens"]:
        watch.say(f"{len(valid.sides[side]):,} to judge by: {_told(valid)}")


def _check_some(train: Encoded, valid: Encoded, side: str) -> None:
    for found, what in ((train, "learn from"), (valid, "validate on")):
        if not len(found.sides[side]):
            raise InputError(f"no example is left to {what}: {_told(found)}")


_TASKS: dict[TaskName, tuple[type[Task], Callable[[TrainConfig, Watch, Model | None], Prepared]]] = {
    "translate": (Translation, _translation),
    "complete": (Language, _language),
    "classify": (Classification, _classification),
}
