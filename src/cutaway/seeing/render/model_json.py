"""A model as plain data for the page and the API: its parts, its sizes and its tasks."""

from typing import TYPE_CHECKING, Any

from cutaway.models.config import (
    AnswerSpan,
    Classifier,
    LanguageModel,
    MaskedLanguageModel,
    RecurrentConfig,
    RecurrentStackConfig,
    SentenceVector,
    StackConfig,
    TransformerConfig,
)
from cutaway.parts.tap import taps
from cutaway.seeing.interventions.switches import switches
from cutaway.tasks.requirements import reads_images
from cutaway.tasks.task_params import tasks_of

if TYPE_CHECKING:
    from cutaway.model import Model

EXAMPLES = {
    "translate": "The animal didn't cross the street because it was too tired.",
    "complete": "The cat sat on the",
    "fill": "The cat [MASK] on the mat.",
    "answer": "Where did the cat sit?",
    "": "The cat sat on the mat.",
}
SECOND = {"answer": "The cat sat on the mat and looked at the dog."}
"""The second text of an example."""


LONGEST = 256
"""Tokens of one trace at most: values grow with their square."""


def model_to_json(model: "Model", most: int = LONGEST) -> dict[str, Any]:
    """One model of `GET /api/models`; `most`: tokens of one trace."""
    config = model.config
    halves = [half for half in ("encoder", "decoder") if getattr(config, half) is not None]
    tasks = tasks_for(model)
    patches = config.encoder.patches if isinstance(config.encoder, StackConfig) else None
    example = EXAMPLES.get(tasks[0] if tasks else "", EXAMPLES[""])
    if tasks[:1] == ["fill"] and model.tokenizer is not None:
        example = example.replace("[MASK]", model.tokenizer.names.get("mask", "[MASK]"))
    return {
        "name": model.name,
        "family": "-".join(halves) if len(halves) == 2 else f"{halves[0]}-only",
        "kind": "recurrent" if isinstance(config, RecurrentConfig) else "transformer",
        "reads": "image" if reads_images(model) else "text",
        "tasks": tasks,
        "prefixes": {name: taught.prefix for name, taught in tasks_of(model).items() if taught.prefix},
        "head": None if config.head is None else config.head.kind,
        "generates": isinstance(config.head, LanguageModel),
        "parameters": sum(weight.numel() for weight in model.network.parameters()),
        "max_tokens": longest(model, most),
        "beams": model.usage.beams,
        "encoder": _stack(config.encoder, config),
        "decoder": _stack(config.decoder, config),
        "image": None if patches is None else {
            "size": patches.image_size, "patch": patches.patch_size, "channels": patches.channels
        },
        "example": "" if reads_images(model) else example,
        "example_pair": SECOND.get(tasks[0] if tasks else "", ""),
        "switches": switches(model.network),
        "attentions": attentions(model),
    }  # fmt: skip


def longest(model: "Model", most: int = LONGEST) -> int:
    """The most tokens of a text for this model, and no more than `most`."""
    stack = model.config.encoder or model.config.decoder
    positions = stack.max_positions if isinstance(stack, StackConfig) else None
    return min(most, positions or most)


def tasks_for(model: "Model") -> list[str]:
    """The tasks of this model, by its head."""
    config = model.config
    match config.head:
        case LanguageModel():
            if config.encoder is None:
                return ["complete"]
            return [name for name, taught in tasks_of(model).items() if taught.prefix] or ["translate"]
        case MaskedLanguageModel():
            return ["fill"]
        case Classifier():
            return ["recognize" if reads_images(model) else "classify"]
        case AnswerSpan():
            return ["answer"]
        case SentenceVector():
            return ["embed"]
    return []


def attentions(model: "Model") -> list[dict[str, Any]]:
    """Every attention: the name that its values begin with, its kind, its block and its number of heads."""
    found = []
    for name in taps(model.network):
        owner, _, value = name.rpartition(".")
        if value != "weights":
            continue
        side = "cross" if "cross_attention" in owner or owner == "decoder.attention" else owner.split(".")[0]
        stack = getattr(model.config, owner.split(".")[0])
        block = next((int(part) for part in owner.split(".") if part.isdecimal()), 0)
        heads = stack.n_heads if isinstance(stack, StackConfig) else 1
        found.append({"name": owner, "kind": side, "block": block, "heads": heads})
    return found


def _stack(
    stack: StackConfig | RecurrentStackConfig | None, config: TransformerConfig | RecurrentConfig
) -> dict[str, Any] | None:
    if isinstance(stack, StackConfig):
        return {
            "blocks": stack.n_blocks, "d_model": stack.d_model, "heads": stack.n_heads,
            "kv_heads": stack.n_kv_heads or stack.n_heads, "d_head": stack.head_width, "d_ff": stack.d_ff,
            "norm": stack.norm, "norm_place": stack.norm_place, "norm_epsilon": stack.norm_epsilon,
            "positions": stack.positions, "gated": stack.gated,
            "activation": stack.activation, "scaled_scores": stack.scale_scores,
        }  # fmt: skip
    if isinstance(stack, RecurrentStackConfig):
        assert isinstance(config, RecurrentConfig)
        return {
            "layers": stack.n_layers, "d_model": stack.d_model, "d_hidden": stack.d_hidden, "cell": stack.cell,
            "bidirectional": stack.bidirectional, "attention": config.attention,
        }  # fmt: skip
    return None
