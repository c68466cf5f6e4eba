"""How the tokens of a text become its vector: as its checkpoint says, or else their mean."""

from typing import TYPE_CHECKING, Literal

from cutaway.checks import check
from cutaway.engines.engine import LOG
from cutaway.errors import InputError
from cutaway.models.config import Config, SentenceVector, StackConfig

if TYPE_CHECKING:
    from cutaway.model import Model

Pooling = Literal["mean", "cls", "pooler"]
"""The mean of the tokens, the first token, or a dense layer over the first (BERT's pooler)."""


def default_pooling(config: Config) -> Pooling | None:
    """What is taken where the checkpoint does not say; None: what its head does.

    BERT's pooler learnt whether one text follows another, not how alike two are. Where no modules.json says otherwise,
    sentence-transformers takes the mean of the tokens, and so does cutaway.
    """
    head = config.head
    is_pooler = isinstance(head, SentenceVector) and head.pooling == "first" and head.hidden and not head.normalized
    return "mean" if head is None or is_pooler else None


def choose_pooling(model: "Model", pooling: Pooling | None) -> Pooling | None:
    """The one that was asked for, or the default, which the log is told of."""
    head = model.config.head
    if pooling is not None:
        check("pooling", pooling, Pooling)
        if pooling == "pooler" and not (isinstance(head, SentenceVector) and head.hidden is not None):
            raise InputError(f"{model.name} has no pooler; choose the pooling 'mean' or 'cls'")
        return pooling
    found = default_pooling(model.config)
    if found is not None:
        LOG.warning("%s does not say how it pools (no modules.json): taking the %s of the tokens", model.name, found)
    return found


def describe_pooling(config: Config) -> str:
    """In a line, for encoders of text without another task; "" for all others."""
    head = config.head
    if not isinstance(head, SentenceVector | None) or config.decoder is not None:
        return ""
    if isinstance(config.encoder, StackConfig) and config.encoder.patches is not None:
        return ""
    if (found := default_pooling(config)) is not None:
        others = "--pooling cls" if head is None else "--pooling cls or pooler"
        return f"{found} of the tokens, as no modules.json says how ({others} for another)"
    assert head is not None
    dense = f", then a dense layer and {head.hidden}" if head.hidden else ""
    one = "mean of the" if head.pooling == "mean" else head.pooling
    return f"{one} token{'s' * (head.pooling == 'mean')}{dense}{', made of length 1' * head.normalized}"
