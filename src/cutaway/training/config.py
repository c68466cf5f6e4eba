"""A training run as data: every key of a run.toml, with the sentence that explains it there.

None means: chosen by the size of the data (defaults.py, and the sizes of the task); the run.toml that a run
writes has the choice.
"""

from dataclasses import dataclass, field, fields
from typing import Annotated, Any, ClassVar, Literal

from cutaway.checks import Count, NumberRule, Positive, Probability, Size, check_fields
from cutaway.errors import ConfigError
from cutaway.parts.block import NormPlace
from cutaway.training import optimizer, schedule
from cutaway.training.tasks import TASKS, task_class

Share = Annotated[float, NumberRule("at least 0 and at most 1", lambda number: 0 <= number <= 1)]
Neighbours = Annotated[int, NumberRule("from 1 to 100", lambda number: 1 <= number <= 100)]
NotNegative = Annotated[float, NumberRule("at least 0", lambda number: number >= 0)]
TokenizerKind = Literal["bpe", "wordpiece", "unigram", "byte", "character"]


def key(default: Any, text: str) -> Any:
    """A field with its default and its explanation."""
    return field(default=default, metadata={"text": text})


class Section:
    """A table of the run.toml; its values are validated."""

    table: ClassVar[str] = ""

    def __post_init__(self) -> None:
        check_fields(self, self.table)


@dataclass(frozen=True, kw_only=True)
class Data(Section):
    """The training data: two aligned files, or one file (or folder, or hf:owner/name) of pairs."""

    table = "data"
    source: tuple[str, ...] = key(
        (), "Text of the source language, a sentence a line: one file or several. May be .gz, .xz, .zst."
    )
    target: tuple[str, ...] = key((), "Its translations, line by line; as many files.")
    pairs: tuple[str, ...] = key(
        (), "Instead of these two: TSV, CSV, JSONL or Parquet files, a folder of them, or hf:owner/name of the hub."
    )
    columns: tuple[str, ...] = key((), "Which columns of such a file are source and target: names or numbers from 0.")
    valid_source: tuple[str, ...] = key((), "Pairs for validation, never trained on; without any, some are held out.")
    valid_target: tuple[str, ...] = key((), "Their translations.")
    valid_pairs: tuple[str, ...] = key((), "Instead of these two, as above.")
    text: tuple[str, ...] = key((), "For tasks like complete: files of running text, instead of pairs.")
    valid_text: tuple[str, ...] = key((), "Text for validation; without any, the last tenth is held out.")
    joined: Neighbours = key(1, "Train on joined neighbours, too: on each two pairs, each three, … up to this number.")
    held_out: Size = key(1000, "Number of pairs to hold out if none are given; at most a tenth.")
    max_tokens: Size = key(256, "Pairs with more tokens on a side are left out; a text to classify is truncated.")
    max_ratio: NotNegative = key(
        9.0, "A pair whose sides differ in length by more than this factor is left out; 0 keeps all."
    )
    duplicates: bool = key(True, "Whether a pair that occurs again is kept.")


@dataclass(frozen=True, kw_only=True)
class TokenizerChoice(Section):
    """The tokenizer."""

    table = "tokenizer"
    kind: TokenizerKind = key("bpe", "bpe, unigram, wordpiece, byte or character; trained on the training texts.")
    vocabulary: Size | None = key(None, "Size of the vocabulary, at most.")
    joint: bool = key(True, "One vocabulary for both languages, or one each.")
    lowercase: bool = key(False, "Whether texts are lowercased.")
    elisions: bool = key(
        False, "With bpe: whether a word after an apostrophe, as in l'homme, is the same one as after a space."
    )
    start: str | None = key(None, "A folder or hub name whose tokenizer to use instead of training one.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.elisions and self.kind != "bpe":
            raise ConfigError(
                f'tokenizer.elisions is for tokenizer.kind = "bpe", not for "{self.kind}"; leave one of the two out'
            )
        if self.start is not None and (given := self.learnt):
            raise ConfigError(
                f"{' and '.join(given)} can't be given together with tokenizer.start, which is already trained; "
                f"leave one of the two out"
            )

    @property
    def learnt(self) -> list[str]:
        """The keys of a trained tokenizer that are not at their defaults."""
        usual = {field.name: field.default for field in fields(self) if field.name != "start"}
        return [f"tokenizer.{name}" for name, value in usual.items() if getattr(self, name) != value]


@dataclass(frozen=True, kw_only=True)
class ModelChoice(Section):
    """The model: a preset, changed where a number is given; or a model to fine-tune."""

    table = "model"
    preset: str | None = key(None, "Its name in `cutaway models`: transformer-tiny, bahdanau-gru, …")
    start: str | None = key(None, "A folder or hub name of a model to start from, with its tokenizer.")
    n_blocks: Size | None = key(None, "Blocks on each side (layers of a recurrent model).")
    d_model: Size | None = key(None, "Width of the vectors between them.")
    n_heads: Size | None = key(None, "Attention heads.")
    d_ff: Size | None = key(None, "Width inside the feed-forward network.")
    d_hidden: Size | None = key(None, "Width of a recurrent model's state.")
    norm_place: NormPlace | None = key(
        None, "Norms after each residual sum (post, the paper's) or before each sublayer (pre)."
    )
    dropout: Probability | None = key(None, "Dropout at the embedding and after each sublayer.")
    attention_dropout: Probability | None = key(None, "Dropout of attention weights.")
    ff_dropout: Probability | None = key(None, "Dropout inside the feed-forward network.")


@dataclass(frozen=True, kw_only=True)
class Batches(Section):
    """The batch of one step."""

    table = "batches"
    tokens: Size | None = key(
        None, "Target tokens of one step, padding included; gradients are divided by the real ones."
    )
    micro_batches: Size | None = key(
        None,
        "Micro-batches of a step, spread over cores or ranks; with another number, batches differ.",
    )

    @property
    def micro_batch_tokens(self) -> int:
        """Tokens of one micro-batch, once both are chosen."""
        assert self.tokens is not None
        assert self.micro_batches is not None
        return -(-self.tokens // self.micro_batches)


@dataclass(frozen=True, kw_only=True)
class OptimizerChoice(Section):
    """The optimizer."""

    table = "optimizer"
    kind: optimizer.Kind | None = key(None, "adamw, or muon for the matrices inside the blocks (AdamW for all else).")
    rate: Positive | None = key(None, "The highest learning rate.")
    matrix_rate: Positive = key(0.02, "Muon's highest learning rate.")
    beta1: Probability = key(0.9, "Adam's decay of the mean gradient.")
    beta2: Probability = key(0.98, "Adam's decay of the mean squared gradient.")
    epsilon: Positive = key(1e-9, "Adam's ε.")
    decay: NotNegative | None = key(None, "Weight decay of the matrices.")
    clip: NotNegative = key(1.0, "Largest norm of the gradient; 0: no clipping.")


@dataclass(frozen=True, kw_only=True)
class ScheduleChoice(Section):
    """The schedule of the learning rate, and the length of the run."""

    table = "schedule"
    kind: schedule.Kind = key("cosine", "noam, inverse_sqrt, cosine, linear, slanted_triangular or constant.")
    warmup: Count | None = key(None, "Steps in which the rate rises.")
    steps: Size | None = key(None, "Steps in all.")


@dataclass(frozen=True, kw_only=True)
class Regularization(Section):
    """Regularization besides dropout."""

    table = "regularization"
    smoothing: Probability = key(0.1, "Label smoothing: this share of the probability goes to all words.")
    r_drop: NotNegative = key(
        0.0, "R-Drop's α: each batch runs twice, and the loss adds the divergence of both outputs. Doubles the work."
    )
    bpe_dropout: Probability = key(
        0.0, "Share of merges that is left out when a source is tokenized, drawn anew in each epoch."
    )


@dataclass(frozen=True, kw_only=True)
class Validation(Section):
    """Validation during the run."""

    table = "validation"
    every: Size | None = key(None, "Steps between two validations.")
    metric: str | None = key(
        None, "The metric that selects the best model: loss, or another of the task (bleu, accuracy, perplexity, …)."
    )
    beams: Size = key(1, "Beams of the validation's translations.")
    limit: Size = key(2000, "Validation pairs that are translated, at most; the loss is that of all.")
    tune: bool = key(
        True,
        "Whether a translator's length penalty is tuned at the end, by translating the validation pairs with each.",
    )
    patience: Count = key(0, "Early stopping: validations without improvement until the run stops; 0: never.")


@dataclass(frozen=True, kw_only=True)
class Averaging(Section):
    """Averages of weights, which generalize better than those of a single step."""

    table = "averaging"
    ema: Probability | None = key(
        None, "Decay of a moving average of the weights (0.999), which is validated and kept; 0: no average."
    )
    of: Literal["best", "last", "none"] = key(
        "best",
        "The final model: the mean of the best or of the last validated weights, or the best ones (none).",
    )
    count: Size = key(5, "Number of averaged weights.")


@dataclass(frozen=True, kw_only=True)
class Saving(Section):
    """States of the run, to resume from."""

    table = "saving"
    minutes: Positive = key(2.0, "Minutes between two states.")
    keep: Size = key(2, "Number of states that are kept.")


@dataclass(frozen=True, kw_only=True)
class MachineChoice(Section):
    """The machine. None of these keys changes the result, but for rounding."""

    table = "machine"
    device: str = key("auto", "auto (a GPU if there is one), cpu, cuda, cuda:1 or mps.")
    precision: Literal["auto", "float32", "bfloat16"] = key(
        "auto", "auto: bfloat16 where a training step measured at least 1.3 times as fast in it."
    )
    kernels: Literal["auto", "own", "torch"] = key("auto", "Kernels for attention, norms and loss; auto: the fastest.")
    kernel_length: Count | None = key(
        None, "Longest sequence whose attention our kernel trains in float32, then torch's does; by measurement."
    )
    steps_length: Count | None = key(
        None, "Longest sequence whose attention is written out in bfloat16, then torch's kernel; by measurement."
    )
    memory: Literal["check", "ignore"] = key(
        "check", "check: a run that would take more memory than is free is refused; ignore: it is started."
    )
    compile: bool = key(
        False,
        "Whether to use torch.compile, which takes minutes; where it fails, the run goes on without.",
    )
    sharding: Literal["ddp", "fsdp"] = key(
        "ddp", "Under torchrun: each rank has the whole model (ddp), or a part of it (fsdp)."
    )


@dataclass(frozen=True, kw_only=True)
class Card(Section):
    """The model card (README.md)."""

    table = "card"
    title: str = key("", "Name of the model.")
    languages: tuple[str, ...] = key((), "Codes of the languages, like en, fr.")
    licence: str = key("", "The licence of the model.")
    data_licence: str = key("", "The licence of the data, with attribution.")


@dataclass(frozen=True, kw_only=True)
class TrainConfig(Section):
    """One run."""

    task: str = key("translate", f"The task: {', '.join(TASKS)}.")
    seed: int = key(1, "Seed of initial weights, the order of batches, and dropout.")
    data: Data = field(default_factory=Data)
    tokenizer: TokenizerChoice = field(default_factory=TokenizerChoice)
    model: ModelChoice = field(default_factory=ModelChoice)
    batches: Batches = field(default_factory=Batches)
    optimizer: OptimizerChoice = field(default_factory=OptimizerChoice)
    schedule: ScheduleChoice = field(default_factory=ScheduleChoice)
    regularization: Regularization = field(default_factory=Regularization)
    validation: Validation = field(default_factory=Validation)
    averaging: Averaging = field(default_factory=Averaging)
    saving: Saving = field(default_factory=Saving)
    machine: MachineChoice = field(default_factory=MachineChoice)
    card: Card = field(default_factory=Card)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not -(2**31) <= self.seed < 2**31:
            raise ConfigError(f"seed={self.seed} must be a whole number of at most 32 bits")
        self._check_task()
        if self.model.start is not None:
            self._check_start(self.model.start)

    def _check_task(self) -> None:
        """Files, settings and metric are those of the task."""
        task = task_class(self.task)
        for name, value in vars(self.data).items():
            if isinstance(value, tuple) and value and name not in TASKS[self.task].files:
                raise ConfigError(f"data.{name} is not for the task {self.task}; leave it out")
        for setting, tasks in _special_settings().items():
            section, name = setting.split(".")
            if getattr(getattr(self, section), name) and self.task not in tasks:
                of = " or ".join(tasks)
                raise ConfigError(f"{setting} is for the task {of}, not for {self.task}; leave it out")
        metric, known = self.validation.metric, [metric.name for metric in task.metrics]
        if metric is not None and metric not in known:
            raise ConfigError(f"validation.metric={metric!r} is no metric of {self.task}; choose {', '.join(known)}")

    def _check_start(self, start: str) -> None:
        """Checks that a model to fine-tune is given no keys but dropout."""
        free = ("start", *DROPOUTS)
        given = [f"model.{name}" for name, value in vars(self.model).items() if value is not None and name not in free]
        given += self.tokenizer.learnt
        if self.tokenizer.start is not None:
            given.append("tokenizer.start")
        if given:
            raise ConfigError(
                f"{' and '.join(given)} can't be given together with model.start (--from {start}): that model has its "
                f"own; leave one of the two out"
            )


def _special_settings() -> dict[str, list[str]]:
    """Each key that not every task has -> the tasks that have it."""
    found: dict[str, list[str]] = {}
    for task in TASKS:
        for setting in task_class(task).settings:
            found.setdefault(setting, []).append(task)
    return found


DROPOUTS = ("dropout", "attention_dropout", "ff_dropout")
UNCHANGING = ("saving", "machine", "card")
"""Sections that may differ when a run is resumed: they do not change the result."""
FIXED = ("model", "tokenizer")
"""Sections that can't: the folder has their model and tokenizer."""
