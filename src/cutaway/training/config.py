"""What a training run is, as data: every key of a run.toml, with the sentence that explains it there.

None means: chosen by the size of the data (defaults.py, and the sizes of the task); the run.toml that a run leaves
behind has the choice.
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
    """A field with its default and what it means."""
    return field(default=default, metadata={"text": text})


class Section:
    """A table of the run.toml; its values are checked as it is made."""

    table: ClassVar[str] = ""

    def __post_init__(self) -> None:
        check_fields(self, self.table)


@dataclass(frozen=True, kw_only=True)
class Data(Section):
    """What to learn from: two aligned files, or one file (or folder, or hf:owner/name) of pairs."""

    table = "data"
    source: tuple[str, ...] = key(
        (), "Text of the source language, a sentence a line: one file or several. May be .gz, .xz, .zst."
    )
    target: tuple[str, ...] = key((), "Its translations, line by line; as many files.")
    pairs: tuple[str, ...] = key(
        (), "Instead of these two: TSV, CSV, JSONL or Parquet files, a folder of them, or hf:owner/name of the hub."
    )
    columns: tuple[str, ...] = key((), "Which columns of such a file are source and target: names or numbers from 0.")
    valid_source: tuple[str, ...] = key(
        (), "Pairs that are never learnt, to see how well it translates; without any, some are held out."
    )
    valid_target: tuple[str, ...] = key((), "Their translations.")
    valid_pairs: tuple[str, ...] = key((), "Instead of these two, as above.")
    text: tuple[str, ...] = key((), "For tasks like complete: files of running text, instead of pairs.")
    valid_text: tuple[str, ...] = key((), "Text to judge by; without any, the last tenth is kept for that.")
    joined: Neighbours = key(1, "Learn from neighbouring pairs together, too: each two, each three, … up to so many.")
    held_out: Size = key(1000, "How many pairs to hold out if none are given; at most a tenth.")
    max_tokens: Size = key(256, "A pair with more tokens than this on one side is left out; a text to classify is cut.")
    max_ratio: NotNegative = key(
        9.0, "A pair whose sides differ in length by more than this factor is left out; 0 keeps all."
    )
    duplicates: bool = key(True, "Whether a pair that occurs again is kept.")


@dataclass(frozen=True, kw_only=True)
class TokenizerChoice(Section):
    """How texts are cut into tokens."""

    table = "tokenizer"
    kind: TokenizerKind = key("bpe", "bpe, unigram, wordpiece, byte or character; learnt from the training texts.")
    vocabulary: Size | None = key(None, "How many tokens it may have.")
    joint: bool = key(True, "One vocabulary for both languages, or one each.")
    lowercase: bool = key(False, "Whether case is given up.")
    elisions: bool = key(
        False, "With bpe: whether a word after an apostrophe, as in l'homme, is the same one as after a space."
    )
    start: str | None = key(None, "A folder or hub name whose tokenizer to use instead of learning one.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.elisions and self.kind != "bpe":
            raise ConfigError(
                f'tokenizer.elisions is for tokenizer.kind = "bpe", not for "{self.kind}"; leave one of the two out'
            )
        if self.start is not None and (given := self.learnt):
            raise ConfigError(
                f"{' and '.join(given)} can't be given together with tokenizer.start: that tokenizer is what it is; "
                f"leave one of the two out"
            )

    @property
    def learnt(self) -> list[str]:
        """Keys that say how one is learnt, where they are not as they would be."""
        usual = {field.name: field.default for field in fields(self) if field.name != "start"}
        return [f"tokenizer.{name}" for name, value in usual.items() if getattr(self, name) != value]


@dataclass(frozen=True, kw_only=True)
class ModelChoice(Section):
    """What is trained: a preset, changed where a number is given; or a model to go on from."""

    table = "model"
    preset: str | None = key(None, "Its name in `cutaway models`: transformer-tiny, bahdanau-gru, …")
    start: str | None = key(
        None, "A folder or hub name of a model whose weights to begin with (its tokenizer comes along)."
    )
    n_blocks: Size | None = key(None, "Blocks on each side (layers of a recurrent model).")
    d_model: Size | None = key(None, "Width of the vectors between them.")
    n_heads: Size | None = key(None, "Attention heads.")
    d_ff: Size | None = key(None, "Width inside the feed-forward network.")
    d_hidden: Size | None = key(None, "Width of a recurrent model's state.")
    norm_place: NormPlace | None = key(
        None, "Norms after each residual sum (post, the paper's) or before each sublayer (pre)."
    )
    dropout: Probability | None = key(
        None, "Share of numbers that is dropped at the embedding and after each sublayer."
    )
    attention_dropout: Probability | None = key(None, "Share of attention weights that is dropped.")
    ff_dropout: Probability | None = key(None, "Share of numbers that is dropped inside the feed-forward network.")


@dataclass(frozen=True, kw_only=True)
class Batches(Section):
    """What one step looks at."""

    table = "batches"
    tokens: Size | None = key(
        None, "Target tokens of one step, padding included; gradients are divided by the real ones."
    )
    shares: Size | None = key(
        None,
        "Pieces of a step: each core, or each rank of a cluster, computes some. Other pieces, other batches.",
    )

    @property
    def share_tokens(self) -> int:
        """Of one share, once both are chosen."""
        assert self.tokens is not None
        assert self.shares is not None
        return -(-self.tokens // self.shares)


@dataclass(frozen=True, kw_only=True)
class OptimizerChoice(Section):
    """How gradients become steps."""

    table = "optimizer"
    kind: optimizer.Kind | None = key(None, "adamw, or muon for the matrices inside the blocks (AdamW for all else).")
    rate: Positive | None = key(None, "The highest learning rate.")
    matrix_rate: Positive = key(0.02, "Muon's highest learning rate.")
    beta1: Probability = key(0.9, "Adam's memory of gradients.")
    beta2: Probability = key(0.98, "Adam's memory of their squares.")
    epsilon: Positive = key(1e-9, "Adam's ε.")
    decay: NotNegative | None = key(None, "Weight decay of the matrices.")
    clip: NotNegative = key(1.0, "Gradients longer than this are shortened to it; 0: never.")


@dataclass(frozen=True, kw_only=True)
class ScheduleChoice(Section):
    """How the rate moves, and how long it goes on."""

    table = "schedule"
    kind: schedule.Kind = key("cosine", "noam, inverse_sqrt, cosine, linear, slanted_triangular or constant.")
    warmup: Count | None = key(None, "Steps in which the rate rises.")
    steps: Size | None = key(None, "Steps in all.")


@dataclass(frozen=True, kw_only=True)
class Regularization(Section):
    """What keeps it from learning by heart, besides dropout."""

    table = "regularization"
    smoothing: Probability = key(0.1, "Label smoothing: this share of the probability goes to all words.")
    agreement: NotNegative = key(
        0.0, "R-Drop's α: each batch runs twice, and the two outputs are pulled together. Doubles the work."
    )
    bpe_dropout: Probability = key(
        0.0, "Share of merges that is left out when a source is cut into pieces, others in each epoch."
    )


@dataclass(frozen=True, kw_only=True)
class Validation(Section):
    """How it is judged on the way."""

    table = "validation"
    every: Size | None = key(None, "Steps between two looks at the validation pairs.")
    metric: str | None = key(
        None, "What the best model is the best in: loss, or another metric of the task (bleu, accuracy, perplexity, …)."
    )
    beams: Size = key(1, "Beams with which it translates for this.")
    limit: Size = key(2000, "At most so many validation pairs are translated for this; the loss is that of all.")
    tune: bool = key(
        True,
        "Whether a translator's length penalty is chosen in the end, by translating the validation pairs with each.",
    )
    patience: Count = key(0, "Stop when so many looks in a row found nothing better; 0: never.")


@dataclass(frozen=True, kw_only=True)
class Averaging(Section):
    """The weights that are kept: averages learn less by heart than any single step's."""

    table = "averaging"
    ema: Probability | None = key(
        None, "Judge and keep a moving average of the weights, with this memory (0.999); 0: the weights themselves."
    )
    of: Literal["best", "last", "none"] = key(
        "best",
        "The model in the end: the mean of the best, or of the last, weights looked at, or the best (none).",
    )
    count: Size = key(5, "How many are averaged.")


@dataclass(frozen=True, kw_only=True)
class Saving(Section):
    """What a crash can cost."""

    table = "saving"
    minutes: Positive = key(2.0, "Minutes between two states from which the run can go on.")
    keep: Size = key(2, "How many of them are kept.")


@dataclass(frozen=True, kw_only=True)
class MachineChoice(Section):
    """Where it runs. None of these keys changes what is learnt, but for rounding."""

    table = "machine"
    device: str = key("auto", "auto (a GPU if there is one), cpu, cuda, cuda:1 or mps.")
    precision: Literal["auto", "float32", "bfloat16"] = key(
        "auto", "auto: bfloat16 where a training step measured at least 1.3 times as fast in it."
    )
    kernels: Literal["auto", "own", "torch"] = key("auto", "Whose attention, norms and loss; auto: the faster.")
    kernel_length: Count | None = key(
        None, "Longest sequence whose attention our kernel trains in float32, then torch's does; by measurement."
    )
    steps_length: Count | None = key(
        None, "Longest sequence whose attention is written out in bfloat16, then torch's kernel; by measurement."
    )
    memory: Literal["check", "ignore"] = key(
        "check", "check: a run that would take more memory than is free is refused; ignore: it begins all the same."
    )
    compile: bool = key(
        False,
        "Whether torch.compile makes code for the model, which takes minutes; where it can't, the run goes on without.",
    )
    sharding: Literal["ddp", "fsdp"] = key(
        "ddp", "Under torchrun: each rank has the whole model (ddp), or a part of it (fsdp)."
    )


@dataclass(frozen=True, kw_only=True)
class Card(Section):
    """What the model's README.md says about it."""

    table = "card"
    title: str = key("", "Its name.")
    languages: tuple[str, ...] = key((), "Codes of the languages, like en, fr.")
    licence: str = key("", "The licence of the model.")
    data_licence: str = key("", "The licence of the data, and whom to name.")


@dataclass(frozen=True, kw_only=True)
class TrainConfig(Section):
    """One run."""

    task: str = key("translate", f"What is learnt: {', '.join(TASKS)}.")
    seed: int = key(1, "Decides first weights, the order of batches, and what is dropped.")
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
        """A model that is trained further is what it is, but for what is dropped."""
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
"""Sections that may differ when a run goes on: they do not change what is learnt."""
FIXED = ("model", "tokenizer")
"""Those that can't: what they made lies in the folder."""
