"""What every model promises, whatever it is made of. Each test runs over all families.

Tolerances: the two sides of a comparison do the same float32 arithmetic in another order; sums here have at most a few
hundred terms of size about 1, so they differ by some 1e-6. 2e-5 leaves room and is far below any mistake.
"""

import dataclasses
import json
import math
import re
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import cutaway
from cutaway import checkpoints
from cutaway.errors import CheckpointError, ConfigError, InputError, UnknownNameError
from cutaway.kernels import attention
from cutaway.models.build import build
from cutaway.models.config import (
    Classifier,
    Config,
    LanguageModel,
    MaskedLanguageModel,
    RecurrentStackConfig,
    SentenceVector,
    StackConfig,
    TransformerConfig,
    config_from_json,
)
from cutaway.models.network import Network
from cutaway.parts.cache import Cache, Memory
from cutaway.parts.positions import RotaryScaling
from cutaway.parts.tap import Tap, listening, taps
from tests.support.families import (
    FAMILIES,
    SOURCE_VOCABULARY,
    WITH_DECODER,
    Inputs,
    example_inputs,
    forward,
    noisy_network,
    real,
    shrunk,
    with_stacks,
)
from tests.support.threads import at_once

CLOSE = {"rtol": 2e-5, "atol": 2e-5}
WITH_TEXT = [name for name in FAMILIES if name != "vit-tiny"]


@pytest.mark.parametrize("padding", [None, "right", "left"])
@pytest.mark.parametrize("name", FAMILIES)
def test_listened_to_equals_fused(name: str, padding: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    network, inputs = noisy_network(shrunk(name)), example_inputs(shrunk(name), padding=padding)
    monkeypatch.setattr(attention, "torch_is_faster", lambda *_: True)
    fused = forward(network, inputs)
    monkeypatch.setattr(attention, "torch_is_faster", lambda *_: False)
    explicit = forward(network, inputs)
    heard = cutaway.trace(network, *inputs.args, **inputs.options)
    assert heard.output is not None
    torch.testing.assert_close(real(heard.output, inputs), real(fused, inputs), **CLOSE)
    torch.testing.assert_close(real(explicit, inputs), real(fused, inputs), **CLOSE)
    assert set(heard) == set(taps(network)), "every tap fires"
    for tap in heard:
        assert len(heard.axes(tap)) == heard.every(tap)[0].dim(), f"{tap}: axes {heard.axes(tap)} do not fit its value"


@pytest.mark.parametrize("name", FAMILIES)
def test_listening_to_one_value_changes_nothing(name: str) -> None:
    """One tap at a time: the explicit path is taken by halves too."""
    network, inputs = noisy_network(shrunk(name)), example_inputs(shrunk(name))
    expected = real(forward(network, inputs), inputs)
    for tap in taps(network):
        with listening(network, {tap: lambda value, _: value.clone() if taps(network)[tap].replaceable else None}):  # noqa: B023
            torch.testing.assert_close(real(forward(network, inputs), inputs), expected, **CLOSE, msg=tap)


@pytest.mark.parametrize("padding", [None, "right", "left"])
@pytest.mark.parametrize("steps", [[1, 1, 1, 1, 1], [2, 3], [4, 1]])
@pytest.mark.parametrize("name", WITH_DECODER)
def test_cached_steps_equal_one_pass(name: str, steps: list[int], padding: str | None) -> None:
    network, inputs = noisy_network(shrunk(name)), example_inputs(shrunk(name), padding=padding)
    whole = forward(network, inputs)
    target, mask = inputs.target, inputs.target_mask
    if target is None:
        target, mask = inputs.tokens[:, :5], None if inputs.mask is None else inputs.mask[:, :5]
        whole = whole[:, :5]
    if padding == "left" and steps[0] < 3:  # the first call must hold a real token of each row
        steps = [3, *[1] * 2]
    with torch.no_grad():
        memory = network.encode(inputs.tokens, inputs.mask) if inputs.target is not None else None
        for capacity in (0, 3, 64):
            cache, pieces, at = Cache(capacity=capacity), [], 0
            for n in steps:
                step_mask = None if mask is None else mask[:, at : at + n]
                pieces.append(network.decode(target[:, at : at + n], memory, cache, step_mask))
                at += n
            seen = slice(None) if mask is None else mask
            torch.testing.assert_close(torch.cat(pieces, 1)[seen], whole[seen], **CLOSE)
            assert cache.length == at


@pytest.mark.parametrize("name", WITH_DECODER)
def test_cache_follows_selected_rows(name: str) -> None:
    """Beam search keeps some rows, some of them twice: the cache of row i is then that of its parent."""
    network, inputs = noisy_network(shrunk(name)), example_inputs(shrunk(name), padding="left")
    target, mask = (inputs.tokens, inputs.mask) if inputs.target is None else (inputs.target, inputs.target_mask)
    rows = torch.tensor([2, 0, 2, 1])
    with torch.no_grad():
        memory = network.encode(inputs.tokens, inputs.mask) if inputs.target is not None else None
        cache = Cache()
        network.decode(target[:, :4], memory, cache, None if mask is None else mask[:, :4])
        cache.select(rows)
        memory = None if memory is None else memory.select(rows)
        step = network.decode(target[rows, 4:5], memory, cache)
        whole = network.decode(target[rows, :5], memory, mask=None if mask is None else mask[rows, :5])
    torch.testing.assert_close(step[:, 0], whole[:, 4], **CLOSE)


@pytest.mark.parametrize("padding", ["right", "left"])
@pytest.mark.parametrize("name", WITH_TEXT)
def test_padding_and_neighbours_change_nothing(name: str, padding: str) -> None:
    """Each row of a padded batch gives what it gives alone, without padding."""
    network, inputs = noisy_network(shrunk(name)), example_inputs(shrunk(name), padding=padding)
    together = forward(network, inputs)
    for row in range(len(inputs.tokens)):

        def alone(values: Tensor | None, mask: Tensor | None, row: int = row) -> Tensor | None:
            return None if values is None or mask is None else values[row : row + 1, mask[row]]

        single = Inputs(
            tokens=alone(inputs.tokens, inputs.mask),
            target=alone(inputs.target, inputs.target_mask),
            segments=alone(inputs.segments, inputs.mask),
        )
        mask = inputs.mask if inputs.target is None else inputs.target_mask
        mine = together[row][mask[row]] if together.dim() == 3 else together[row]
        torch.testing.assert_close(mine, forward(network, single)[0], **CLOSE)


@pytest.mark.parametrize("name", FAMILIES)
def test_neighbours_change_nothing_without_padding(name: str) -> None:
    network, inputs = noisy_network(shrunk(name)), example_inputs(shrunk(name), padding=None)
    together = forward(network, inputs)
    single = Inputs(*(None if part is None else part[1:2] for part in dataclasses.astuple(inputs)))
    torch.testing.assert_close(together[1:2], forward(network, single), **CLOSE)


@pytest.mark.parametrize("name", WITH_DECODER)
def test_a_later_token_cannot_change_an_earlier_output(name: str) -> None:
    network, inputs = noisy_network(shrunk(name)), example_inputs(shrunk(name), padding=None)
    before = forward(network, inputs)
    changed = inputs.tokens.clone() if inputs.target is None else inputs.target.clone()
    changed[:, 3] = (changed[:, 3] + 1) % 5
    after = forward(network, dataclasses.replace(inputs, **{"tokens" if inputs.target is None else "target": changed}))
    assert torch.equal(after[:, :3], before[:, :3])
    assert not torch.allclose(after[:, 3:], before[:, 3:], **CLOSE), "the change must show from its place on"


@pytest.mark.parametrize("name", FAMILIES)
def test_every_parameter_gets_a_gradient(name: str) -> None:
    network, inputs = noisy_network(shrunk(name)).train(), example_inputs(shrunk(name))
    output = network(*inputs.args, **inputs.options)
    (output * torch.randn(output.shape, generator=torch.Generator().manual_seed(3))).sum().backward()
    for parameter, weight in network.named_parameters():
        assert weight.grad is not None, parameter
        assert torch.isfinite(weight.grad).all(), parameter
        if not parameter.endswith("attention.k.bias"):  # adds the same to all scores of a query: softmax cancels it
            assert weight.grad.abs().max() > 0, parameter


@pytest.mark.parametrize("name", FAMILIES)
def test_config_survives_json(name: str) -> None:
    config = shrunk(name)
    assert config_from_json(json.loads(json.dumps(config.to_json()))) == config
    data = config.to_json()
    half = "decoder" if config.decoder is not None else "encoder"
    data[half]["droput"] = data[half].pop("dropout")
    with pytest.raises(ConfigError, match=rf"config\.{half}: no key 'droput'; did you mean 'dropout'\?"):
        config_from_json(data)


@pytest.mark.parametrize("name", FAMILIES)
def test_bfloat16_autocast_agrees(name: str) -> None:
    """bfloat16 keeps 8 bits: a rounding is off by up to 0.4 %, and a few dozen follow each other here. What is compared
    is the error's size against the output's: 5 %, where a wrong formula is off by 100 %."""
    network, inputs = noisy_network(shrunk(name)), example_inputs(shrunk(name))
    exact = real(forward(network, inputs), inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = real(forward(network, inputs), inputs).float()
    assert torch.isfinite(rounded).all()
    assert not torch.equal(rounded, exact), "autocast did nothing"
    assert (rounded - exact).norm() < 0.05 * exact.norm()


@pytest.mark.parametrize("name", FAMILIES)
def test_whole_network_in_bfloat16_agrees(name: str) -> None:
    network, inputs = noisy_network(shrunk(name)), example_inputs(shrunk(name))
    exact = real(forward(network, inputs), inputs)
    half = dataclasses.replace(inputs, tokens=inputs.tokens.bfloat16()) if inputs.tokens.is_floating_point() else inputs
    rounded = real(forward(network.bfloat16(), half), half)
    assert rounded.dtype == torch.bfloat16
    assert (rounded.float() - exact).norm() < 0.05 * exact.norm()


def in_own_memory(network: Network) -> Network:
    """Weights copied from where their file is mapped: there one may begin anywhere, and on some processors the BLAS
    adds in another order then, which moves the last bit of a result (seen on an EPYC without AVX-512)."""
    for weight in network.parameters():
        weight.data = weight.data.clone()
    return network


@pytest.mark.parametrize("name", FAMILIES)
def test_save_and_load_are_exact(name: str, tmp_path: Path) -> None:
    network, inputs = noisy_network(shrunk(name)), example_inputs(shrunk(name))
    checkpoints.save(network, tmp_path / "model")
    loaded = checkpoints.load(tmp_path / "model")
    assert loaded.config == network.config
    assert list(dict(loaded.named_parameters())) == list(dict(network.named_parameters()))
    for (parameter, mine), theirs in zip(network.named_parameters(), loaded.parameters(), strict=True):
        assert torch.equal(mine, theirs), parameter
    close = {"rtol": 1e-5, "atol": 1e-5}  # sums may be near 0
    torch.testing.assert_close(forward(loaded, inputs), forward(network, inputs), **close)
    assert torch.equal(forward(in_own_memory(loaded), inputs), forward(network, inputs))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"], "nothing left behind"
    checkpoints.save(loaded, tmp_path / "model")  # a saved model may be saved over
    assert torch.equal(forward(in_own_memory(checkpoints.load(tmp_path / "model")), inputs), forward(network, inputs))


@pytest.mark.parametrize("name", ["transformer-tiny", "t5-small", "gpt2"])
def test_tied_weights_stay_tied_after_loading(name: str, tmp_path: Path) -> None:
    config = shrunk(name)
    loaded = checkpoints.load(checkpoints.save(build(config), tmp_path / "model"))
    size = sum(weight.numel() for weight in loaded.parameters())
    assert size == cutaway.size(config).parameters
    assert size * 4 < (tmp_path / "model" / "model.safetensors").stat().st_size < size * 4 + 20_000, "written once"
    inputs = Inputs(*(part % 3 for part in example_inputs(config, padding=None).args))
    before = forward(loaded, inputs)
    stack = loaded.encoder if loaded.encoder is not None else loaded.decoder
    with torch.no_grad():
        stack.embedding.tokens.weight[3] *= 2  # of a token that stands nowhere in the input
    after = forward(loaded, inputs)
    assert not torch.allclose(after[..., 3], before[..., 3]), "the head reads the same table"


@pytest.mark.parametrize("name", FAMILIES)
def test_tap_names_are_public(name: str) -> None:
    """Scripts and saved traces use these names; change one only with a line in CHANGELOG."""
    config = shrunk(name)
    if isinstance(config, TransformerConfig):
        config = with_stacks(config, n_blocks=1)
    public = json.loads((Path(__file__).parent / "tap_names.json").read_text())
    assert sorted(taps(build(config))) == public[name]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_replaced_value_reaches_the_output(name: str) -> None:
    """Ablation: zeros in place of any value on the way change what comes out."""
    network, inputs = noisy_network(shrunk(name)), example_inputs(shrunk(name), padding=None)
    before = forward(network, inputs)
    for tap_name, tap in taps(network).items():
        if not tap.replaceable:
            continue
        with listening(network, {tap_name: lambda value, _: torch.zeros_like(value)}):
            assert not torch.equal(forward(network, inputs), before), f"zeros at {tap_name} change nothing"


@pytest.mark.parametrize("name", FAMILIES)
def test_two_threads_do_not_hear_each_other(name: str) -> None:
    network = noisy_network(shrunk(name))
    inputs = [example_inputs(network.config, seed=seed, padding=None, rows=seed + 1) for seed in range(2)]
    expected = [cutaway.trace(network, *each.args, **each.options) for each in inputs]
    start = threading.Barrier(2)
    wrong: list[str] = []

    def look(i: int) -> None:
        start.wait(timeout=60)
        for _ in range(3):
            trace = cutaway.trace(network, *inputs[i].args, **inputs[i].options)
            for tap in trace:
                if not torch.equal(trace[tap], expected[i][tap]):
                    wrong.append(f"thread {i}: {tap}")

    at_once(*(partial(look, i) for i in range(2)))
    assert not wrong


def test_mistakes_with_a_trace_are_named() -> None:
    network, tokens = build(shrunk("gpt2")), torch.zeros(1, 3, dtype=torch.long)
    trace = cutaway.trace(network, tokens, keep="*.weights")
    for ask in (trace.__getitem__, trace.every, trace.axes, trace.formula):
        with pytest.raises(
            InputError, match=r"^no value 'decoder\.blocks\.0\.self_attention\.wights'; did you mean 'deco"
        ):
            ask("decoder.blocks.0.self_attention.wights")
        with pytest.raises(KeyError):
            ask("nope")
    assert "nope" not in trace
    for keep in (None, 3, [None]):
        with pytest.raises(InputError, match=r"keep is .*; give a pattern such as '\*\.weights'"):
            cutaway.trace(network, tokens, keep=keep)
    with pytest.raises(InputError, match=r"trace takes a network or a part of one, not 'bert-tiny' \(str\)"):
        cutaway.trace("bert-tiny", tokens)


def test_a_silent_tap_returns_its_argument_itself() -> None:
    value = torch.ones(2)
    assert Tap("B", "x")(value) is value


@pytest.mark.parametrize("name", FAMILIES)
def test_dropout_acts_in_training_only(name: str) -> None:
    config, inputs = shrunk(name), example_inputs(shrunk(name), padding=None)
    network = noisy_network(config)
    assert torch.equal(forward(network, inputs), forward(network, inputs))
    halves = [half for half in (config.encoder, config.decoder) if half is not None]
    if any(half.dropout for half in halves):
        torch.manual_seed(0)
        network.train()
        assert not torch.equal(forward(network, inputs), forward(network, inputs))


# Bad input: one sentence that names the thing, the value, the rule and the way out.


@pytest.mark.parametrize("name", WITH_TEXT)
def test_ids_outside_the_vocabulary(name: str) -> None:
    network, inputs = build(shrunk(name)), example_inputs(shrunk(name), padding=None)
    wrong = inputs.tokens.clone()
    wrong[1, 2] = 777
    with pytest.raises(InputError, match=r"token id 777 is outside this model's \d+ \(0 to \d+\)"):
        network(wrong, *inputs.args[1:])
    wrong[1, 2] = -1
    with pytest.raises(InputError, match="token id -1 is outside"):
        network(wrong, *inputs.args[1:])


@pytest.mark.parametrize("name", FAMILIES)
def test_wrong_inputs_are_named(name: str) -> None:
    network, inputs = build(shrunk(name)), example_inputs(shrunk(name), padding=None)
    if inputs.target is None:
        with pytest.raises(InputError, match="only one half"):
            network(inputs.tokens, inputs.tokens)
    else:
        with pytest.raises(InputError, match=r"needs two inputs: network\(source, target\)"):
            network(inputs.tokens)
        with pytest.raises(InputError, match=r"memory=encode\(source\)"):
            network.decode(inputs.target)
    with pytest.raises(InputError, match="shape"):
        network(inputs.tokens[0], *inputs.args[1:])
    if network.has_encoder and not network.has_decoder:
        with pytest.raises(InputError, match="no decoder"):
            network.decode(inputs.tokens)
    if not network.has_encoder:
        with pytest.raises(InputError, match="no encoder"):
            network.encode(inputs.tokens)


@pytest.mark.parametrize("name", WITH_TEXT)
def test_wrong_masks_are_named(name: str) -> None:
    network, inputs = build(shrunk(name)), example_inputs(shrunk(name), padding=None)
    mask = torch.ones_like(inputs.tokens, dtype=torch.bool)
    with pytest.raises(InputError, match="dtype int64; a mask is boolean"):
        network(*inputs.args, mask=mask.long())
    rows, length = mask.shape
    with pytest.raises(
        InputError, match=rf"shape \[{rows}, {length - 1}\]; the tokens it .* have \[{rows}, {length}\]"
    ):
        network(*inputs.args, mask=mask[:, 1:])
    mask[2] = False
    with pytest.raises(InputError, match="hides every token of row 2"):
        network(*inputs.args, mask=mask)
    with pytest.raises(InputError, match="length 0"):
        network(inputs.tokens[:, :0], *inputs.args[1:])


@pytest.mark.parametrize("name", WITH_TEXT)
def test_tokens_that_are_none(name: str) -> None:
    network, inputs = build(shrunk(name)), example_inputs(shrunk(name), padding=None)
    rest = inputs.args[1:]
    for wrong in (inputs.tokens.tolist(), inputs.tokens.numpy(), None):
        with pytest.raises(InputError, match=r"^tokens are .*; give a torch tensor of ids"):
            network(wrong, *rest)
    with pytest.raises(InputError, match=r"tokens have shape \[\]; expected \[batch, length\]"):
        network(torch.tensor(3), *rest)
    with pytest.raises(InputError, match="tokens have no rows; give a batch of at least one text"):
        network(inputs.tokens[:0], *(part[:0] for part in rest))
    with pytest.raises(InputError, match="token ids have dtype complex64; they must be whole numbers"):
        network(inputs.tokens.to(torch.complex64), *rest)
    with pytest.raises(InputError, match=r"the mask is \[.* \(list\); give a torch tensor of booleans"):
        network(*inputs.args, mask=torch.ones_like(inputs.tokens, dtype=torch.bool).tolist())
    expected = forward(network, inputs)
    for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32):
        small = dataclasses.replace(
            inputs, tokens=inputs.tokens.to(dtype), target=None if inputs.target is None else inputs.target.to(dtype)
        )
        assert torch.equal(forward(network, small), expected)


def test_segments_have_the_shape_of_their_tokens() -> None:
    network, tokens = build(shrunk("bert-tiny")), torch.zeros(3, 5, dtype=torch.long)
    for shape in ((1, 5), (2, 3), (3,)):
        named = re.escape(str(list(shape)))
        with pytest.raises(InputError, match=rf"segments have shape {named}; the tokens they belong to have \[3, 5"):
            network(tokens, segments=torch.zeros(shape, dtype=torch.long))
    with pytest.raises(InputError, match=r"segments are .* give a torch tensor"):
        network(tokens, segments=[0])


@pytest.mark.parametrize("name", FAMILIES)
def test_a_target_mask_needs_a_target(name: str) -> None:
    network, inputs = build(shrunk(name)), example_inputs(shrunk(name), padding=None)
    if inputs.target is None:
        with pytest.raises(InputError, match="target_mask was given, but this model has no target"):
            network(inputs.tokens, target_mask=torch.ones(3, 5, dtype=torch.bool))


@pytest.mark.parametrize("name", WITH_DECODER)
def test_rows_that_do_not_belong_together(name: str) -> None:
    """torch reads beyond the end of an LSTM's state, or quietly spreads one row over many."""
    network, inputs = noisy_network(shrunk(name)), example_inputs(shrunk(name), padding=None)
    tokens = inputs.tokens if inputs.target is None else inputs.target
    with torch.no_grad():
        memory = network.encode(inputs.tokens) if inputs.target is not None else None
        one = None if memory is None else memory.select(torch.tensor([0]))
        if memory is not None:
            with pytest.raises(InputError, match="3 target rows, but the memory has 1; they must be the same"):
                network.decode(tokens, one)
            with pytest.raises(InputError, match="1 target rows, but the memory has 3"):
                network.decode(tokens[:1], memory)
        for before, after in ((1, 3), (3, 1)):
            cache = Cache()
            memories = {1: one, 3: memory}
            network.decode(tokens[:before, :4], memories[before], cache)
            with pytest.raises(InputError, match=f"{after} new rows, but the cache has {before}; .* new Cache"):
                network.decode(tokens[:after, 4:], memories[after], cache)


@pytest.mark.parametrize("name", [name for name in WITH_DECODER if shrunk(name).encoder is not None])
def test_memories_that_do_not_belong_here(name: str) -> None:
    network, inputs = noisy_network(shrunk(name)), example_inputs(shrunk(name), padding=None)
    with torch.no_grad():
        memory = network.encode(inputs.tokens)
        with pytest.raises(InputError, match=r"the memory is a Tensor; give what encode\(source\) returned"):
            network.decode(inputs.target, memory.states)
        with pytest.raises(InputError, match=r"the cache is a dict; give a Cache\(\)"):
            network.decode(inputs.target, memory, {})
        wide = dataclasses.replace(memory, states=torch.cat((memory.states, memory.states), -1))
        with pytest.raises(InputError, match=r"the memory has shape \[3, 7, \d+\]; this decoder reads \[batch, length"):
            network.decode(inputs.target, wide)
        if memory.final:
            with pytest.raises(InputError, match="the memory's last states have shapes"):
                network.decode(inputs.target, Memory(memory.states))
        cache = Cache()
        network.decode(inputs.target[:, :1], memory, cache)
        if cache.kv:
            with pytest.raises(InputError, match="the memory has 4 tokens, but the cache was filled with one of 7"):
                network.decode(inputs.target[:, 1:], network.encode(inputs.tokens[:, :4]), cache)


@pytest.mark.parametrize("name", WITH_DECODER)
def test_a_failed_cached_step_can_be_repeated(name: str) -> None:
    """Wherever it fails: in a listener of any value, as Ctrl-C might."""
    network, inputs = noisy_network(shrunk(name)), example_inputs(shrunk(name), padding=None)
    tokens = inputs.tokens if inputs.target is None else inputs.target
    failing = [tap for tap in taps(network) if tap.endswith((".output", ".hidden", ".logits", ".weights"))]

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    with torch.no_grad():
        memory = network.encode(inputs.tokens) if inputs.target is not None else None
        whole = network.decode(tokens, memory)
        for tap in failing:
            cache, pieces = Cache(), []
            for t in range(3):
                with listening(network, {tap: fail}):
                    if not tap.startswith("encoder") and (t == 0 or not tap.startswith("decoder.bridge")):
                        with pytest.raises(KeyboardInterrupt):
                            network.decode(tokens[:, t : t + 1], memory, cache)
                pieces.append(network.decode(tokens[:, t : t + 1], memory, cache))
            torch.testing.assert_close(torch.cat(pieces, 1), whole[:, :3], **CLOSE, msg=tap)


@pytest.mark.parametrize("name", WITH_DECODER)
def test_padding_within_a_text_changes_nothing(name: str) -> None:
    """A prompt padded on the right and continued, step by step, is the text without the padding."""
    network, inputs = noisy_network(shrunk(name)), example_inputs(shrunk(name), padding=None)
    tokens = inputs.tokens if inputs.target is None else inputs.target
    real_tokens = torch.tensor([[True, True, True, True], [True, True, False, False], [True, False, True, False]])
    with torch.no_grad():
        memory = network.encode(inputs.tokens) if inputs.target is not None else None
        cache = Cache()
        prompt = network.decode(tokens[:, :4], memory, cache, real_tokens)
        steps = [network.decode(tokens[:, t : t + 1], memory, cache) for t in (4, 0, 1)]
        padded = torch.cat((prompt, *steps), 1)
        visible = torch.cat((real_tokens, torch.ones(3, 3, dtype=torch.bool)), 1)
        text = torch.cat((tokens[:, :5], tokens[:, :2]), 1)
        for row in range(3):
            alone = None if memory is None else memory.select(torch.tensor([row]))
            expected = network.decode(text[row : row + 1, visible[row]], alone)[0]
            torch.testing.assert_close(padded[row][visible[row]], expected, **CLOSE)


@pytest.mark.parametrize("name", WITH_DECODER)
def test_a_cache_filled_in_inference_mode_serves_outside(name: str) -> None:
    network, inputs = noisy_network(shrunk(name)), example_inputs(shrunk(name), padding=None)
    tokens = inputs.tokens if inputs.target is None else inputs.target
    cache = Cache(capacity=32)
    with torch.inference_mode():
        memory = network.encode(inputs.tokens) if inputs.target is not None else None
        network.decode(tokens[:, :3], memory, cache)
    with torch.no_grad():
        steps = network.decode(tokens[:, 3:], memory, cache)
        torch.testing.assert_close(steps, network.decode(tokens, memory)[:, 3:], **CLOSE)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_network_made_without_build_has_first_values(name: str) -> None:
    config = shrunk(name)
    if isinstance(config.head, LanguageModel):
        config = dataclasses.replace(config, head=dataclasses.replace(config.head, tied=False, bias=True))
    made = []
    for fill in (7.0, math.nan):  # what the memory held before must not show
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            made.append(_on_used_memory(fill, type(build(config)), config))
    for (parameter, one), other in zip(made[0].named_parameters(), made[1].parameters(), strict=True):
        assert torch.equal(one, other), parameter


def _on_used_memory(fill: float, kind: type[Network], config: Config) -> Network:
    empty = torch.empty

    def used(*args: Any, **options: Any) -> Tensor:
        tensor = empty(*args, **options)
        return tensor.fill_(fill) if tensor.is_floating_point() else tensor

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "empty", used)
        return kind(config)


def test_a_network_has_to_answer_all_calls() -> None:
    with pytest.raises(TypeError, match="abstract"):
        Network()


@pytest.mark.parametrize("name", ["bahdanau-gru"])
@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
@pytest.mark.parametrize("padding", [None, "right", "left"])
def test_a_trace_of_a_backward_layer_is_in_the_order_of_the_text(name: str, cell: str, padding: str | None) -> None:
    config = with_stacks(shrunk(name), cell=cell)
    inputs = example_inputs(config, padding=padding)
    trace = cutaway.trace(noisy_network(config), *inputs.args, **inputs.options)
    visible = slice(None) if inputs.mask is None else inputs.mask
    forwards, backwards = trace["encoder.output"].chunk(2, dim=-1)
    torch.testing.assert_close(trace["encoder.forwards.0.hidden"][visible], forwards[visible], **CLOSE)
    torch.testing.assert_close(trace["encoder.backwards.0.hidden"][visible], backwards[visible], **CLOSE)


@pytest.mark.parametrize("name", ["bert-tiny", "distilbert-base", "gpt2"])
def test_longer_than_learned_positions(name: str) -> None:
    with pytest.raises(InputError, match="14 tokens, but this model learned only 13 positions; shorten"):
        build(shrunk(name))(torch.zeros(1, 14, dtype=torch.long))


def test_longer_than_learned_positions_while_decoding() -> None:
    network, cache = build(shrunk("gpt2")), Cache()
    with torch.no_grad():
        network.decode(torch.zeros(1, 13, dtype=torch.long), cache=cache)
        with pytest.raises(InputError, match="14 tokens, but this model learned only 13"):
            network.decode(torch.zeros(1, 1, dtype=torch.long), cache=cache)


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda data: data[:-100],
    "garbage": lambda data: b"\xff" * 1000,
    "a huge header": lambda data: (2**62).to_bytes(8, "little") + data[8:],
    "empty": lambda data: b"",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_weights_are_named(damage: str, tmp_path: Path) -> None:
    path = checkpoints.save(build(shrunk("gpt2")), tmp_path / "model") / "model.safetensors"
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    with pytest.raises(CheckpointError, match=r"model\.safetensors is not a whole safetensors file .* save it again"):
        checkpoints.load(path.parent)


@pytest.mark.parametrize(
    ("sizes", "messages"),
    [
        (
            {"n_blocks": 1, "d_ff": 21},
            ["decoder.blocks.1.self_attention.k.weight is not part of this model", "and 11 more"],
        ),
        ({"n_blocks": 3, "d_ff": 21}, ["decoder.blocks.2.self_attention.q.weight is missing"]),
        ({"n_blocks": 2, "d_ff": 21}, ["blocks.0.feedforward.up.weight has shape [20, 24], expected [21"]),
    ],
)
def test_weights_that_do_not_fit_are_listed(sizes: dict[str, int], messages: list[str], tmp_path: Path) -> None:
    folder = checkpoints.save(build(shrunk("gpt2")), tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    config["decoder"] |= sizes
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError) as error:
        checkpoints.load(folder)
    assert all(message in str(error.value) for message in messages)


def test_folders_that_are_no_model(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"nowhere is not a saved model: it has no config\.json"):
        checkpoints.load(tmp_path / "nowhere")
    folder = checkpoints.save(build(shrunk("gpt2")), tmp_path / "model")
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"has no model\.safetensors"):
        checkpoints.load(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="can't be read as JSON"):
        checkpoints.load(folder)
    (folder / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(CheckpointError, match="not written by cutaway"):
        checkpoints.load(folder)


def test_a_failed_save_leaves_the_old_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network, inputs = noisy_network(shrunk("gpt2")), example_inputs(shrunk("gpt2"))
    folder = checkpoints.save(network, tmp_path / "model")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoints.native, "write_weights", full)
    with pytest.raises(CheckpointError, match="No space left on device"):
        checkpoints.save(noisy_network(shrunk("gpt2"), seed=5), folder)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]
    assert torch.equal(forward(checkpoints.load(folder), inputs), forward(network, inputs))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_heads": 7}, r"n_heads=7 does not divide d_model=24; choose one of \[1, 2, 3, 4, 6, 8, 12, 24\]"),
        ({"n_kv_heads": 3}, "n_kv_heads=3 does not divide n_heads=4"),
        ({"n_blocks": 0}, "n_blocks=0 must be at least 1"),
        ({"d_model": -4}, "d_model=-4 must be at least 1"),
        ({"dropout": 1.5}, "dropout=1.5 must be at least 0 and below 1"),
        ({"norm_epsilon": 0.0}, "norm_epsilon=0.0 must be above 0"),
        ({"vocabulary": None}, "exactly one of them"),
        ({"positions": "learned", "max_positions": None}, "needs max_positions"),
        ({"positions": "rotary", "d_head": 5}, "d_head=5 must be even"),
        ({"positions": "t5_bias", "t5_buckets": 2}, "t5_buckets=2 must be at least 4"),
    ],
)
def test_impossible_stacks(change: dict, message: str) -> None:
    stack = shrunk("transformer-tiny").decoder
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(stack, **change)


def test_impossible_directions() -> None:
    config = shrunk("gru-seq2seq")
    with pytest.raises(ConfigError, match="leave one of backward and bidirectional out"):
        dataclasses.replace(config.encoder, bidirectional=True)
    for direction in ("bidirectional", "backward"):
        decoder = dataclasses.replace(config.decoder, **{direction: True})
        with pytest.raises(ConfigError, match=f"a decoder can't be {direction}: it would read the words it has yet to"):
            dataclasses.replace(config, decoder=decoder)


def _stack(**change: object) -> StackConfig:
    return StackConfig(**{"vocabulary": 19, "d_model": 16, "n_heads": 4, "d_ff": 20} | change)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: _stack(norm="batch"), r"StackConfig\.norm: no choice 'batch' \(known: layer, rms\)"),
        (lambda: _stack(positions="rope"), r"StackConfig\.positions: no choice 'rope'"),
        (lambda: _stack(positions=None), r"StackConfig\.positions is None \(NoneType\); expected 'sinusoidal' or"),
        (lambda: _stack(norm_place="middle"), r"norm_place: no choice 'middle' \(known: post, pre\)"),
        (lambda: _stack(activation="swish"), "activation: no choice 'swish'"),
        (lambda: _stack(gated="no"), r"gated is 'no' \(str\); expected bool"),
        (lambda: _stack(d_model="16"), r"d_model is '16' \(str\); expected int"),
        (lambda: _stack(d_model=16.0), r"d_model is 16\.0 \(float\); expected int"),
        (lambda: _stack(n_heads=True), r"n_heads is True \(bool\); expected int"),
        (lambda: _stack(n_blocks=1.5), r"n_blocks is 1\.5 \(float\); expected int"),
        (lambda: _stack(dropout="0.1"), r"dropout is '0\.1' \(str\); expected float"),
        (lambda: _stack(dropout=True), r"dropout is True \(bool\); expected float"),
        (lambda: _stack(norm_epsilon=math.nan), "norm_epsilon=nan must be a finite number"),
        (lambda: _stack(norm_epsilon=math.inf), "norm_epsilon=inf must be a finite number"),
        (lambda: _stack(norm_epsilon=-1.0), r"norm_epsilon=-1\.0 must be above 0"),
        (lambda: _stack(rotary_base=math.nan), "rotary_base=nan must be a finite number"),
        (lambda: _stack(rotary_base=1), "rotary_base=1 must be above 1"),
        (lambda: _stack(vocabulary=0), "vocabulary=0 must be at least 1"),
        (lambda: _stack(max_positions=0), "max_positions=0 must be at least 1"),
        (lambda: _stack(d_head=0), "d_head=0 must be at least 1"),
        (lambda: _stack(n_kv_heads=0), "n_kv_heads=0 must be at least 1"),
        (lambda: _stack(n_segments=-1), "n_segments=-1 must be at least 0"),
        (lambda: _stack(rotary_scaling=8), r"rotary_scaling is 8 \(int\); expected RotaryScaling"),
        (lambda: RotaryScaling(factor=math.nan), "factor=nan must be a finite number"),
        (lambda: RotaryScaling(original_positions=-1), "original_positions=-1 must be at least 1"),
        (lambda: SentenceVector(pooling="max"), r"SentenceVector\.pooling: no choice 'max'"),
        (lambda: Classifier(n_classes=3, pooling="cls"), r"Classifier\.pooling: no choice 'cls'"),
        (lambda: MaskedLanguageModel(norm_epsilon=-1.0), r"norm_epsilon=-1\.0 must be above 0"),
        (lambda: LanguageModel(tied="yes"), r"tied is 'yes' \(str\); expected bool"),
        (lambda: TransformerConfig(decoder=_stack(), head="classifier"), r"head is 'classifier' \(str\); expected"),
        (lambda: TransformerConfig(decoder=_stack(), head=Classifier), r"head is <class .* \(type\); expected Lang"),
        (lambda: TransformerConfig(decoder=_stack(), initialization="zeros"), "initialization: no choice 'zeros'"),
        (lambda: TransformerConfig(decoder="gpt2"), r"decoder is 'gpt2' \(str\); expected StackConfig"),
        (lambda: RecurrentStackConfig(vocabulary=9, cell="GRU"), "cell: no choice 'GRU'; did you mean 'gru'"),
        (
            lambda: dataclasses.replace(cutaway.preset("gru-seq2seq"), attention="bahdanau"),
            r"attention: no choice 'bahdanau' \(known: additive, dot\)",
        ),
        (
            lambda: dataclasses.replace(cutaway.preset("gru-seq2seq"), head=Classifier(n_classes=3)),
            r"RecurrentConfig\.head is Classifier\(.*; expected LanguageModel",
        ),
        (lambda: build(123), r"give a preset's name or a config, not 123 \(int\)"),
        (lambda: build(None), r"give a preset's name or a config, not None"),
        (lambda: build({}), r"give a preset's name or a config, not \{\} \(dict\)"),
        (lambda: build(["gpt2"]), r"not \['gpt2'\] \(list\)"),
        (lambda: cutaway.size(None), "give a preset's name or a config, not None"),
        (lambda: cutaway.size("gpt2", context=0), "context=0 must be at least 1"),
        (lambda: cutaway.preset(123), r"a preset's name is a string like 'gpt2', not 123 \(int\)"),
        (lambda: cutaway.preset(["gpt2"]), r"a preset's name is a string like 'gpt2', not \['gpt2'\]"),
        (lambda: cutaway.Transformer("gpt2"), r"Transformer takes a TransformerConfig, not 'gpt2' \(str\); see cuta"),
        (lambda: cutaway.Transformer(shrunk("bahdanau-gru")), "Transformer takes a TransformerConfig, not Recurrent"),
        (lambda: cutaway.Recurrent(shrunk("bert-tiny")), "Recurrent takes a RecurrentConfig, not TransformerConfig"),
        (lambda: build("bert-tiny", seed="a"), "seed='a' must be a whole number of at most 64 bits"),
        (lambda: build("bert-tiny", seed=1.5), r"seed=1\.5 must be a whole number"),
        (lambda: build("bert-tiny", seed=2**70), "seed=1180591620717411303424 must be a whole number"),
    ],
)  # fmt: skip
def test_a_config_made_in_python_is_checked_as_one_of_json(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        make()
    assert "\n" not in str(error.value)


def test_whole_numbers_may_stand_for_fractions() -> None:
    assert _stack(dropout=0, rotary_base=10000) == _stack(dropout=0.0)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("decoder", "d_model"), "24", r"config\.decoder\.d_model is '24' \(str\); expected int"),
        (("decoder", "gated"), 1, r"config\.decoder\.gated is 1 \(int\); expected bool"),
        (("decoder", "n_heads"), True, r"config\.decoder\.n_heads is True \(bool\); expected int"),
        (("decoder", "norm_place"), "per", r"config\.decoder\.norm_place: no choice 'per'; did you mean 'pre'\?"),
        (("decoder",), 3, r"config\.decoder is 3 \(int\); expected an object"),
        (("head", "kind"), "languag_model", r"config\.head: no kind 'languag_model'; did you mean 'language_model'\?"),
        (("kind",), "mamba", r"config: no kind 'mamba'"),
    ],
)
def test_wrong_values_in_json(path: tuple[str, ...], value: object, message: str) -> None:
    data = shrunk("gpt2").to_json()
    place = data
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(ConfigError, match=message):
        config_from_json(data)


def test_missing_keys_in_json() -> None:
    data = shrunk("gru-seq2seq").to_json()
    del data["decoder"]["vocabulary"]
    with pytest.raises(ConfigError, match=r"config\.decoder lacks vocabulary"):
        config_from_json(data)
    with pytest.raises(ConfigError, match="expected an object"):
        config_from_json([1])


def test_unknown_preset_suggests() -> None:
    with pytest.raises(ConfigError, match="no preset 'bert-bsae'; did you mean 'bert-base'"):
        cutaway.preset("bert-bsae")


def test_recurrent_source_vocabulary_is_its_own() -> None:
    network = build(shrunk("gru-seq2seq"))
    with pytest.raises(InputError, match=f"outside this model's {SOURCE_VOCABULARY}"):
        network.encode(torch.full((1, 2), SOURCE_VOCABULARY))


@pytest.mark.parametrize("kind", [ConfigError, InputError, CheckpointError, UnknownNameError])
def test_an_error_is_one_line(kind: type[Exception]) -> None:
    assert str(kind("no tensor 'a\nb\r'")) == r"no tensor 'a\nb\r'"
    assert len(str(kind("x" * 10_000))) < 1600
