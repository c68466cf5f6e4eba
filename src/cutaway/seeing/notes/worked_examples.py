"""The notes' examples, run step by step through the parts that the models are made of.

Each function serves every example of its kind: from the example's inputs (notes.json) to the steps that can be shown.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from cutaway.errors import InputError
from cutaway.info.size import size
from cutaway.models.build import on_meta
from cutaway.models.config import TransformerConfig
from cutaway.models.presets import preset
from cutaway.parts import masks
from cutaway.parts.attention import Attention
from cutaway.parts.embedding import Embedding
from cutaway.parts.lookup import EmbeddingTable
from cutaway.parts.norms import LayerNorm
from cutaway.parts.positions import sinusoidal
from cutaway.parts.tap import Listener
from cutaway.seeing.notes import arithmetic as write
from cutaway.seeing.notes.arithmetic import Line, vector
from cutaway.seeing.trace.trace import trace

Inputs = Mapping[str, Any]
Value = float | Sequence["Value"]
"""A number, a vector or a table."""


@dataclass(frozen=True)
class Step:
    """One named value of an example, with labels of its rows and columns (if any), and its sums written out."""

    name: str
    formula: str
    value: Value
    rows: Sequence[str] = ()
    columns: Sequence[str] = ()
    lines: Sequence[Line] = ()


@torch.no_grad()
def identity_attention(d_model: int, *, scale_scores: bool = True, cross: bool = False) -> Attention:
    """One head with W_Q = W_K = W_V = W_O = I and no bias: the notes' attention, where Q, K and V are the words."""
    attention = Attention(d_model, 1, scale_scores=scale_scores, cross=cross)
    attention.double()  # so that 0.1² + … + 0.4² prints as 0.3
    for linear in (attention.q, attention.k, attention.v, attention.out):
        nn.init.eye_(linear.weight)
        nn.init.zeros_(linear.bias)
    return attention


def _cells(rows: Sequence[str], columns: Sequence[str]) -> Iterator[tuple[int, int, str]]:
    """Every query t with every key s, and a name for the pair."""
    return ((t, s, f"{row} → {column}") for t, row in enumerate(rows) for s, column in enumerate(columns))


def attention(inputs: Inputs) -> list[Step]:
    """softmax(Q Kᵀ / √K) V, tap by tap. `weights`, if given, take the place of the computed ones."""
    words = inputs["x"]
    memory_words = inputs.get("memory", words)
    rows, columns = list(words), list(memory_words)
    x, memory = (torch.tensor([list(of.values())], dtype=torch.float64) for of in (words, memory_words))
    part = identity_attention(
        x.shape[-1], scale_scores=inputs.get("scale_scores", True), cross="memory" in inputs
    )  # fmt: skip
    visible = masks.from_ones_and_zeros([inputs["visible"]]) if "visible" in inputs else None
    bias = masks.bias(len(rows), len(columns), x, causal=inputs.get("causal", False), visible_BS=visible)
    given = inputs.get("weights")
    replace: dict[str, Listener] = {}
    if given is not None:
        replace["weights"] = lambda *_: torch.tensor([[given]], dtype=x.dtype)
    seen = trace(part, x, memory, bias=bias, replace=replace)

    def table(name: str) -> list[list[float]]:
        return seen[name][0, 0].tolist()

    def step(name: str, rows: Sequence[str], columns: Sequence[str], lines: Sequence[Line] = ()) -> Step:
        formula = "given by the notes, in place of the softmax" if name in replace else seen.formula(name)
        formula = formula.replace("√K", "√d_k")  # as the notes write it
        return Step(name, formula, table(name), rows, columns, lines)

    q, k, v, scores, scaled, masked, weights, heads = map(
        table, ("queries", "keys", "values", "scores", "scaled_scores", "masked_scores", "weights", "heads")
    )  # fmt: skip
    cells = list(_cells(rows, columns))
    scaling = []
    if part.scale != 1.0:
        scaling = [write.over_root(of, scores[t][s], x.shape[-1], scaled[t][s]) for t, s, of in cells]
    hidden = {
        row: [column for s, column in enumerate(columns) if math.isinf(masked[t][s])] for t, row in enumerate(rows)
    }
    hiding = [Line(row, f"may not look at {', '.join(keys)}: -∞") for row, keys in hidden.items() if keys]
    if given is None:
        sharing = [write.softmax(of, masked[t], s, weights[t][s]) for t, s, of in cells]
    else:
        sharing = [write.total(row, weights[t], sum(weights[t])) for t, row in enumerate(rows)]
    return [
        step("queries", rows, (), [Line("", "W_Q = I and b_Q = 0, so this is x itself")]),
        step("keys", columns, (), [Line("", "W_K = I and b_K = 0")]),
        step("values", columns, (), [Line("", "W_V = I and b_V = 0")]),
        step("scores", rows, columns, [write.products(of, q[t], k[s], scores[t][s]) for t, s, of in cells]),
        step("scaled_scores", rows, columns, scaling),
        step("masked_scores", rows, columns, hiding or [Line("", "nothing is hidden here, so the scores stay")]),
        step("weights", rows, columns, sharing),
        step("heads", rows, (), [
            Line("", "one head, and W_O = I and b_O = 0, so this is the output"),
            *(line for t, row in enumerate(rows) for line in write.products_alike([
                (f"{row}, {i + 1}", weights[t], [value[i] for value in v], mixed) for i, mixed in enumerate(heads[t])
            ])),
        ]),
    ]  # fmt: skip


def position(inputs: Inputs) -> list[Step]:
    """A position as sines and cosines."""
    place, d_model = inputs["position"], inputs["d_model"]
    encoding: list[float] = sinusoidal(torch.tensor(place), d_model, dtype=torch.float64).tolist()
    formula = "sin(pos / 10000^(2i/D)), cos(pos / 10000^(2i/D)), …"
    lines = [write.sinusoid(f"{i + 1}", place, i, d_model, value) for i, value in enumerate(encoding)]
    return [Step("position", formula, [*encoding], lines=lines)]


@torch.no_grad()
def embedding(inputs: Inputs) -> list[Step]:
    """A word's vector, its position's, and their sum."""
    vectors = inputs["table"]
    part = Embedding(len(vectors), len(vectors[inputs["word"]])).double()
    part.tokens.weight.copy_(torch.tensor(list(vectors.values()), dtype=torch.float64))
    token = torch.tensor([[list(vectors).index(inputs["word"])]])
    seen = trace(part, token, torch.tensor([inputs["position"]]), inputs["position"] + 1)
    word, place, both = (seen[name][0, 0].tolist() for name in ("token_vectors", "position_vectors", "output"))
    sums = zip(word, place, both, strict=True)
    lines = {"output": [write.total(f"{inputs['word']}, {i + 1}", [a, b], c) for i, (a, b, c) in enumerate(sums)]}
    return [
        Step(name, seen.formula(name), value, lines=lines.get(name, ()))
        for name, value in (("token_vectors", word), ("position_vectors", place), ("output", both))
    ]


@torch.no_grad()
def layer_norm(inputs: Inputs) -> list[Step]:
    """Mean, variance, the normalised vector, then scale and shift."""
    x, gamma, beta = inputs["x"], inputs["gamma"], inputs["beta"]
    part = LayerNorm(len(x), inputs["epsilon"])
    part.weight.copy_(torch.tensor(gamma))
    part.bias.copy_(torch.tensor(beta))
    seen = trace(part, torch.tensor([[x]], dtype=torch.float32))
    mean, variance = seen["mean"].item(), seen["variance"].item()
    normalized, output = seen["normalized"][0, 0].tolist(), seen["output"][0, 0].tolist()
    each = list(enumerate(zip(x, normalized, gamma, beta, output, strict=True), start=1))
    return [
        Step("x", "the vector of one token", [*x]),
        Step("mean", seen.formula("mean"), mean, lines=[write.mean("μ", x, mean)]),
        Step("variance", seen.formula("variance"), variance, lines=[write.variance("σ²", x, mean, variance)]),
        Step("normalized", seen.formula("normalized"), normalized, lines=[
            write.standardized(str(i), a, mean, variance, part.epsilon, n) for i, (a, n, *_) in each
        ]),
        Step("output", seen.formula("output"), output, lines=[
            write.scaled_and_shifted(str(i), scale, n, shift, y) for i, (_, n, scale, shift, y) in each
        ]),
    ]  # fmt: skip


def token_masks(inputs: Inputs) -> list[Step]:
    """Padding in one dimension and in two, look-ahead, and both; `hide`: padding as keys only, or as queries too."""
    names = list(inputs["tokens"])
    visible = masks.padding(torch.tensor([list(inputs["tokens"].values())]), inputs["pad"])
    pairs, ahead = masks.pairs(visible)[0], masks.look_ahead(len(names))
    combined = masks.combine(visible, ahead)
    assert combined is not None  # both were given
    both = combined[0, 0] if inputs["hide"] == "keys" else pairs & ahead
    padding = visible[0].expand_as(ahead) if inputs["hide"] == "keys" else pairs
    lines = [
        Line(name, f"{vector(a)} × {vector(b)} = {vector(c)}")
        for name, a, b, c in zip(names, *(mask.int().tolist() for mask in (ahead, padding, both)), strict=True)
    ]
    return [
        Step("padding", "1 for a real token, 0 for padding", visible[0].int().tolist(), (), names),
        Step("pairs", "1 where query and key are both real tokens", pairs.int().tolist(), names, names),
        Step("look_ahead", "1 up to and including oneself", ahead.int().tolist(), names, names),
        Step("combined", "look_ahead × padding", both.int().tolist(), names, names, lines),
    ]


def head_shapes(inputs: Inputs) -> list[Step]:
    """Multi-head attention run for the shapes of its values."""
    if inputs["n_tokens"] < 1:
        raise InputError(f"inputs.n_tokens is {inputs['n_tokens']}; give at least 1")
    part = Attention(inputs["d_model"], inputs["n_heads"])
    seen = trace(part, torch.zeros(1, inputs["n_tokens"], inputs["d_model"]))
    heads, concatenated = list(seen["heads"].shape), list(seen["concatenated"].shape)
    H, K = heads[1], heads[3]
    return [
        Step("heads", "shape", heads, (), ("batch", "head", "token", "width")),
        Step("concatenated", "shape", concatenated, (), ("batch", "token", "width")),
        Step("width", "heads × width of a head", concatenated[-1], lines=[
            write.products("width", [H], [K], concatenated[-1])
        ]),
    ]  # fmt: skip


def model_sizes(inputs: Inputs) -> list[Step]:
    """The numbers that describe a model, read off its preset and its outline."""
    config, network = preset(inputs["preset"]), on_meta(inputs["preset"])
    assert isinstance(config, TransformerConfig)
    encoder, decoder, count = config.encoder, config.decoder, size(config)
    assert encoder is not None
    assert decoder is not None
    root = 1 / next(part.scale for part in network.modules() if isinstance(part, Attention))
    parts = {name: n for name, n in count.by_part.items() if n}
    return [
        Step("d_model", "width of every token's vector", encoder.d_model),
        Step("n_heads", "heads in each attention", encoder.n_heads),
        Step("d_head", "d_k = d_v = d_model / heads", encoder.head_width, lines=[
            Line("d_k", f"{encoder.d_model} / {encoder.n_heads} = {encoder.head_width}")
        ]),
        Step("root", "√d_k, which scores are divided by", root, lines=[
            Line("√d_k", f"√{encoder.head_width} = {write.number(root)}")
        ]),
        Step("encoder_blocks", "blocks in the encoder", encoder.n_blocks),
        Step("decoder_blocks", "blocks in the decoder", decoder.n_blocks),
        Step("d_ff", "width inside the feed-forward network", encoder.d_ff),
        Step("parameters", " + ".join(parts), count.parameters, lines=[
            write.total("all", list(parts.values()), count.parameters)
        ]),
    ]  # fmt: skip


@torch.no_grad()
def one_hot(inputs: Inputs) -> list[Step]:
    """A word looked up in the table whose rows are 1 0 0 …, 0 1 0 …, 0 0 1 …"""
    words = inputs["vocabulary"]
    part = EmbeddingTable(len(words), len(words), "word")
    nn.init.eye_(part.weight)
    row = part(torch.tensor(words.index(inputs["word"])))
    return [
        Step("table", "one row for each word", part.weight.tolist(), words, words),
        Step("one_hot", f"table[{words.index(inputs['word'])}], the row of {inputs['word']}", row.tolist(), (), words),
    ]


COMPUTE: Mapping[str, Callable[[Inputs], list[Step]]] = {
    "attention": attention,
    "position": position,
    "embedding": embedding,
    "layer_norm": layer_norm,
    "masks": token_masks,
    "head_shapes": head_shapes,
    "model_sizes": model_sizes,
    "one_hot": one_hot,
}
"""An example's `compute` names one of these."""
