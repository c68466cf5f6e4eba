"""Writes docs/families.md, the table of differences between families, from their configs: `python -m docs.families`."""

from dataclasses import fields
from pathlib import Path

from cutaway.models.config import StackConfig, TransformerConfig
from cutaway.models.presets import preset

PRESETS = [
    "transformer-base", "t5-small", "flan-t5-small", "bert-base", "distilbert-base", "vit-base", "gpt2", "llama-2-7b",
    "llama-3.2-1b",
]  # fmt: skip
SIZES = {"vocabulary", "patches", "n_blocks", "d_model", "n_heads", "d_head", "d_ff", "max_positions"}
PATH = Path(__file__).parent / "families.md"


def shown(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value).replace("RotaryScaling", "")


def stack_of(name: str) -> StackConfig:
    config = preset(name)
    assert isinstance(config, TransformerConfig)
    return config.last


def table(names: list[str]) -> str:
    """A row a field, a column a preset; fields in which none departs from the paper are left out."""
    paper = StackConfig(vocabulary=1)
    rows = [["field", *names], ["---"] * (len(names) + 1)]
    for field in fields(StackConfig):
        values = [shown(getattr(stack_of(name), field.name)) for name in names]
        default = shown(getattr(paper, field.name))
        if field.name not in SIZES and all(value == default for value in values):
            continue
        if field.name in SIZES:
            rows.append([field.name, *values])
        else:
            rows.append([field.name, *(value if value == default else f"**{value}**" for value in values)])
    for field_name in ("head", "share_embeddings", "initialization"):
        rows.append([field_name, *(shown_head(getattr(preset(name), field_name)) for name in names)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def shown_head(value: object) -> str:
    if value is None or isinstance(value, bool | str):
        return shown(value)
    given = ", ".join(f"{field.name}={shown(getattr(value, field.name))}" for field in fields(value))  # type: ignore[arg-type]
    return f"{value.kind}: {given}"  # type: ignore[attr-defined]


def page() -> str:
    return f"""# Three families

*A Transformer is an encoder stack, a decoder stack, or both.* An encoder sees the whole text and is good at
understanding it; a decoder sees what came before and is good at writing; with both, one text is read and another
written.

```python
import cutaway

for name in ("t5-small", "bert-base", "gpt2"):
    config = cutaway.preset(name)
    halves = [half for half in ("encoder", "decoder") if getattr(config, half)]
    print(f"{{name:9}} {{' + '.join(halves):17}} {{cutaway.size(config).parameters:,}} weights")
```

```
t5-small  encoder + decoder 60,506,624 weights
bert-base encoder           109,482,240 weights
gpt2      decoder           124,439,808 weights
```

An image is cut into patches, which take the place of words (ViT). All are used as ULMFiT (2018) showed it: learn a
language from plain text first, then a task from few examples. `cutaway train … --from MODEL` goes on from a trained
model ([training](training.md)).

## How they differ

All of these are one class, `Transformer`, built from one set of parts. What differs is this table: the fields of
`StackConfig` (the decoder's, or else the encoder's), read from `src/cutaway/models/presets.py` by
`python -m docs.families`. **Bold** departs from the 2017 paper.

{table(PRESETS)}

Two more fields, which none of these uses: `window`, how many of the newest tokens a decoder's query sees, its own among
them (Mistral 7B 0.1: 4096), and `window_blocks`, the blocks that have it (Qwen2; none named: all).
"""


if __name__ == "__main__":
    PATH.write_text(page(), encoding="utf-8")
