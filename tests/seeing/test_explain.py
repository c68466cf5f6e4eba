"""Explanations: every number of every family, recomputed from what feeds it by code that has nothing of the network's.

Tolerances: the network computes in float32, the explanation in float64 from the same inputs. Sums here have at most
some fifty terms of size about 1, each rounded by 6e-8 of it: 2e-5 leaves room for all of them to go one way, and is far
below any mistake. `agrees` has its own tolerance, added up along the very sum that it is for: below 2e-5 but where two
layers in a row have no tap (Bahdanau's first scores), there a few times that.
"""

import ast
import json
import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import cutaway
from cutaway.errors import CutawayError, InputError
from cutaway.models.build import build
from cutaway.models.config import (
    AnswerSpan,
    Classifier,
    Config,
    LanguageModel,
    MaskedLanguageModel,
    SentenceVector,
    StackConfig,
    TransformerConfig,
)
from cutaway.models.network import Network
from cutaway.parts.tap import taps
from cutaway.seeing import explain as package
from cutaway.seeing.explain import Explanation, explain_at
from cutaway.seeing.explain.expression import (
    Call,
    Dot,
    Mean,
    MeanSquare,
    Number,
    Part,
    Product,
    Quotient,
    Softmax,
    Sum,
    Variance,
    Vector,
)
from cutaway.seeing.explain.format import equation
from cutaway.seeing.trace.trace import Run, TapInfo, Trace
from tests.support import families
from tests.support.families import FAMILIES, Inputs, example_inputs, shrunk, with_stacks

CLOSE = 2e-5
PADDINGS = [None, "right", "left"]


def network_of(config: Config, seed: int = 0) -> Network:
    """One in which no bias is 0 and no γ is 1, so that forgetting one shows."""
    return families.noisy(build(config, seed), seed)


def traced(network: Network, inputs: Inputs, **options: Any) -> Trace:
    return cutaway.trace(network, *inputs.args, **inputs.options, **options)


def cells(trace: Trace, name: str, n: int, seed: int = 0) -> list[tuple[int, ...]]:
    """n random ones, the first and the last."""
    draw = random.Random(f"{name} {seed}")
    shape = trace[name].shape
    some = [tuple(draw.randrange(size) for size in shape) for _ in range(n)]
    return [*some, (0,) * len(shape), tuple(size - 1 for size in shape)]


def every(trace: Trace, n: int) -> Iterator[Explanation]:
    for name in trace:
        for at in cells(trace, name, n):
            yield explain_at(trace, name, at)


def holder(trace: Trace, name: str) -> Mapping[str, Tensor]:
    """What holds the cells of a part: values, weights or inputs."""
    return next(group for group in (trace.run.weights, trace.run.inputs, trace) if name in group)


def check(explanation: Explanation) -> None:
    said, made = explanation.value, explanation.recomputed
    where = f"{explanation.name} {explanation.at}: the network says {said}, the formula {made}"
    assert explanation.agrees, f"{where} ± {explanation.tolerance}"
    if math.isfinite(said):
        assert abs(said - made) <= CLOSE * max(1.0, abs(said)), where
        assert explanation.tolerance <= 5 * CLOSE * max(1.0, abs(said)), f"{where}: ± {explanation.tolerance}"


# Every number


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("name", FAMILIES)
def test_every_value_of_every_family(name: str, padding: Any) -> None:
    network = network_of(shrunk(name))
    trace = traced(network, example_inputs(shrunk(name), padding=padding))
    assert set(trace) == set(taps(network)), "every tap is there to be explained"
    for explanation in every(trace, 4):
        check(explanation)


def _with_head(family: str, head: Any) -> Config:
    return replace(shrunk(family), head=head)


def _stacks(family: str, **change: Any) -> Config:
    return with_stacks(shrunk(family), **change)


VARIANTS: dict[str, Config] = {
    "masked words, tied": _with_head("bert-tiny", MaskedLanguageModel()),
    "masked words, untied": _with_head("distilbert-base", MaskedLanguageModel(tied=False, activation="relu")),
    "next word, untied, bias": _with_head("gpt2", LanguageModel(tied=False, bias=True)),
    "next word, scaled, bias": _with_head("transformer-tiny", LanguageModel(scaled=True, bias=True)),
    "class, first, hidden": _with_head("bert-tiny", Classifier(n_classes=5, hidden="tanh")),
    "class, mean, relu": _with_head("distilbert-base", Classifier(n_classes=5, pooling="mean", hidden="relu")),
    "class, mean": _with_head("bert-tiny", Classifier(n_classes=5, pooling="mean")),
    "class, last, no bias": _with_head("gpt2", Classifier(n_classes=5, pooling="last", bias=False)),
    "class of an encoder-decoder": _with_head("t5-small", Classifier(n_classes=5, pooling="last", hidden="gelu_tanh")),
    "class of an image": _with_head("vit-tiny", Classifier(n_classes=5, pooling="mean", hidden="gelu")),
    "answer": _with_head("bert-tiny", AnswerSpan()),
    "vector, mean, length 1": _with_head("bert-tiny", SentenceVector(normalized=True)),
    "vector, last, hidden": _with_head("llama-15m", SentenceVector(pooling="last", hidden="silu", normalized=True)),
    "no head": _with_head("bert-tiny", None),
    "sines, then cosines": _stacks("transformer-tiny", positions="sinusoidal_halves", norm_embedding=True),
    "pre-norm, gated": _stacks("transformer-tiny", norm_place="pre", gated=True, activation="gelu", n_kv_heads=2),
    "post-norm, rms, rotary": _stacks("transformer-tiny", norm="rms", positions="rotary", norm_embedding=True),
    "sliding window": _stacks("llama-15m", window=3),
    "sliding window in one block": _stacks("gpt2", window=2, window_blocks=(1,)),
    "no positions": _stacks("bert-tiny", positions="none", qkv_bias=False),
    "two separate tables": replace(shrunk("transformer-tiny"), share_embeddings=False),
    "LSTM with additive attention": replace(shrunk("lstm-seq2seq"), attention="additive"),
    "RNN with dot attention": replace(shrunk("rnn-seq2seq"), attention="dot"),
    "both directions, fewer layers than the decoder": replace(
        shrunk("lstm-seq2seq"),
        encoder=replace(shrunk("lstm-seq2seq").encoder, bidirectional=True, backward=False),
        decoder=replace(shrunk("lstm-seq2seq").decoder, n_layers=3),
    ),
    "additive, deep, both directions": replace(
        shrunk("bahdanau-gru"),
        encoder=replace(shrunk("bahdanau-gru").encoder, n_layers=3),
        decoder=replace(shrunk("bahdanau-gru").decoder, n_layers=2),
    ),
    "a GRU that writes": replace(shrunk("gru-seq2seq"), encoder=None),
}  # fmt: skip


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_head_and_every_switch(variant: str, padding: Any) -> None:
    config = VARIANTS[variant]
    trace = traced(network_of(config), example_inputs(config, seed=1, padding=padding))
    for explanation in every(trace, 2):
        check(explanation)


def test_segments_that_are_left_out_are_the_first() -> None:
    config = shrunk("bert-tiny")
    trace = traced(network_of(config), replace(example_inputs(config), segments=None))
    for at in cells(trace, "encoder.embedding.segment_vectors", 5):
        explanation = explain_at(trace, "encoder.embedding.segment_vectors", at)
        check(explanation)
        assert explanation.parts == (Part("encoder.embedding.segments.weight", (0, at[2])),)


def test_a_row_of_padding_between_words() -> None:
    """Neither left nor right: positions count real tokens, and states go on from the last one."""
    for name in ("bert-tiny", "t5-small", "llama-15m", "lstm-seq2seq", "bahdanau-gru"):
        config = shrunk(name)
        inputs = example_inputs(config, padding="right")
        assert inputs.mask is not None
        mask = inputs.mask.clone()
        mask[1, :2], mask[2, 2] = torch.tensor([True, False]), False
        for explanation in every(traced(network_of(config), replace(inputs, mask=mask)), 4):
            check(explanation)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", ["transformer-tiny", "flan-t5-small", "bert-tiny", "llama-15m", "bahdanau-gru"])
def test_other_precisions(name: str, dtype: torch.dtype) -> None:
    """The tolerance is of the precision that the network computes in."""
    config = shrunk(name)
    trace = traced(network_of(config).to(dtype), example_inputs(config))
    for explanation in every(trace, 3):
        assert explanation.agrees, explanation
        exact = dtype == torch.float64 and not explanation.name.endswith("probabilities")  # these are float32 always
        if exact and math.isfinite(explanation.value):
            assert abs(explanation.value - explanation.recomputed) <= 1e-12 * max(1.0, abs(explanation.value))


def test_t5_puts_every_distance_into_the_networks_bucket() -> None:
    """Also those at the edge of two buckets: 16, 32 and 64 back in a T5 as it is published."""
    config = _stacks("t5-small", t5_buckets=32, t5_max_distance=128, n_blocks=1)
    tokens = torch.zeros(1, 150, dtype=torch.long)
    trace = cutaway.trace(network_of(config), tokens, tokens, keep="*.relative_bias.output")
    for side in ("encoder", "decoder"):
        name = f"{side}.relative_bias.output"
        for t, s in [(t, s) for t in (0, 75, 149) for s in range(150)]:
            explanation = explain_at(trace, name, (0, 1, t, s))
            assert explanation.value == explanation.recomputed, f"{side}, {s - t}"


@pytest.mark.parametrize("name", ["llama-15m", "llama-3.2-1b"])
def test_rotations_of_far_positions(name: str) -> None:
    config = shrunk(name)
    tokens = torch.randint(19, (1, 700), generator=torch.Generator().manual_seed(0))
    kept = ["*.queries", "*.keys", "*.rotated_queries", "*.rotated_keys"]
    trace = cutaway.trace(network_of(config), tokens, keep=kept)
    for kind in kept[2:]:
        for t in range(0, 700, 33):
            explanation = trace.explain(f"decoder.blocks.0.self_attention{kind[1:]}", token=t, width=t % 6)
            assert explanation.agrees, explanation
            assert abs(explanation.value - explanation.recomputed) < 700 * 2e-6  # the angle's own rounding in float32


# What it is made of


def _nudged(trace: Trace, part: Part, seed: int) -> Any:
    """A listener that changes the cells of a part, in whichever step of a recurrent layer they are computed."""
    generator = torch.Generator().manual_seed(seed)
    whole = torch.zeros(trace[part.of].shape)
    at = tuple(slice(None) if index is None else index for index in part.at)
    whole[at] = torch.randn(whole[at].shape, generator=generator)
    axis = trace.axes(part.of).find("T")
    calls = 0

    def listener(value: Tensor, _: str) -> Tensor:
        nonlocal calls
        if axis < 0 or value.shape[axis] == whole.shape[axis]:
            return value + whole
        t = whole.shape[axis] - 1 - calls if trace._info[part.of].last_first else calls
        calls += 1
        return value + whole.narrow(axis, t, 1)

    return listener


@pytest.mark.parametrize("name", FAMILIES)
def test_what_feeds_a_cell_feeds_it(name: str) -> None:
    """Each part exists; and if the network is given another value there, the cell changes, to what the formula says."""
    network, inputs = network_of(shrunk(name)), example_inputs(shrunk(name))
    trace = traced(network, inputs)
    draw = random.Random(name)
    for value in draw.sample(sorted(trace), min(10, len(trace))):
        real = [at for at in cells(trace, value, 30) if at[0] == 0 and trace[value][at] not in (0.0, -math.inf)]
        real = [at for at in real if "rotated" not in value or at[2] > 0]  # position 0 is not turned
        if not real:
            continue
        explanation = explain_at(trace, value, real[0])
        assert explanation.parts or "sin" in explanation.formula, f"{explanation} is made of nothing"
        for part in explanation.parts:
            found = holder(trace, part.of)
            shape = found[part.of].shape
            assert len(part.at) == len(shape), part
            assert all(index is None or 0 <= index < n for index, n in zip(part.at, shape, strict=True)), part
            along = [n for index, n in zip(part.at, shape, strict=True) if index is None]
            assert part.length is None or [part.start + part.length <= n for n in along] == [True], part
            if found is trace and network.get_submodule(part.of).replaceable:
                after = traced(network, inputs, replace={part.of: _nudged(trace, part, len(value))})
                changed = explain_at(after, value, real[0])
                assert changed.agrees, changed
                assert changed.value != explanation.value, f"{value} {real[0]} does not depend on {part}"


@pytest.mark.parametrize("name", FAMILIES)
def test_a_value_that_was_replaced_is_not_what_its_formula_gives(name: str) -> None:
    """And everything after it is explained by what was put in its place."""
    network, inputs = network_of(shrunk(name)), example_inputs(shrunk(name), padding="left")
    draw = random.Random(name)
    known = taps(network)
    for replaced in draw.sample([each for each in known if known[each].replaceable], 8):
        trace = traced(network, inputs, replace={replaced: lambda value, _: value * 1.5 + 0.25})
        for explanation in every(trace, 1):
            if explanation.name != replaced:
                assert explanation.agrees, f"{replaced} was replaced: {explanation}"
            elif math.isfinite(explanation.value):
                assert not explanation.agrees
                assert explanation.lines[-1] == f"the network has {_last_number(explanation)}, not this"


def _last_number(explanation: Explanation) -> str:
    return explanation.lines[-1].removeprefix("the network has ").removesuffix(", not this")


def test_the_parts_of_an_attention() -> None:
    trace = traced(network_of(shrunk("llama-15m")), example_inputs(shrunk("llama-15m")))
    here = "decoder.blocks.1.self_attention"
    assert trace.explain(f"{here}.scores", batch=1, head=3, query=2, key=1).parts == (
        Part(f"{here}.rotated_queries", (1, 3, 2, None), 0, 6),
        Part(f"{here}.rotated_keys", (1, 1, 1, None), 0, 6),  # 2 heads of keys for 4 of queries
    )
    assert trace.explain(f"{here}.heads", head=1, token=4, width=5).parts == (
        Part(f"{here}.weights", (0, 1, 4, None), 0, 5),
        Part(f"{here}.values", (0, 0, None, 5), 0, 5),
    )
    assert trace.explain(f"{here}.queries", head=2, token=3, width=1).parts == (
        Part("decoder.blocks.1.self_attention_norm.output", (0, 3, None), 0, 24),
        Part(f"{here}.q.weight", (13, None), 0, 24),
    )


def test_numbers_that_have_no_tap_say_what_they_were_made_of() -> None:
    config = shrunk("bahdanau-gru")
    trace = traced(network_of(config), example_inputs(config))
    score = trace.explain("decoder.attention.scores", batch=1, query=2, key=3)
    assert score.parts == (
        Part("decoder.attention.queries", (1, 2, None), 0, 12),
        Part("decoder.attention.keys", (1, 3, None), 0, 12),
        Part("decoder.attention.energy.weight", (0, None), 0, 12),
    )
    query = trace.explain("decoder.attention.queries", batch=1, token=2)
    assert Part("decoder.layers.0.hidden", (1, 1, None), 0, 12) in query.parts, "the state before this step"


def test_a_decoder_begins_where_the_encoder_ended() -> None:
    config = shrunk("bahdanau-gru")
    trace = traced(network_of(config), example_inputs(config))
    gate = trace.explain("decoder.layers.0.reset_gate", batch=1, token=0)
    assert Part("decoder.bridge.0.output", (1, None), 0, 12) in gate.parts
    assert Part("decoder.layers.0.input.weight", (0, None), 8, 20) in gate.parts, "the context stands after the word"
    first = trace.explain("decoder.bridge.0.output", batch=1)
    last = Part("encoder.forwards.0.hidden", (1, 4, None), 0, 10)
    assert last in first.parts, "of 7 tokens row 1 has 5"
    assert replace(last, of="encoder.backwards.0.hidden", at=(1, 0, None)) in first.parts


# JSON


def value_of(e: Any) -> float:
    """The JSON form evaluated as the contract says, by nothing of cutaway's."""

    def numbers(vector: Any) -> list[float]:
        assert vector["op"] == "vector"
        return [float(x) for x in vector["values"]]

    match e["op"]:
        case "number":
            return float(e["value"])
        case "sum":
            return sum(value_of(term) for term in e["terms"])
        case "product":
            return math.prod(value_of(factor) for factor in e["factors"])
        case "quotient":
            return value_of(e["over"]) / value_of(e["under"])
        case "dot":
            return sum(x * y for x, y in zip(numbers(e["a"]), numbers(e["b"]), strict=True))
        case "softmax":
            scores = numbers(e["scores"])
            return math.exp(scores[e["place"]]) / sum(map(math.exp, scores))
        case "mean":
            return sum(numbers(e["x"])) / len(numbers(e["x"]))
        case "mean_square":
            return sum(x * x for x in numbers(e["x"])) / len(numbers(e["x"]))
        case "variance":
            mean = value_of(e["mean"])
            return sum((x - mean) ** 2 for x in numbers(e["x"])) / len(numbers(e["x"]))
        case "call":
            x = value_of(e["x"])
            return {
                "exp": math.exp,
                "sqrt": math.sqrt,
                "tanh": math.tanh,
                "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
                "relu": lambda x: x if x > 0 else 0.0,
                "gelu": lambda x: x / 2 * (1 + math.erf(x / 2**0.5)),
                "gelu_tanh": lambda x: x / 2 * (1 + math.tanh((2 / math.pi) ** 0.5 * (x + 0.044715 * x**3))),
                "silu": lambda x: x / (1 + math.exp(-x)),
                "sin": math.sin,
                "cos": math.cos,
            }[e["function"]](x)  # fmt: skip
    raise AssertionError(e["op"])


def leaves(e: Any) -> Iterator[Any]:
    if isinstance(e, dict):
        if e.get("op") in ("number", "vector"):
            yield e
        for inside in e.values():
            yield from leaves(inside)
    elif isinstance(e, list):
        for inside in e:
            yield from leaves(inside)


@pytest.mark.parametrize("name", FAMILIES)
def test_json_says_the_same(name: str) -> None:
    trace = traced(network_of(shrunk(name)), example_inputs(shrunk(name), padding="left"))
    for explanation in every(trace, 2):
        data = json.loads(json.dumps(explanation.to_json(), allow_nan=False))
        made = value_of(data["expression"])
        if math.isfinite(made):
            assert abs(made - explanation.recomputed) <= 1e-12 * max(1.0, abs(made))
            assert data["recomputed"] == explanation.recomputed
        else:
            assert data["recomputed"] == data["value"] == "-inf"
        assert (data["name"], tuple(data["at"]), data["agrees"]) == (explanation.name, explanation.at, True)
        assert data["formula"] == trace.formula(explanation.name)
        assert data["text"] == explanation.text
        for leaf in leaves(data["expression"]):
            if leaf["of"] is None:
                assert leaf["at"] is None
                continue
            start, given = leaf.get("start", 0), leaf.get("values", leaf.get("value"))
            along = slice(start, start + len(given)) if leaf["op"] == "vector" else None
            at = tuple(along if index is None else index for index in leaf["at"])
            cell = holder(trace, leaf["of"])[leaf["of"]][at]
            assert cell.tolist() == ([float(x) for x in given] if along else float(given)), leaf


def test_json_by_hand() -> None:
    score = {"op": "number", "value": 2.0, "of": "a.scores", "at": [0, 1]}
    explanation = Explanation(
        "a.scaled", (0, 1), "query 1", "scores / √K", 1.0,
        Quotient(Number(2.0, "a.scores", (0, 1)), Call("sqrt", Number(4.0))), 1e-7,
    )  # fmt: skip
    data = explanation.to_json()
    assert data["expression"] == {
        "op": "quotient", "over": score,
        "under": {"op": "call", "function": "sqrt", "x": {"op": "number", "value": 4.0, "of": None, "at": None}},
    }  # fmt: skip
    assert data["parts"] == [{"of": "a.scores", "at": [0, 1]}]
    assert data["lines"] == ["a.scaled, query 1", "scores / √K", "2 / √4 = 1", "the network has the same"]


def test_numbers_that_are_none() -> None:
    nothing = (-math.inf, -math.inf)
    cases = [
        (Softmax(Vector(nothing), 0), "nan"),
        (Quotient(Number(0.0), Number(0.0)), "nan"),
        (Quotient(Number(-1.0), Number(0.0)), "-inf"),
        (Sum((Number(math.inf), Number(-math.inf))), "nan"),
        (Call("sqrt", Number(-1.0)), "nan"),
        (Call("sin", Number(math.inf)), "nan"),
        (Call("exp", Number(1000.0)), "inf"),
        (Softmax(Vector((1000.0, 1000.0)), 1), 0.5),
        (Call("sigmoid", Number(-1000.0)), 0.0),
        (Call("sigmoid", Number(1000.0)), 1.0),
    ]
    for expression, expected in cases:
        explanation = Explanation("x", (0,), "", "", float(expected), expression, 1e-7)
        assert explanation.to_json()["recomputed"] == expected
        assert explanation.agrees


# Written out


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        (Dot(Vector((0.12, 0.07)), Vector((0.3, -1.1))), "0.12·0.3 + 0.07·(-1.1) = -0.041"),
        (
            Sum((Dot(Vector((0.5,) * 63), Vector((2.0,) * 62 + (-0.25,))), Number(-0.125, "b", (0,)))),
            "0.5·2 + 0.5·2 + … 60 more … + 0.5·(-0.25) - 0.125 = 61.75",
        ),
        (Dot(Vector((-1.0, 2.0, -3.0)), Vector((1.0, 2.0, 3.0))), "-1·1 + 2·2 - 3·3 = -6"),
        (Quotient(Number(6.0), Call("sqrt", Number(4.0))), "6 / √4 = 3"),
        (Quotient(Number(-6.0), Call("sqrt", Number(4.0))), "-6 / √4 = -3"),
        (Softmax(Vector((3.0, 2.0, -math.inf)), 0), "e^3 / (e^3 + e^2) = 0.7311"),
        (Softmax(Vector((3.0, 2.0, -math.inf)), 2), "e^-∞ / (e^3 + e^2) = 0"),
        (Sum((Number(0.5), Number(-math.inf))), "0.5 - ∞ = -∞"),
        (Mean(Vector((2.0, -4.0, 6.0))), "(2 - 4 + 6) / 3 = 1.3333"),
        (MeanSquare(Vector((2.0, -4.0))), "(2² + (-4)²) / 2 = 10"),
        (Variance(Vector((2.0, 4.0)), Number(3.0)), "((2 - 3)² + (4 - 3)²) / 2 = 1"),
        (Variance(Vector((2.0, -4.0)), Number(-1.0)), "((2 + 1)² + (-4 + 1)²) / 2 = 9"),
        (
            Quotient(
                Sum((Number(2.0), Product((Number(-1.0), Number(5.0))))),
                Call("sqrt", Sum((Number(5.0), Number(1e-12, text="0.000000000001")))),
            ),
            "(2 - 5) / √(5 + 0.000000000001) = -1.3416",
        ),
        (
            Sum((
                Product((Sum((Number(1.0), Product((Number(-1.0), Number(0.25))))), Number(-0.5))),
                Product((Number(0.25), Number(2.0))),
            )),
            "(1 - 0.25)·(-0.5) + 0.25·2 = 0.125",
        ),
        (Call("sigmoid", Sum((Dot(Vector((1.0,)), Vector((2.0,))), Number(-2.0)))), "σ(1·2 - 2) = 0.5"),
        (Call("relu", Number(-3.0)), "max(0, -3) = 0"),
        (Product((Number(2.0), Call("cos", Number(0.0, text="0 / 10000^(2/4)")))), "2·cos(0 / 10000^(2/4)) = 2"),
        (Product((Number(-1.0), Product((Number(2.0), Number(3.0))))), "-(2·3) = -6"),
        (Number(0.00001234), "0.0000123 = 0.0000123"),
        (Number(0.25, "encoder.blocks.0.output", (0, 3, 5)), "encoder.blocks.0.output[0, 3, 5] = 0.25"),
    ],
)  # fmt: skip
def test_written_out(expression: Any, text: str) -> None:
    explanation = Explanation("x", (0,), "", "", 0.0, expression, 1e-7)
    assert explanation.text == equation(expression, explanation.recomputed) == text


def by_hand() -> Trace:
    """One head of width 2 that reads [1, 2] and [3, -1]."""
    stack = StackConfig(vocabulary=5, n_blocks=1, d_model=2, n_heads=1, d_ff=2, positions="none")
    q = torch.tensor([[0.5, 0.25], [1.0, -1.0]])
    weights = {
        f"encoder.blocks.0.self_attention.q.{name}": value
        for name, value in (("weight", q), ("bias", torch.tensor([0.0, 0.5])))
    }
    facts = {
        "encoder.blocks.0.input": TapInfo("BTD", "x"),
        "encoder.blocks.0.self_attention.queries": TapInfo("BHTK", "x W_Q + b_Q"),
        "encoder.blocks.0.self_attention.masked_scores": TapInfo("BHTS", "scaled_scores + bias"),
        "encoder.blocks.0.self_attention.weights": TapInfo("BHTS", "softmax(masked_scores)"),
    }
    trace = Trace(facts, Run(weights, TransformerConfig(encoder=stack), {"tokens": torch.tensor([[1, 2]])}))
    values = (
        [[[1.0, 2.0], [3.0, -1.0]]],
        [[[[1.0, -0.5], [1.25, 4.5]]]],
        [[[[3.0, 2.0], [0.0, 0.0]]]],
        [[[[0.7310586, 0.2689414], [0.5, 0.5]]]],
    )
    for name, value in zip(facts, values, strict=True):
        trace.hear(torch.tensor(value), name)
    return trace


def test_an_explanation_by_hand() -> None:
    trace = by_hand()
    query = trace.explain("encoder.blocks.0.self_attention.queries", token=1, width=1)
    assert str(query) == (
        "encoder.blocks.0.self_attention.queries, head 0, token 1, width 1\n"
        "x W_Q + b_Q\n"
        "3·1 - 1·(-1) + 0.5 = 4.5\n"
        "the network has the same"
    )
    assert (query.value, query.recomputed, query.at) == (4.5, 4.5, (0, 0, 1, 1))
    weight = trace.explain("encoder.blocks.0.self_attention.weights", query=0, key=0)
    assert weight.text == "e^3 / (e^3 + e^2) = 0.7311"


def test_tokens_are_named() -> None:
    model = cutaway.load("en-fr")
    trace = model.trace("The cat sat.", "Le chat")
    explanation = trace.explain("decoder.blocks.0.cross_attention.weights", head=1, query=1, key=2)
    assert explanation.agrees
    assert explanation.where == f"head 1, query 1 ({trace.words.target[1]}), key 2 ({trace.words.source[2]})"


# The place


def test_places_by_word_and_by_letter() -> None:
    config = shrunk("llama-15m")
    trace = traced(network_of(config), example_inputs(config))
    here = "decoder.blocks.0.self_attention"
    assert trace.explain(f"{here}.weights", batch=1, head=2, query=3, key=1).at == (1, 2, 3, 1)
    assert trace.explain(f"{here}.weights", B=1, H=2, T=3, S=1).at == (1, 2, 3, 1)
    assert trace.explain(f"{here}.weights", token=-1).at == (0, 0, 4, 0)
    assert trace.explain(f"{here}.keys", head=1, token=3, width=5).at == (0, 1, 3, 5)
    assert trace.explain(f"{here}.keys", G=1, key=3, K=5).at == (0, 1, 3, 5)
    assert trace.explain("decoder.blocks.0.feedforward.hidden", token=2, width=19).at == (0, 2, 19)
    assert trace.explain("head.vocabulary.logits", query=2, word=-1).at == (0, 2, 18)
    assert trace.explain("decoder.final_norm.mean_square", token=2).at == (0, 2, 0)
    vit = shrunk("vit-tiny")
    trace = traced(network_of(vit), example_inputs(vit))
    assert trace.explain("encoder.embedding.pixels", token=8, width=47).at == (0, 8, 47)
    assert trace.explain("head.logits", batch=2, **{"class": 10}).at == (2, 10)
    config = _with_head("bert-tiny", AnswerSpan())
    assert traced(network_of(config), example_inputs(config)).explain("head.logits", token=2, end=1).at == (0, 2, 1)


@pytest.mark.parametrize(
    ("name", "place", "message"),
    [
        ("*.weigths", {}, r"no value '\*\.weigths'"),
        ("*.weights", {"layer": 0}, r"'.*\.weights' has no axis 'layer'; it has batch, head, query, key \(BHTS\)"),
        ("*.weights", {"width": 0}, r"'.*\.weights' has no axis 'width'; it has batch, head, query, key \(BHTS\)"),
        ("*.keys", {"query": 0}, r"'.*\.keys' has no axis 'query'; it has batch, head, key, width \(BGSK\)"),
        ("*.weights", {"head": 4}, r"head=4 is outside '.*\.weights': count from 0 to 3"),
        ("*.weights", {"S": -6}, r"S=-6 is outside '.*\.weights': count from 0 to 4"),
        ("*.weights", {"head": 1.0}, r"head is 1\.0 \(float\); give a whole number"),
        ("*.weights", {"head": True}, r"head is True \(bool\); give a whole number"),
        ("*.weights", {"query": 1, "T": 2}, r"query and T are the same axis of '.*\.weights'; give one of them"),
        ("*_norm.mean", {"1": 1}, r"1=1 is outside '.*_norm\.mean': its only index is 0"),
    ],
)
def test_a_wrong_place_is_one_sentence(name: str, place: dict[str, Any], message: str) -> None:
    trace = traced(network_of(shrunk("gpt2")), example_inputs(shrunk("gpt2")))
    whole = next((each for each in trace if each.endswith(name.removeprefix("*"))), name)
    with pytest.raises(InputError, match=message) as caught:
        trace.explain(whole, **place)
    assert "\n" not in str(caught.value)


def test_a_wrong_index_is_one_sentence() -> None:
    trace = by_hand()
    name = "encoder.blocks.0.self_attention.weights"
    with pytest.raises(InputError, match=r"'.*\.weights' has 4 axes \(BHTS\); \[0, 1\] gives 2"):
        explain_at(trace, name, (0, 1))
    with pytest.raises(InputError, match=r"key=2 is outside '.*\.weights': count from 0 to 1"):
        explain_at(trace, name, (0, 0, 0, 2))


# What is missing


def test_a_value_that_was_not_kept_is_named() -> None:
    config = shrunk("transformer-tiny")
    trace = traced(network_of(config), example_inputs(config), keep=["*.weights", "*.heads"])
    here = "decoder.blocks.0.cross_attention"
    message = rf"'{here}\.weights' is computed from '{here}\.masked_scores', which this trace did not keep; trace again"
    with pytest.raises(InputError, match=message):
        trace.explain(f"{here}.weights")
    with pytest.raises(
        InputError, match=rf"'{here}\.heads' is computed from '{here}\.values', which this trace did not"
    ):
        trace.explain(f"{here}.heads")
    with pytest.raises(InputError, match="no value"):
        trace.explain(f"{here}.scores")


def test_a_saved_trace_explains_what_needs_no_weights(tmp_path: Path) -> None:
    config = shrunk("t5-small")
    trace = Trace.load(traced(network_of(config), example_inputs(config, padding="left")).save(tmp_path))
    here = "encoder.blocks.0.self_attention"
    for value in ("scores", "scaled_scores", "masked_scores", "weights", "heads", "concatenated"):
        for at in cells(trace, f"{here}.{value}", 3):
            check(explain_at(trace, f"{here}.{value}", at))
    for name, weight in (
        (f"{here}.queries", f"{here}.q.weight"),
        ("encoder.embedding.token_vectors", "encoder.embedding.tokens.weight"),
        ("encoder.final_norm.output", "encoder.final_norm.weight"),
        ("encoder.relative_bias.output", "encoder.relative_bias.weight"),
        ("head.vocabulary.logits", "decoder.embedding.tokens.weight"),
    ):
        message = f"'{name}' is computed from the weight '{weight}', which this trace does not have"
        with pytest.raises(InputError, match=message):
            trace.explain(name)
    trace.run.inputs = {}
    with pytest.raises(InputError, match="token_vectors' is computed from inputs, which this trace does not have"):
        trace.explain("encoder.embedding.token_vectors")


def test_a_part_of_a_network_does_not_say_what_feeds_it() -> None:
    network = network_of(shrunk("gpt2"))
    assert isinstance(network.decoder, torch.nn.Module)
    block = network.decoder.blocks[0]
    trace = cutaway.trace(block.self_attention, torch.randn(1, 3, 24))
    with pytest.raises(InputError, match="this is the trace of one part of a network, .*; trace the whole network"):
        trace.explain("weights")


def test_a_value_without_a_rule_is_one_sentence() -> None:
    trace = by_hand()
    trace._info["encoder.blocks.0.self_attention.sharpness"] = TapInfo("BT", "?")
    trace.hear(torch.zeros(1, 2), "encoder.blocks.0.self_attention.sharpness")
    with pytest.raises(CutawayError, match="there is no rule for 'encoder.blocks.0.self_attention.sharpness'"):
        trace.explain("encoder.blocks.0.self_attention.sharpness")


# Whose arithmetic it is


def test_it_shares_no_code_with_the_network() -> None:
    """Nothing of parts, nothing of models but the configs; of torch only the tensors that numbers are taken from."""
    folder = Path(package.__file__).parent
    files = sorted(folder.glob("*.py"))
    assert len(files) > 10
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{file.name}: imports are whole names here"
                names = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
            for name in names:
                assert not name.startswith("cutaway.parts"), f"{file.name} imports {name}"
                assert name != "cutaway.models", f"{file.name} imports {name}"
                if name.startswith("cutaway.models"):
                    assert name.startswith("cutaway.models.config"), f"{file.name} imports {name}"
                if name.startswith(("torch", "numpy", "cutaway.kernels")):
                    assert file.name == "source.py", f"{file.name} imports {name}"
                    assert name in ("torch", "torch.Tensor"), f"{file.name} imports {name}"
            if file.name == "source.py" and isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                assert node.value.id != "torch" or node.attr == "finfo", f"source.py calls torch.{node.attr}"
