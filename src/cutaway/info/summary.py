"""The sizes of a model's halves, from its config alone: as plain data, and in words."""

from typing import Any

from cutaway.models.config import Config, RecurrentStackConfig, StackConfig

UNLIMITED = {
    "sinusoidal": "any length, by sinusoidal positions",
    "sinusoidal_halves": "any length, by sinusoidal positions",
    "rotary": "any length, by rotary positions",
    "t5_bias": "any length, by relative positions",
    "none": "any length, without positions",
}
"""The context of a stack that has no largest position, by the positions it has."""


def sizes(config: Config) -> dict[str, dict[str, Any]]:
    """Half -> its sizes, for the halves that a model has; see `stack_sizes`."""
    halves = {"encoder": config.encoder, "decoder": config.decoder}
    return {name: stack_sizes(half) for name, half in halves.items() if half is not None}


def stack_sizes(stack: StackConfig | RecurrentStackConfig) -> dict[str, Any]:
    """Blocks, widths and heads of a Transformer's stack; of a recurrent one, layers and the width of its state.

    `context`: the most positions; None: any number. `window`: the number of newest tokens that each token sees, in
    `windows` of the blocks; None: all.
    """
    if isinstance(stack, RecurrentStackConfig):
        return {
            "layers": stack.n_layers, "cell": stack.cell, "bidirectional": stack.bidirectional,
            "d_model": stack.d_model, "d_hidden": stack.d_hidden, "vocabulary": stack.vocabulary, "context": None,
        }  # fmt: skip
    patches = stack.patches
    return {
        "blocks": stack.n_blocks, "d_model": stack.d_model, "heads": stack.n_heads, "kv_heads": stack.kv_heads,
        "d_head": stack.head_width, "d_ff": stack.d_ff, "gated": stack.gated, "activation": stack.activation,
        "positions": stack.positions, "vocabulary": stack.vocabulary,
        "context": stack.max_positions if patches is None else patches.n_positions,
        "window": stack.window,
        "windows": sum(stack.window_of(i) is not None for i in range(stack.n_blocks)),
        "image": None if patches is None else {
            "size": patches.image_size, "patch": patches.patch_size, "channels": patches.channels
        },
    }  # fmt: skip


def size_rows(config: Config) -> dict[str, str]:
    """The sizes in words: title -> one text, with a line for each half ("encoder 12"); if both are equal, what they
    share, once ("6 in each half")."""
    rows: dict[str, dict[str, str]] = {}
    for half, found in sizes(config).items():
        for title, text in (_recurrent_rows(found) if "layers" in found else _block_rows(found)).items():
            rows.setdefault(title, {})[half] = text
    return {title: _joined_halves(texts, title in ("blocks", "layers")) for title, texts in rows.items()}


def _joined_halves(texts: dict[str, str], counted: bool) -> str:
    """`encoder 12` and `decoder 6`, a line each; `6 in each half` if they are equal and `counted`."""
    first, *others = dict.fromkeys(texts.values())
    if others:
        return "\n".join(f"{half} {text}" for half, text in texts.items())
    return f"{first} in each half" if counted and len(texts) > 1 else first


def _block_rows(sizes: dict[str, Any]) -> dict[str, str]:
    """Rows of a Transformer's stack."""
    heads = f"{sizes['heads']}, each {sizes['d_head']} wide"
    if sizes["kv_heads"] != sizes["heads"]:
        heads += f"; {sizes['kv_heads']} for keys and values"
    rows = {
        "blocks": f"{sizes['blocks']}",
        "width": f"{sizes['d_model']:,}",
        "heads": heads,
        "feed-forward": f"{sizes['d_ff']:,} wide, {'gated, ' * sizes['gated']}{sizes['activation']}",
    }
    image = sizes["image"]
    if image is None:
        return rows | _text_rows(sizes, UNLIMITED.get(sizes["positions"], "any length"))
    size, patch, channels = image["size"], image["patch"], image["channels"]
    rows["image"] = f"{size} × {size} in patches of {patch} × {patch}, {channels} channel{'s' * (channels > 1)}"
    return rows | {"context": f"{sizes['context']:,} positions"}


def _recurrent_rows(sizes: dict[str, Any]) -> dict[str, str]:
    """Rows of a stack of recurrent layers."""

    both = ", read both ways" * sizes["bidirectional"]
    return {
        "layers": f"{sizes['layers']} of {sizes['cell'].upper()}{both}",
        "width": f"{sizes['d_model']:,}",
        "hidden": f"{sizes['d_hidden']:,}",
    } | _text_rows(sizes, "any length")


def _text_rows(sizes: dict[str, Any], unlimited: str) -> dict[str, str]:
    context, window = sizes["context"], sizes.get("window")
    rows = {
        "vocabulary": f"{sizes['vocabulary']:,} tokens",
        "context": unlimited if context is None else f"{context:,} positions",
    }
    if window is None:
        return rows
    some = "" if sizes["windows"] == sizes["blocks"] else f", in {sizes['windows']} of {sizes['blocks']} blocks"
    return rows | {"window": f"{window:,} tokens{some}"}
