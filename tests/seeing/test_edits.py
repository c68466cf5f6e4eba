"""Edits: each equals a network that was built without the thing, over all families; none leaves a trace of itself.

Tolerances: both sides do the same float32 arithmetic, some of it in another order or by another kernel; sums have a few
hundred terms of size about 1. Where the very same operations run, equality is exact.
"""

import copy
import dataclasses
import json
import math
import threading
from collections.abc import Callable
from fnmatch import fnmatchcase
from functools import cache, partial
from typing import Any

import pytest
import torch
from torch import Tensor

import cutaway
from cutaway.errors import CutawayError, InputError
from cutaway.generation import Generation
from cutaway.model import Model
from cutaway.models.build import build
from cutaway.models.config import TransformerConfig
from cutaway.models.network import Network
from cutaway.parts.attention import Attention
from cutaway.parts.block import Block
from cutaway.parts.stack import Stack
from cutaway.parts.tap import listening, taps
from cutaway.seeing.interventions.compare import run
from cutaway.seeing.interventions.edits import (
    Edit,
    Off,
    Patch,
    Replace,
    Scale,
    Set,
    Zero,
    edits_of,
    listeners,
    read_edits,
    switches,
)
from cutaway.seeing.trace.trace import TapInfo, Trace
from tests.support import small_models as small
from tests.support.families import (
    FAMILIES,
    TRANSFORMERS,
    Inputs,
    example_inputs,
    forward,
    noisy_network,
    real,
    shrunk,
    with_stacks,
)
from tests.support.small_models import headed, tokenizer
from tests.support.threads import at_once

CLOSE = {"rtol": 2e-5, "atol": 2e-5}
SWITCHES: dict[str, list[str]] = {
    "transformer-tiny": ["scaling", "mask", "positions", "residual", "block"],
    "t5-small": ["mask", "positions", "residual", "block"],
    "flan-t5-small": ["mask", "positions", "residual", "block"],
    "bert-tiny": ["scaling", "positions", "residual", "block"],
    "distilbert-base": ["scaling", "positions", "residual", "block"],
    "gpt2": ["scaling", "mask", "positions", "residual", "block"],
    "llama-15m": ["scaling", "mask", "positions", "residual", "block"],
    "llama-3.2-1b": ["scaling", "mask", "positions", "residual", "block"],
    "vit-tiny": ["scaling", "positions", "residual", "block"],
}


@cache
def model(name: str) -> Model:
    """One for all tests: edits leave no trace on it."""
    return small.model(name)


def plain(network: Network, inputs: Inputs) -> Trace:
    return edited(network, inputs)


def edited(network: Network, inputs: Inputs, *edits: Any) -> Trace:
    """Every value, so that all runs take the same, explicit path and can be compared bit by bit."""
    found = Trace({name: TapInfo.of(tap) for name, tap in taps(network).items()})
    with (
        torch.no_grad(),
        listening(network, listeners(network, edits_of(edits))),
        listening(network, {"*": found.hear}),
    ):
        found.output = network(*inputs.args, **inputs.options)
    return found


def assert_same(found: Trace, expected: Tensor, inputs: Inputs, **close: float) -> None:
    assert found.output is not None
    torch.testing.assert_close(real(found.output, inputs), real(expected, inputs), **(close or CLOSE))


def assert_changes(found: Trace, network: Network, inputs: Inputs) -> None:
    """The edit did something, so that a test that compares it does not compare two untouched runs."""
    assert found.output is not None
    assert not torch.allclose(real(found.output, inputs), real(forward(network, inputs), inputs), atol=1e-4)


@pytest.mark.parametrize("padding", [None, "right", "left"])
@pytest.mark.parametrize("name", TRANSFORMERS)
def test_a_head_zeroed_is_its_columns_of_the_last_projection_zeroed(name: str, padding: Any) -> None:
    network, inputs = noisy_network(shrunk(name)), example_inputs(shrunk(name), padding=padding)
    attentions = {each: part for each, part in network.named_modules() if isinstance(part, Attention)}
    assert attentions
    for place, attention in attentions.items():
        without, head = copy.deepcopy(network), len(place) % attention.n_heads
        out, width = without.get_submodule(f"{place}.out"), attention.out.in_features // attention.n_heads
        with torch.no_grad():
            out.weight[:, head * width : (head + 1) * width] = 0
        found = edited(network, inputs, Zero(f"{place}.heads", head))
        assert_same(found, forward(without, inputs), inputs)
        assert_changes(found, network, inputs)


@pytest.mark.parametrize("name", [name for name, has in SWITCHES.items() if "scaling" in has])
def test_scaling_off_is_a_network_that_does_not_scale(name: str) -> None:
    config, inputs = shrunk(name), example_inputs(shrunk(name))
    network = noisy_network(config)
    assert isinstance(config, TransformerConfig)
    without = build(with_stacks(config, scale_scores=False)).eval()
    without.load_state_dict(network.state_dict())
    found = edited(network, inputs, "scaling")
    assert_same(found, forward(without, inputs), inputs)
    assert_changes(found, network, inputs)


@pytest.mark.parametrize("padding", [None, "right"])
@pytest.mark.parametrize("name", [name for name, has in SWITCHES.items() if "mask" in has])
def test_mask_off_is_a_decoder_that_is_not_causal(name: str, padding: Any) -> None:
    config, inputs = shrunk(name), example_inputs(shrunk(name), padding=padding)
    network = noisy_network(config)
    without = copy.deepcopy(network)
    assert isinstance(without.decoder, Stack)
    without.decoder.causal = False
    found = edited(network, inputs, "mask")
    # nothing is hidden any more, padding neither: the other network is given no mask for its decoder
    hidden = "target_mask" if inputs.target is not None else "mask"
    unhidden = {key: value for key, value in inputs.options.items() if key != hidden}
    with torch.no_grad():
        expected = without(*inputs.args, **unhidden)
    assert found.output is not None
    torch.testing.assert_close(found.output, expected, **CLOSE)
    assert_changes(found, network, inputs)


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_positions_off_is_a_network_without_positions(name: str) -> None:
    config, inputs = shrunk(name), example_inputs(shrunk(name))
    network = noisy_network(config)
    assert isinstance(config, TransformerConfig)
    without = copy.deepcopy(network)
    if config.last.positions in ("learned", "t5_bias"):
        with torch.no_grad():
            for key, weight in without.named_parameters():
                if "embedding.positions" in key or "relative_bias" in key:
                    weight.zero_()
    else:
        without = build(with_stacks(config, positions="none")).eval()
        without.load_state_dict(network.state_dict())
    found = edited(network, inputs, "positions")
    assert_same(found, forward(without, inputs), inputs)
    assert_changes(found, network, inputs)


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_residual_off_is_a_block_that_does_not_add(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    network, inputs = noisy_network(shrunk(name)), example_inputs(shrunk(name))
    found = edited(network, inputs, "residual")
    assert_changes(found, network, inputs)

    def without(block: Block, _: Tensor, y: Tensor, __: Any, norm: Callable[[Tensor], Tensor]) -> Tensor:
        return norm(y) if block.norm_place == "post" else y

    monkeypatch.setattr(Block, "add_and_norm", without)
    assert_same(found, forward(network, inputs), inputs)


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_block_off_is_a_stack_without_the_block(name: str) -> None:
    network, inputs = noisy_network(shrunk(name)), example_inputs(shrunk(name))
    for side in ("encoder", "decoder"):
        stack = getattr(network, side)
        for i in range(0 if stack is None else len(stack.blocks)):
            without = copy.deepcopy(network)
            del getattr(without, side).blocks[i]
            found = edited(network, inputs, Off("block", f"{side}.blocks.{i}"))
            assert_same(found, forward(without, inputs), inputs)
            assert_changes(found, network, inputs)


@pytest.mark.parametrize(
    ("cell", "gate", "row"), [("gru", "update_gate", 1), ("gru", "reset_gate", 0), ("lstm", "forget_gate", 1)]
)
def test_a_gate_zeroed_is_a_gate_that_never_opens(cell: str, gate: str, row: int) -> None:
    """σ(-∞) = 0: a bias of -1e9 on the gate's rows does the same."""
    config, inputs = shrunk(f"{cell}-seq2seq"), example_inputs(shrunk(f"{cell}-seq2seq"), padding="left")
    network = noisy_network(config)
    without = copy.deepcopy(network)
    layer = without.get_submodule("decoder.layers.0")
    with torch.no_grad():
        layer.input.bias[row * layer.d_hidden : (row + 1) * layer.d_hidden] = -1e9
    found = edited(network, inputs, Zero(f"decoder.layers.0.{gate}"))
    assert_same(found, forward(without, inputs), inputs)
    assert_changes(found, network, inputs)


@pytest.mark.parametrize("name", FAMILIES)
def test_values_of_another_run_give_its_output(name: str) -> None:
    """What all later values are computed from is patched, so nothing of this run is left."""
    config = shrunk(name)
    network = noisy_network(config)
    here, there = (example_inputs(config, seed, padding=None) for seed in (0, 1))
    other = plain(network, there)
    wanted = (
        "*.blocks.*.output", "encoder.output", "*.hidden", "*.cell_state", "decoder.embedding.output", "*.attention.keys"
    )  # fmt: skip
    known = {each: tap for each, tap in taps(network).items() if tap.replaceable}
    edits = [Patch(each, other) for each in known if any(fnmatchcase(each, pattern) for pattern in wanted)]
    found = edited(network, here, *edits)
    assert other.output is not None
    assert_same(found, other.output, here, rtol=0, atol=0)
    for edit in edits:
        assert torch.equal(found[edit.value], other[edit.value]), edit.value


@pytest.mark.parametrize("name", FAMILIES)
def test_every_value_can_be_scaled_set_and_patched_and_nothing_stays(name: str) -> None:
    config = shrunk(name)
    if config.kind == "transformer":  # whose blocks are alike
        config = with_stacks(config, n_blocks=1)
    network, inputs = noisy_network(config), example_inputs(config, padding="left")
    before = plain(network, inputs)
    weights = {key: value.clone() for key, value in network.state_dict().items()}
    for each, tap in taps(network).items():
        if not tap.replaceable:
            continue
        at = tuple(n - 1 for n in before[each].shape)
        cell = edited(network, inputs, Set(each, at, 0.25))[each]
        assert cell[at] == 0.25, each
        if config.kind == "transformer":
            assert int((cell != before[each]).sum()) == 1, f"{each}: only one cell is another"
            scaled = edited(network, inputs, Scale(each, 0.5))[each]
            assert torch.equal(scaled, before[each] * 0.5), each
        else:  # a step changes those after it
            assert not edited(network, inputs, Zero(each))[each].any(), each
        patched = edited(network, inputs, Patch(each, before)).output
        assert torch.equal(real(patched, inputs), real(before.output, inputs)), each  # type: ignore[arg-type]
    after = plain(network, inputs)
    assert all(torch.equal(after[each], before[each]) for each in before)
    assert all(torch.equal(value, weights[key]) for key, value in network.state_dict().items())


@pytest.mark.parametrize("name", ["gru-seq2seq", "bahdanau-gru", "luong-gru", "awd-lstm"])
def test_a_cell_of_a_recurrent_layer_is_set_at_its_own_time(name: str) -> None:
    """Also in a layer that reads from the end; what was computed before it is as it was."""
    config, inputs = shrunk(name), example_inputs(shrunk(name), padding=None)
    network = noisy_network(config)
    before = plain(network, inputs)
    for each, tap in taps(network).items():
        if tap.axes != "BTD" or not each.endswith("hidden"):
            continue
        found = edited(network, inputs, Set(each, (1, 3, 2), 9.0))[each]
        untouched = slice(4, None) if tap.last_first else slice(0, 3)
        assert found[1, 3, 2] == 9.0
        assert torch.equal(found[:, untouched], before[each][:, untouched]), each
        assert torch.equal(found[0], before[each][0]), "another row"
        later = slice(0, 3) if tap.last_first else slice(4, None)
        assert not torch.equal(found[1, later], before[each][1, later])


def test_a_weight_that_is_set_leaves_the_rest_of_its_row_to_the_others() -> None:
    config = shrunk("transformer-tiny")
    network, inputs = noisy_network(config), example_inputs(config, padding=None)
    name = "decoder.blocks.0.cross_attention.weights"
    before = plain(network, inputs)[name]
    found = edited(network, inputs, Set(name, (1, 2, 3, 4), 0.9, renormalise=True))[name]
    row, old = found[1, 2, 3].double(), before[1, 2, 3].double()
    others = [i for i in range(7) if i != 4]
    assert math.isclose(row.sum(), 1.0, abs_tol=1e-6)
    assert row[4] == pytest.approx(0.9, abs=1e-7)
    assert (row[others] / row[others].sum()).tolist() == pytest.approx(
        (old[others] / old[others].sum()).tolist(), abs=1e-6
    )
    assert int((found != before).sum()) == 7, "one row"
    only = edited(network, inputs, Set(name, (1, 2, 3, 4), 0.9))[name]
    assert int((only != before).sum()) == 1
    whole = edited(network, inputs, Set(name, (1, 2, 3, 4), 1.0, renormalise=True))[name][1, 2, 3]
    assert whole.tolist() == [0, 0, 0, 0, 1, 0, 0]


def test_edits_are_made_in_their_order_and_see_each_other() -> None:
    config = shrunk("gpt2")
    network, inputs = noisy_network(config), example_inputs(config, padding=None)
    name = "decoder.blocks.0.self_attention.scaled_scores"
    scores = plain(network, inputs)["decoder.blocks.0.self_attention.scores"]
    doubled = edited(network, inputs, Off("scaling", "decoder.blocks.0*"), Scale(name, 2.0))[name]
    assert torch.equal(doubled, scores * 2)
    last = edited(network, inputs, Scale(name, 2.0), Off("scaling", "decoder.blocks.0*"))[name]
    assert torch.equal(last, scores)
    # a switch reads what other edits have made of the value it puts in place, whatever their order
    at = "decoder.blocks.0"
    found = edited(network, inputs, Off("block", at), Zero(f"{at}.input"))
    assert not found[f"{at}.output"].any()


def test_hidden_scores_stay_hidden_when_they_are_scaled() -> None:
    network, inputs = noisy_network(shrunk("gpt2")), example_inputs(shrunk("gpt2"), padding=None)
    name = "decoder.blocks.0.self_attention.masked_scores"
    found = edited(network, inputs, Scale(name, 0.0))
    seen = torch.ones(5, 5).tril().bool()
    assert (found[name][..., ~seen] == -math.inf).all()
    weights = found["decoder.blocks.0.self_attention.weights"]
    assert torch.equal(weights, (seen / seen.sum(-1, keepdim=True)).expand_as(weights)), "even, over what is seen"


@pytest.mark.parametrize("name", FAMILIES)
def test_switches_are_those_a_model_has(name: str) -> None:
    network = noisy_network(shrunk(name))
    has = SWITCHES.get(name, [])
    assert switches(network) == has
    for what in ("scaling", "mask", "positions", "residual", "block"):
        if what not in has:
            with pytest.raises(
                InputError, match=f"'{what}' is no switch of this model; .*{has[0] if has else 'by name'}"
            ):
                listeners(network, edits_of(what))


def test_where_narrows_a_switch() -> None:
    network, inputs = noisy_network(shrunk("transformer-tiny")), example_inputs(shrunk("transformer-tiny"))
    before = plain(network, inputs)
    for where in ("encoder", "encoder.*", "encoder.embedding"):
        found = edited(network, inputs, Off("positions", where))
        assert not found["encoder.embedding.position_vectors"].any()
        assert torch.equal(found["decoder.embedding.output"], before["decoder.embedding.output"])
    found = edited(network, inputs, Off("residual", "decoder.blocks.1"))
    assert torch.equal(found["decoder.blocks.0.output"], before["decoder.blocks.0.output"])
    assert torch.equal(found["decoder.blocks.1.feedforward_add"], found["decoder.blocks.1.feedforward.output"])


def test_threads_with_different_edits_do_not_mix() -> None:
    config = shrunk("transformer-tiny")
    network, inputs = noisy_network(config), example_inputs(config)
    edits = [Zero("*.heads", 0), Zero("*.heads", 1), Off("scaling"), Off("mask"), Off("residual"), Off("positions")]
    alone = [edited(network, inputs, edit).output for edit in edits]
    untouched = forward(network, inputs)
    wrong: list[str] = []
    barrier = threading.Barrier(len(edits) + 1)

    def work(i: int) -> None:
        barrier.wait()
        for _ in range(6):
            found = forward(network, inputs) if i == len(edits) else edited(network, inputs, edits[i]).output
            expected = untouched if i == len(edits) else alone[i]
            if found is None or expected is None or not torch.equal(found, expected):
                wrong.append(str(i))

    at_once(*(partial(work, i) for i in range(len(edits) + 1)))
    assert not wrong


# ---- a model's run


@pytest.mark.parametrize("name", ["transformer-tiny", "t5-small", "bahdanau-gru", "luong-gru", "lstm-seq2seq"])
@pytest.mark.parametrize("beams", [1, 3])
def test_what_is_written_under_edits_is_what_an_edited_network_writes(name: str, beams: int) -> None:
    """The independent side: weights that are zeroed for good, decoded with a cache."""
    made = model(name)
    other = copy.deepcopy(made)
    generation = Generation(max_new_tokens=8, beams=beams)
    with torch.no_grad():
        if name in TRANSFORMERS:
            attention = other.network.get_submodule("decoder.blocks.0.cross_attention")
            width = attention.out.in_features // attention.n_heads
            attention.out.weight[:, width : 2 * width] = 0
            edit: Edit = Zero("decoder.blocks.0.cross_attention.heads", 1)
        else:
            layer = other.network.get_submodule("decoder.layers.0")
            layer.input.bias[layer.d_hidden : 2 * layer.d_hidden] = -1e9  # σ(-1e9) = 0
            edit = Zero(f"decoder.layers.0.{'forget_gate' if 'lstm' in name else 'update_gate'}")
    found = run(made, "The cat sat.", [edit], generation=generation)
    expected = other.trace("The cat sat.", generation=generation)
    assert expected.search is not None
    assert found.changed.search is not None
    assert found.changed.search.written[0].ids == expected.search.written[0].ids
    alone = made.trace("The cat sat.", generation=generation)
    assert found.original.search == alone.search
    if name in TRANSFORMERS:
        torch.testing.assert_close(found.changed.output, expected.output, **CLOSE)
    assert found.after.text == made.tokenizer.decode(found.changed.search.written[0].ids)  # type: ignore[union-attr]


@pytest.mark.parametrize("beams", [1, 2])
@pytest.mark.parametrize("name", ["transformer-tiny", "bahdanau-gru", "luong-gru"])
def test_a_cell_beyond_the_end_waits_until_it_exists(name: str, beams: int) -> None:
    """Each step of a search must see the weight at row 3 once there are four tokens: the tokens up to there are the
    original's, and the trace of the whole holds the weight."""
    made = model(name)
    generation = Generation(max_new_tokens=8, min_new_tokens=8, beams=beams)
    if name == "transformer-tiny":
        weights, at = "decoder.blocks.1.cross_attention.weights", (0, 2, 3, 1)
    else:
        weights, at = "decoder.attention.weights", (0, 3, 1)
    logits = Set("head.vocabulary.logits", (0, 4, 77), 60.0)  # and at place 4 the model is made to say token 77
    found = run(made, "The cat sat.", [Set(weights, at, 0.75), logits], generation=generation)
    assert found.changed[weights][at] == 0.75
    written = found.changed.search.written[0].ids  # type: ignore[union-attr]
    assert written[4] == 77
    alone = run(made, "The cat sat.", [Set(weights, (*at[:-2], 30, 1), 0.75)], generation=generation)
    assert alone.before == alone.after, "place 30 never comes"
    assert alone.first is None
    # greedy: each token is the likeliest of the final trace, so every step saw the edits that the trace shows
    if beams == 1:
        allowed = found.changed.output[0, :-1].clone()  # type: ignore[index]
        allowed[:, list(made.usage.never)] = -math.inf
        allowed[: 8 - 1, list(made.usage.end)] = -math.inf
        assert tuple(allowed.argmax(-1).tolist()[:8]) == written[:8]


def test_mask_off_while_writing_sees_only_what_is_there() -> None:
    made = model("gpt2")
    found = run(made, "The cat", ["mask"], generation=Generation(max_new_tokens=6))
    assert (found.changed["decoder.blocks.0.self_attention.masked_scores"] > -math.inf).all()
    n = len(found.changed.search.written[0].ids)  # type: ignore[union-attr]
    assert n == 6
    prompt = found.changed.run.inputs["tokens"][:, :-n]
    for i in range(n):  # token by token, each from a network that looks both ways
        read = torch.cat((prompt, found.changed.run.inputs["tokens"][:, prompt.shape[1] : prompt.shape[1] + i]), dim=1)
        logits = cutaway.trace(made.network, read, replace=listeners(made.network, [Off("mask")])).output[0, -1]  # type: ignore[index]
        logits[list(made.usage.never)] = -math.inf
        assert int(logits.argmax()) == found.changed.search.written[0].ids[i]  # type: ignore[union-attr]


def test_a_patch_between_texts_that_are_written() -> None:
    """The encoder's values of another text: what is written is what that text gives."""
    made = model("transformer-tiny")
    generation = Generation(max_new_tokens=7)
    other = made.trace("A dog ate.", generation=generation)
    here = "The cat sat."
    assert len(made.trace(here).words.source) == len(other.words.source)
    edits = [Patch("encoder.blocks.2.output", other)]
    found = run(made, here, edits, generation=generation)
    assert found.changed.search.written[0].ids == other.search.written[0].ids  # type: ignore[union-attr]
    assert torch.equal(found.changed.output, other.output)  # type: ignore[arg-type]
    # a decoder's values, of a longer text: the places that both have
    short = run(made, here, [Patch("decoder.blocks.1.output", other)], generation=Generation(max_new_tokens=3))
    assert torch.equal(short.changed["decoder.blocks.1.output"], other["decoder.blocks.1.output"][:, :4])


def test_what_is_no_number_is_no_agreement() -> None:
    made, too_much = model("transformer-tiny"), {"*.weights": 1e38}
    found = run(made, "The cat sat.", too_much, "Le chat est assis")
    assert all(math.isnan(each.divergence) for each in found.differences)
    for beams in (1, 2):
        with pytest.raises(InputError, match="can't write"):
            run(made, "The cat sat.", too_much, generation=Generation(beams=beams, max_new_tokens=4))


def test_a_target_that_is_given_is_read_not_written() -> None:
    made = model("transformer-tiny")
    found = run(made, "The cat sat.", ["scaling"], "Le chat est assis")
    assert found.before.text is None
    assert found.original.words == found.changed.words
    assert len(found.before.places) == len(found.differences) == len(found.original.words.target)
    p, q = (trace.output[0].double().softmax(-1) for trace in (found.original, found.changed))  # type: ignore[index]
    for i, difference in enumerate(found.differences):
        assert difference.divergence == pytest.approx(float((p[i] * (p[i] / q[i]).log()).sum()), abs=1e-6)
        assert difference.before == pytest.approx(float(p[i].max()), abs=1e-6)
        assert difference.after == pytest.approx(float(q[i][p[i].argmax()]), abs=1e-6)
        place = found.before.places[i]
        assert place.side == "target"
        assert place.label == found.original.words.target[i]
        assert [each.id for each in place.top] == p[i].topk(5).indices.tolist()
        assert place.top[0].text == found.original.words.vocabulary[place.top[0].id]
    assert found.first == "encoder.blocks.0.self_attention.scaled_scores"
    assert found.moved["encoder.embedding.output"] == 0
    assert found.moved[found.first] == pytest.approx(math.sqrt(6) - 1, abs=1e-5), "d_head is 6"


def test_a_class_and_a_vector_under_edits() -> None:
    words = tokenizer("wordpiece")
    vector = run(headed("bert-tiny", words), "The cat sat.", ["positions"])
    assert vector.before.places == vector.differences == ()
    assert vector.moved["head.vector"] > 0
    image = torch.rand(3, 12, 12)
    seen = headed("vit-tiny", None)
    seen.usage = dataclasses.replace(seen.usage, labels=tuple("abcdefghijk"))
    found = run(seen, image, ["positions"])
    [place] = found.before.places
    p = found.original.output[0].softmax(-1)  # type: ignore[index]
    assert place.label == "class"
    assert place.top[0].text == "abcdefghijk"[int(p.argmax())]
    assert place.top[0].p == pytest.approx(float(p.max()))
    assert sum(each.p for each in run(seen, image, top=11).before.places[0].top) == pytest.approx(1)


def test_no_edits_change_nothing() -> None:
    for name in ("transformer-tiny", "gpt2", "bahdanau-gru"):
        made = model(name)
        found = run(made, "The cat sat.", generation=Generation(max_new_tokens=5))
        assert found.before == found.after
        assert found.first is None
        assert all(each.divergence == 0 and each.before == each.after for each in found.differences)


def test_one_chance_for_both_runs() -> None:
    made = model("gpt2")
    drawn = Generation(max_new_tokens=12, sample=True, temperature=3.0)
    found = run(made, "The cat", [Scale("decoder.blocks.0.output", 1.0)], generation=drawn)
    assert found.before.text == found.after.text


def test_users_may_write_edits_shortly() -> None:
    made = model("transformer-tiny")
    other = made.trace("The cat sat.", "Le chat")
    name = "decoder.blocks.0.self_attention.heads"
    value = torch.ones_like(other[name])
    assert (
        edits_of("scaling")
        == edits_of(["scaling"])
        == edits_of({"kind": "off", "what": "scaling"})
        == (Off("scaling"),)
    )
    assert edits_of({name: 0}) == edits_of([{name: 0.0}]) == edits_of(Zero(name)) == (Zero(name),)
    assert edits_of({"encoder.embedding.output": 0, name: other})[1] == Patch(name, other)
    for edits, expected in (
        ({name: 0}, value * 0),
        ({name: 2}, value * 2),
        ({name: value}, value),
        ({name: lambda x, _: x + 1}, other[name] + 1),
        ({name: lambda x, _: x.zero_()}, value * 0),
        ({name: lambda x, _: None}, other[name]),
        ({name: other}, other[name]),
        ([Zero(name), {name: lambda x, _: x + 1}], value),
    ):
        found = run(made, "The cat sat.", edits, "Le chat")  # type: ignore[arg-type]
        assert torch.equal(found.changed[name], expected)
        assert torch.equal(found.original[name], other[name])


def test_json_there_and_back() -> None:
    made = model("transformer-tiny")
    trace = made.trace("The cat sat.", "Le chat")
    texts = [
        '{"kind": "zero", "value": "*.heads"}',
        '{"kind": "zero", "value": "*.heads", "head": 2}',
        '{"kind": "scale", "value": "*.heads", "by": 0.5}',
        '{"kind": "set", "value": "decoder.blocks.0.cross_attention.weights", "at": [0, 2, 1, 1], "to": 0.9, '
        '"renormalise": true}',
        '{"kind": "set", "value": "decoder.blocks.0.cross_attention.masked_scores", "at": [0, 2, 1, 1], "to": "-inf"}',
        '{"kind": "off", "what": "mask", "where": "decoder*"}',
        '{"kind": "patch", "value": "encoder.blocks.*.output", "trace": "t1"}',
    ]  # fmt: skip
    edits = read_edits([json.loads(text) for text in texts], {"t1": trace})
    assert [json.dumps(edit.to_json()) for edit in edits] == texts
    assert read_edits([edit.to_json() for edit in edits], {"t1": trace}) == edits
    assert edits == (
        Zero("*.heads"), Zero("*.heads", 2), Scale("*.heads", 0.5),
        Set("decoder.blocks.0.cross_attention.weights", (0, 2, 1, 1), 0.9, True),
        Set("decoder.blocks.0.cross_attention.masked_scores", (0, 2, 1, 1), -math.inf),
        Off("mask", "decoder*"), Patch("encoder.blocks.*.output", trace, "t1"),
    )  # fmt: skip
    assert read_edits([{"kind": "off", "what": "mask"}]) == (Off("mask"),)
    assert read_edits([{"kind": "scale", "value": "*.heads", "by": 2}])[0].to_json()["by"] == 2.0
    found = run(made, "The cat sat.", edits, "Le chat")
    assert found.changed["decoder.blocks.0.cross_attention.weights"][0, 2, 1, 1] == pytest.approx(0.9)
    assert json.loads(json.dumps(found.to_json()))["edits"] == [json.loads(text) for text in texts]


W = "decoder.blocks.0.cross_attention.weights"
BAD: list[tuple[Any, str]] = [
    ("scalling", "no switch 'scalling'; did you mean 'scaling'?"),
    (7, "edits are 7 (int); give a list of them, or a mapping of values"),
    ([7], "an edit is 7 (int); give Zero, Scale, Set, Off, Patch or Replace, or a mapping"),
    ({"kind": "zap", "value": W}, "edit: no kind 'zap' (known: off, patch, scale, set, zero)"),
    ({"kind": "zero"}, "edit lacks value"),
    ({"kind": "zero", "value": W, "heads": 1}, "edit: no key 'heads'; did you mean 'head'?"),
    ({"kind": "zero", "value": W, "head": "1"}, "edit.head is '1' (str); expected int"),
    ({"kind": "zero", "value": W, "head": -1}, "Zero.head=-1 must be at least 0"),
    ({"kind": "set", "value": W, "at": 3, "to": 1}, "edit.at is 3 (int); expected a list"),
    ({"kind": "set", "value": W, "at": [0, 0, 0, -1], "to": 1}, "Set.at is (0, 0, 0, -1) (tuple); give an index for each axis, counted from 0"),
    ({"kind": "set", "value": W, "at": [0, 0, 0], "to": 1}, f"'{W}' has 4 axes (BHTS), but the index [0, 0, 0] has 3"),
    ({"kind": "set", "value": W, "at": [0, 0, 0, 0], "to": "inf"}, "edit.to is 'inf' (str); expected float"),
    ({"kind": "set", "value": W, "at": [0, 0, 0, 0], "to": 1.5, "renormalise": True}, "Set.to=1.5 is no weight of a row that sums to 1; choose a number from 0 to 1"),
    ({"kind": "set", "value": "*.scores", "at": [0, 0, 0, 0], "to": 0.5, "renormalise": True}, "'*.scores' has no rows that sum to 1; leave out renormalise, or set a weight"),
    ({"kind": "off", "what": "heads"}, "edit.what: no choice 'heads'"),
    ({"kind": "patch", "value": W, "trace": "t9"}, "no trace 't9'"),
    ({"kind": "patch", "value": W}, "edit lacks trace"),
    ({W: "0"}, "Replace.by is '0' (str); expected float"),
    ({W: True}, "Replace.by is True (bool); expected float"),
    ({W: math.nan}, "Replace.by=nan must be a finite number"),
    ({W: lambda x, _: x[0]}, f"the replacement of '{W}' is [4, 3, 6]; expected a tensor [1, 4, 3, 6]"),
    ({W: lambda x, _: 3}, f"the replacement of '{W}' is 3 (int); expected a tensor [1, 4, 3, 6]"),
    ({W: torch.zeros(2, 2)}, f"'{W}' has shape [1, 4, 3, 6] (BHTS) here, its replacement [2, 2]; give one of the same shape"),
    (Zero("decoder.block.0.input"), "no tap 'decoder.block.0.input'; did you mean 'decoder.blocks.0.input'?"),
    (Zero("head.vocabulary.probabilities"), "'head.vocabulary.probabilities' can't be changed: no later value is computed from it; change an earlier one"),
    (Zero("decoder.blocks.0.input", 1), "'decoder.blocks.0.input' (BTD) has no heads; leave out head, or change an attention's heads"),
    (Zero(W, 4), f"'{W}' has 4 heads, counted from 0: there is no head 4"),
    (Off("scaling", "decodr"), "no place for 'scaling' 'decodr' (known: decoder.blocks.0.cross_attention, "),
    (Set(W, (0, 1, 3, 2), 0.5), f"'{W}' has shape [1, 4, 3, 6] (BHTS) here: no index [0, 1, 3, 2]"),
    (Set(W, (0, 1, 2, 6), 0.5), f"'{W}' has shape [1, 4, 3, 6] (BHTS) here: no index [0, 1, 2, 6]"),
    (Set("decoder.blocks.0.self_attention.weights", (0, 1, 0, 0), 0.5, True), "'decoder.blocks.0.self_attention.weights' at [0, 1, 0, 0]: the other weights of this row are 0, so it can't sum to 1 with 0.5 there; leave out renormalise"),
    (Set("decoder.blocks.0.self_attention.masked_scores", (0, 1, 0, 0), -math.inf), "'decoder.blocks.0.self_attention.masked_scores' at [0, 1, 0, 0]: with -∞ there all keys of this row are masked"),
]  # fmt: skip
# ruff: noqa: E501


@pytest.mark.parametrize(("edit", "sentence"), BAD, ids=[str(i) for i in range(len(BAD))])
def test_a_bad_edit_is_one_sentence(edit: Any, sentence: str) -> None:
    with pytest.raises(CutawayError) as caught:
        run(model("transformer-tiny"), "The cat sat.", edit, "Le chat")
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)


def test_bad_patches_are_one_sentence() -> None:
    made = model("transformer-tiny")
    other = made.trace("The dog", "Le", keep=["*.weights"])
    for edit, sentence in (
        (Patch("decoder.blocks.0.input", other), "no value 'decoder.blocks.0.input'"),
        (Patch(W, other), f"'{W}' has shape [1, 4, 3, 6] (BHTS) here, its replacement ["),
    ):
        with pytest.raises(InputError) as caught:
            run(made, "The cat sat.", edit, "Le chat")
        assert str(caught.value).startswith(sentence)
    with pytest.raises(CutawayError, match="Patch.from_ is 3 \\(int\\); give the trace"):
        Patch(W, 3)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="has no id, so JSON can't name it"):
        Patch(W, other).to_json()
    with pytest.raises(InputError, match="can't be JSON; give zero"):
        Replace(W, 1.0).to_json()
    with pytest.raises(InputError, match="edits are {'kind': 'off'} \\(dict\\); expected a list"):
        read_edits({"kind": "off"})
