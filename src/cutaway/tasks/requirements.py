"""Whether a model can do a task; if not, a sentence that says what it is and which models can."""

from typing import TYPE_CHECKING

from cutaway.errors import InputError
from cutaway.models.config import Classifier, StackConfig
from cutaway.tasks.needs import NEEDS

if TYPE_CHECKING:
    from cutaway.model import Model
    from cutaway.text.tokenizer import Tokenizer


def unsupported(model: "Model", task: str) -> InputError:
    """`gpt2 is decoder-only with a language-model head; fill needs an encoder with …, like …`"""
    return InputError(f"{model.name} is {described(model)}; {task} needs {NEEDS[task]}")


def described(model: "Model") -> str:
    """`an encoder of text with a masked-language-model head`"""
    config = model.config
    halves = [half for half in ("encoder", "decoder") if getattr(config, half) is not None]
    head = "without a head" if config.head is None else f"with a {config.head.kind.replace('_', '-')} head"
    return f"{'an' if halves[0] == 'encoder' else 'a'} {'-'.join(halves)}{' of images' * reads_images(model)} {head}"


def reads_images(model: "Model") -> bool:
    """Whether it reads images."""
    return isinstance(model.config.encoder, StackConfig) and model.config.encoder.patches is not None


def require(model: "Model", task: str, *heads: type | None) -> None:
    """The model reads text and has one of these heads (None: no head at all)."""
    config = model.config
    if reads_images(model) and isinstance(config.head, Classifier) and task == "classify":
        raise InputError(f"{model.name} is a classifier of images: recognize says what it sees")
    if reads_images(model) or (config.encoder is not None and config.decoder is not None):
        raise unsupported(model, task)
    if not any(config.head is None if head is None else isinstance(config.head, head) for head in heads):
        raise unsupported(model, task)


def require_trained(model: "Model", task: str) -> None:
    """The model was not trained for another task, as far as it says."""
    trained = model.usage.task
    if trained is not None and trained != task:
        raise InputError(
            f"{model.name} was trained to {trained}, not to {task}: run it with {trained}; {task} needs {NEEDS[task]}"
        )


def tokenizer_of(model: "Model", task: str) -> "Tokenizer":
    if model.tokenizer is None:
        raise InputError(f"{model.name} has no tokenizer, and {task} reads text; save one beside its weights")
    return model.tokenizer
