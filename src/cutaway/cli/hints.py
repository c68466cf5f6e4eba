"""Hints for a command line that names an option of another library, or no model."""

from collections.abc import Container
from typing import Any

from cutaway.aliases import alias_hint, our_name
from cutaway.tasks.needs import NEEDS

SETTINGS = {
    "optimizer.rate": ("lr", "learning_rate", "rate"),
    "optimizer.kind": ("optim", "optimizer"),
    "optimizer.decay": ("weight_decay", "wd"),
    "optimizer.clip": ("clip_norm", "max_grad_norm", "grad_clip"),
    "batches.tokens": ("batch_size", "batch_tokens", "per_device_train_batch_size"),
    "schedule.warmup": ("warmup", "warmup_steps"),
    "schedule.kind": ("lr_scheduler", "lr_scheduler_type", "scheduler"),
    "model.dropout": ("dropout",),
    "model.n_blocks": ("layers", "num_layers", "n_layers", "n_blocks"),
    "model.d_model": ("d_model", "hidden_size", "embed_dim"),
    "model.n_heads": ("heads", "num_heads", "n_heads"),
    "regularization.smoothing": ("label_smoothing", "smoothing"),
    "validation.patience": ("patience", "early_stopping"),
    "machine.precision": ("precision", "fp16", "bf16"),
    "machine.compile": ("compile", "torch_compile"),
}
"""Keys of a run.toml that `train --set` takes, and options by which others set them."""
ALSO = {
    "sample": "a command that samples does so with any of --temperature, --top-k, --top-p, --min-p and --seed",
    "batch_tokens": "texts are put into batches by their number of tokens, without an option",
    "cached": "a cache is always used",
}
"""What can be said where a command has no option for it."""
EXAMPLES = {
    "fill": '"Paris is the ___ of France."',
    "classify": '"A wonderful film."',
    "embed": '"A short text."',
    "search": '"cheap flights" notes.txt',
    "answer": '--context page.txt "Who wrote it?"',
    "recognize": "photo.jpg",
    "summarize": '"A long text."',
    "complete": '"Once upon a time"',
    "chat": "",
}
"""Task that has no model of its own -> what stands after its model."""


def hint(option: str, command: Any) -> str | None:
    """`cutaway calls it --beams`, for an option such as --num-beams; None if no other name is known for it."""
    name = option.lstrip("-").replace("-", "_")
    spelled = {
        each.lstrip("-").replace("-", "_"): each
        for parameter in command.params
        for each in (*parameter.opts, *parameter.secondary_opts)
        if each.startswith("--")
    }
    found = name if name in spelled else our_name(name, spelled)
    if found is not None:
        return alias_hint(name, spelled[found])
    if "set" in spelled:
        key = next((key for key, names in SETTINGS.items() if name in names), None)
        return None if key is None else f"it is a setting: --set {key}=…"
    return ALSO.get(our_name(name, ALSO) or name) if "engine" in spelled else None


def missing_model(task: str, trainable: Container[str]) -> str:
    """What kind of model a task needs, an example, and where others come from."""
    need = NEEDS[task]
    example = f"cutaway {task} --model {need.examples[0]} {EXAMPLES[task]}".rstrip()
    own = f", and `cutaway train {task}` makes one from your data" if task in trainable else ""
    return f"{task} needs --model, {need.kind}: {example}; the Hugging Face hub has others, tagged {need.tag}{own}"
