"""A config.json of Hugging Face, read key by key or by a table of keys: typed, bounded, unknown keys reported."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from cutaway.errors import CheckpointError, unknown
from cutaway.parts.feedforward import Activation

C = TypeVar("C")
_LARGEST = 2**31  # of any size in a config

ACTIVATIONS: dict[str, Activation] = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}  # the first spelling of each is the one we write
ACTIVATION_NAMES = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}

# Keys that no forward pass reads: where a model came from, how it was trained, the names of its classes and tasks, how
# text is generated with it (see usage.py), and options of a library's own.
ELSEWHERE = frozenset(
    """
    architectures model_type transformers_version torch_dtype dtype torchscript use_bfloat16 use_cache
    id2label label2id num_labels problem_type finetuning_task task_specific_params gradient_checkpointing
    initializer_range initializer_factor init_std output_past output_attentions output_hidden_states return_dict
    bos_token_id eos_token_id pad_token_id sep_token_id decoder_start_token_id forced_bos_token_id forced_eos_token_id
    bad_words_ids num_beams num_beam_groups max_length min_length max_new_tokens early_stopping length_penalty
    no_repeat_ngram_size encoder_no_repeat_ngram_size repetition_penalty do_sample temperature top_k top_p typical_p
    diversity_penalty num_return_sequences output_scores return_dict_in_generate exponential_decay_length_penalty
    suppress_tokens begin_suppress_tokens remove_invalid_values prefix tokenizer_class pretraining_tp
    chunk_size_feed_forward tf_legacy_loss encoder_layerdrop decoder_layerdrop attn_implementation
    vocab_size_or_config_json_file auto_map is_encoder_decoder
    """.split()  # noqa: SIM905  # fourteen lines instead of seventy
)


class Keys:
    """One config.json. A value of the wrong type or out of range is a sentence that names file, key and value."""

    def __init__(self, data: Mapping[str, Any], where: str = "config.json") -> None:
        self.data = data
        self.where = where
        self.used: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        """The value as it stands; null counts as absent."""
        self.used.add(name)
        value = self.data.get(name)
        return default if value is None else value

    def count(self, name: str, default: int | None = None) -> int:
        """A size: a whole number from 1 on."""
        value = self.get(name, default)
        if type(value) is not int or not 1 <= value < _LARGEST:
            raise self.wrong(name, value, "a whole number from 1 on")
        return value

    def optional_count(self, name: str) -> int | None:
        return None if self.get(name) is None else self.count(name)

    def number(self, name: str, default: float, *, low: float = 0.0, high: float = 1e12) -> float:
        value = self.get(name, default)
        if type(value) not in (int, float) or not low <= value <= high:
            raise self.wrong(name, value, f"a number from {low:g} to {high:g}")
        return float(value)

    def probability(self, name: str, default: float = 0.0) -> float:
        value = self.number(name, default, high=1.0)
        if value == 1.0:
            raise self.wrong(name, value, "a probability below 1")
        return value

    def flag(self, name: str, default: bool) -> bool:
        value = self.get(name, default)
        if type(value) is not bool:
            raise self.wrong(name, value, "true or false")
        return value

    def positive(self, name: str, default: float) -> float:
        return self.number(name, default, low=1e-30)

    def choice(self, name: str, default: str, choices: Mapping[str, C]) -> C:
        value = self.get(name, default)
        if not isinstance(value, str) or value not in choices:
            raise CheckpointError(f"{self.where}: {name}: {unknown('choice', str(value)[:80], choices)}")
        return choices[value]

    def activation(self, name: str, default: str) -> Activation:
        return self.choice(name, default, ACTIVATIONS)

    def read(self, table: "Iterable[Key]", side: str = "") -> dict[str, Any]:
        """The fields of a config that a table gives; those whose key is absent and has no default are left out."""
        rows = [(row, row.name(side)) for row in table]
        return {
            row.ours: row.read(self, name, row.default) for row, name in rows if self.get(name, row.default) is not None
        }

    def only(self, name: str, *values: Any, why: str) -> None:
        """A key that cutaway takes at these values alone (or absent); `why` says what it lacks."""
        value = self.get(name)
        if value is not None and value not in values:
            raise CheckpointError(f"{self.where}: {name}={str(value)[:80]}: {why}")

    def ignore(self, *names: str) -> None:
        """Keys that say nothing about the numbers of this family."""
        self.used.update(names)

    def part(self, name: str) -> "Keys":
        """An object inside; empty if there is none."""
        value = self.get(name, {})
        if not isinstance(value, Mapping):
            raise self.wrong(name, value, "an object")
        return Keys(value, f"{self.where}: {name}")

    def wrong(self, name: str, value: object, expected: str) -> CheckpointError:
        return CheckpointError(f"{self.where}: {name} is {str(value)[:80]!r}; expected {expected}")

    @property
    def unread(self) -> list[str]:
        """Unknown keys: they may mean nothing, or something that cutaway does not do."""
        known = self.used | ELSEWHERE
        return sorted(key for key in self.data if key not in known and not key.startswith("_"))


@dataclass(frozen=True)
class Key:
    """A row of a family's table: a key of config.json, the field that it gives, and what an absent key means.

    `{side}` in it stands for encoder or decoder. A `default` of None leaves the field to the config.
    """

    theirs: str
    ours: str
    default: Any = None
    read: Callable[[Keys, str, Any], Any] = Keys.count

    def name(self, side: str) -> str:
        return self.theirs.replace("{side}", side)


RESOLVED = {"d_head": "head_width", "n_kv_heads": "kv_heads"}
"""Fields of a StackConfig that may be None, and the property that says what they are then."""


def write_keys(table: Iterable[Key], config: Any, side: str = "") -> dict[str, Any]:
    """The keys from which `Keys.read` gives a config's fields back."""
    written: dict[str, Any] = {}
    for row in table:
        value = getattr(config, RESOLVED.get(row.ours, row.ours))
        written[row.name(side)] = row.default if value is None else ACTIVATION_NAMES.get(value, value)
    return written
