"""Analyses against the same thing done another way: by numpy, by weights that are zeroed, by the model itself."""

import copy
import dataclasses
import json
import sys
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

import cutaway
from cutaway.errors import InputError
from cutaway.generation import Generation
from cutaway.model import Model
from cutaway.models.build import build
from cutaway.models.config import AnswerSpan, Classifier, MaskedLanguageModel, TransformerConfig
from cutaway.models.network import Network
from cutaway.parts.attention import Attention
from cutaway.parts.tap import listening
from cutaway.seeing.attribution.analysis import (
    head_importance,
    integrated_gradients,
    logit_lens,
    read_early,
    residual_lengths,
    rollout,
)
from cutaway.seeing.interventions.compare import places
from cutaway.seeing.trace.trace import Trace
from tests.support import families
from tests.support import small_models as small
from tests.support.families import TRANSFORMERS, example_inputs, noisy, shrunk
from tests.support.mistakes import assert_mistakes

CLOSE = {"rtol": 2e-5, "atol": 2e-5}  # the same float32 arithmetic, by another kernel
SPEAKING = [name for name in TRANSFORMERS if name not in ("bert-tiny", "distilbert-base")]
KEEP = ["*.embedding.output", "*.blocks.*.output", "*.self_attention.weights"]


@cache
def model(name: str, head: Any = None, masked: str | None = None) -> Model:
    """`head` in the place of its own, on an encoder of text."""
    if name == "vit-tiny":
        network = noisy(build(shrunk(name)), std=0.3).eval()
        assert isinstance(network, Network)
        return Model(network, name=name)
    if head is None:
        return small.model(name)
    words = small.tokenizer("wordpiece", **({"mask": masked} if masked else {}))
    config = shrunk(name)
    assert isinstance(config, TransformerConfig)
    assert config.encoder is not None
    stack = dataclasses.replace(config.encoder, vocabulary=words.vocabulary_size, max_positions=64)
    network = noisy(build(dataclasses.replace(config, encoder=stack, head=head)), std=0.3).eval()
    assert isinstance(network, Network)
    return Model(network, words, name=name)


def given(name: str) -> tuple[Any, ...]:
    if name == "vit-tiny":
        return (torch.rand(3, 12, 12, generator=torch.Generator().manual_seed(0)),)
    both = model(name).network.has_encoder and model(name).network.has_decoder
    return ("The cat sat on the mat.", "Le chat est assis") if both else ("The cat sat on the mat.",)


# ---- the logit lens


@pytest.mark.parametrize("padding", [None, "right", "left"])
@pytest.mark.parametrize("name", SPEAKING)
def test_the_lens_at_the_last_block_is_the_model(name: str, padding: Any) -> None:
    config = shrunk(name)
    network, inputs = families.noisy(build(config), std=0.1).eval(), example_inputs(config, padding=padding)
    assert isinstance(network, Network)
    trace = cutaway.trace(network, *inputs.args, keep=KEEP, **inputs.options)
    assert trace.output is not None
    side = "encoder" if network.decoder is None else "decoder"
    n = len(getattr(network, side).blocks)
    for row in range(3):
        lens = logit_lens(network, trace, row=row, top=4)
        names = [f"{side}.embedding.output", *(f"{side}.blocks.{i}.output" for i in range(n))]
        assert [layer.name for layer in lens.layers] == names
        torch.testing.assert_close(read_early(network, trace, names[-1], row), trace.output[row], **CLOSE)
        said = trace.output[row].softmax(-1).reshape(-1, trace.output.shape[-1])
        assert lens.final.shape == (n + 1, len(said))
        torch.testing.assert_close(lens.final[-1], said.max(-1).values, **CLOSE)
        own = places(network, trace.output[row], trace.words, 4)
        for ours, last in zip(own, lens.layers[-1].places, strict=True):
            assert [each.id for each in ours.top] == [each.id for each in last.top]
            assert [each.p for each in ours.top] == pytest.approx([each.p for each in last.top], abs=1e-5)


@pytest.mark.parametrize("name", ["gpt2", "llama-15m", "t5-small", "transformer-tiny"])
def test_the_lens_at_an_early_block_is_a_model_that_ends_there(name: str) -> None:
    """Built without the later blocks."""
    made, asked = model(name), given(name)
    trace = made.trace(*asked, keep=KEEP)
    lens = logit_lens(made, trace)
    shorter = copy.deepcopy(made)
    del shorter.network.decoder.blocks[-1]
    expected = shorter.trace(*asked, keep=KEEP)
    assert expected.output is not None
    torch.testing.assert_close(read_early(made.network, trace, "decoder.blocks.0.output"), expected.output[0], **CLOSE)
    first = lens.layers[1]
    assert [place.label for place in first.places] == list(trace.words.target)
    assert {place.side for place in first.places} == {"target"}
    best = expected.output[0].softmax(-1).max(-1)
    assert [place.top[0].id for place in first.places] == best.indices.tolist()
    assert [place.top[0].p for place in first.places] == pytest.approx(best.values.tolist(), abs=1e-5)
    assert first.places[0].top[0].text == trace.words.vocabulary[best.indices[0]]
    told = json.loads(json.dumps(lens.to_json()))
    assert told["layers"][1]["name"] == "decoder.blocks.0.output"
    assert set(told["layers"][1]["places"][0]["top"][0]) == {"id", "text", "p"}


@pytest.mark.parametrize("name", ["bert-tiny", "distilbert-base"])
@pytest.mark.parametrize("head", [MaskedLanguageModel(), Classifier(n_classes=5, hidden="tanh"), AnswerSpan()])
def test_the_lens_of_an_encoder(name: str, head: Any) -> None:
    made = model(name, head)
    trace = made.trace("The cat sat on the mat.", keep=KEEP)
    assert trace.output is not None
    lens = logit_lens(made, trace)
    assert len(lens.layers) == 4
    torch.testing.assert_close(read_early(made.network, trace, "encoder.blocks.2.output"), trace.output[0], **CLOSE)
    own = places(made, trace.output[0], trace.words)
    assert [place.top[0].id for place in lens.layers[-1].places] == [place.top[0].id for place in own]
    assert [place.label for place in lens.layers[0].places] == {
        "masked_language_model": list(trace.words.source),
        "classifier": ["class"],
        "answer_span": ["begins at", "ends at"],
    }[head.kind]
    for layer in lens.layers:
        assert all(0 < each.p <= 1 for place in layer.places for each in place.top)


# ---- attention rollout


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_rollout_by_numpy(name: str) -> None:
    config = shrunk(name)
    network, inputs = families.noisy(build(config), std=0.1), example_inputs(config, padding="left")
    trace = cutaway.trace(network, *inputs.args, keep=KEEP, **inputs.options)
    for side in ("encoder", "decoder"):
        stack = getattr(config, side)
        if stack is None:
            continue
        for row in (0, 2):
            found = rollout(trace, side, row=row)
            expected = None
            for i in range(stack.n_blocks):
                heads = trace[f"{side}.blocks.{i}.self_attention.weights"][row].numpy().astype(np.float64)
                mixed = heads.mean(axis=0) + np.eye(heads.shape[-1])
                mixed /= mixed.sum(axis=1, keepdims=True)
                expected = mixed if expected is None else np.matmul(mixed, expected)
                np.testing.assert_allclose(found.through[i].numpy(), expected, atol=1e-12)
            np.testing.assert_allclose(found.values.sum(-1).numpy(), 1.0, atol=1e-6)  # weights are softmaxed in float32
            if side == "decoder":
                assert not found.values.triu(1).any() or row, "nothing comes from the future"


def test_rollout_says_whose_tokens() -> None:
    trace = model("transformer-tiny").trace("The cat sat.", "Le chat", keep=KEEP)
    assert rollout(trace, "encoder").tokens == trace.words.source
    found = rollout(trace, "decoder")
    assert found.tokens == trace.words.target
    assert found.to_json() == {"shape": [3, 3], "values": found.values.tolist()}


# ---- the residual stream


def test_lengths_of_the_residual_stream() -> None:
    trace = model("transformer-tiny").trace("The cat sat.", "Le chat", keep=KEEP)
    encoder, decoder = residual_lengths(trace)
    assert (encoder.stack, decoder.stack) == ("encoder", "decoder")
    assert decoder.names == ("decoder.embedding.output", "decoder.blocks.0.output", "decoder.blocks.1.output")
    assert decoder.tokens == trace.words.target
    for record in (encoder, decoder):
        for name, row in zip(record.names, record.values, strict=True):
            expected = np.sqrt((trace[name][0].numpy().astype(np.float64) ** 2).sum(-1))
            np.testing.assert_allclose(row.numpy(), expected, rtol=1e-12)
    [only] = residual_lengths(model("gpt2").trace("The cat", keep=KEEP))
    assert only.values.shape == (3, len(only.tokens))


# ---- which heads matter


def by_hand(made: Model, asked: tuple[Any, ...], place: str, head: int) -> torch.Tensor:
    """The log-probabilities without a head: its columns of W_O are zeroed for good."""
    without = copy.deepcopy(made)
    attention = without.network.get_submodule(place)
    assert isinstance(attention, Attention)
    width = attention.out.in_features // attention.n_heads
    with torch.no_grad():
        attention.out.weight[:, head * width : (head + 1) * width] = 0
    output = without.trace(*asked, keep="*.embedding.output").output
    assert output is not None
    return output[0].double().log_softmax(-1)


@pytest.mark.parametrize("name", ["transformer-tiny", "flan-t5-small", "gpt2", "llama-15m", "vit-tiny"])
def test_importance_is_ablation_by_hand(name: str) -> None:
    made, asked = model(name), given(name)
    found = head_importance(made, *asked)
    attentions = {each: part.n_heads for each, part in made.network.named_modules() if isinstance(part, Attention)}
    assert found.attentions == tuple(attentions)
    assert [len(row) for row in found.drops] == list(attentions.values())
    trace = made.trace(*asked, keep="*.embedding.output")
    assert trace.output is not None
    before = trace.output[0].double().log_softmax(-1)

    def logprob(said: torch.Tensor) -> float:
        if name == "vit-tiny":
            return float(said[before.argmax()])
        read = trace.run.inputs.get("target", trace.run.inputs["tokens"])[0]
        return sum(float(said[t, token]) for t, token in enumerate(read[1:].tolist()))

    assert found.logprob == pytest.approx(logprob(before), abs=1e-4)
    for i, place in enumerate(attentions):
        head = i % attentions[place]
        drop = logprob(before) - logprob(by_hand(made, asked, place, head))
        # some twenty log-probabilities, each the same float32 arithmetic in another batch
        assert found.drops[i][head] == pytest.approx(drop, abs=2e-4)
    assert any(abs(drop) > 1e-2 for row in found.drops for drop in row)
    ranked = found.ranked()
    assert [each[2] for each in ranked] == sorted((drop for row in found.drops for drop in row), reverse=True)


def test_importance_in_small_batches_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    from cutaway.seeing.attribution import importance

    whole = head_importance(model("gpt2"), "The cat sat.")
    monkeypatch.setattr(importance, "MOST_ROWS", 3)
    parts = head_importance(model("gpt2"), "The cat sat.")
    for a, b in zip(whole.drops, parts.drops, strict=True):
        assert a == pytest.approx(b, abs=1e-4)


def test_importance_of_what_a_model_writes_counts_its_end() -> None:
    made = model("transformer-tiny")
    found = head_importance(made, "The cat sat.", generation=Generation(max_new_tokens=6))
    trace = made.trace("The cat sat.", generation=Generation(max_new_tokens=6))
    assert trace.search is not None
    assert trace.output is not None
    written = trace.search.written[0]
    said = [*written.ids, *([] if written.end is None else [written.end])]
    logprobs = trace.output[0].double().log_softmax(-1)
    assert found.logprob == pytest.approx(sum(float(logprobs[t, token]) for t, token in enumerate(said)), abs=1e-4)


def test_importance_for_the_words_in_blanks() -> None:
    made = model("bert-tiny", MaskedLanguageModel(), "[MASK]")
    text = "The [MASK] sat on the [MASK]."
    found = head_importance(made, text)
    trace = made.trace(text, keep="*.embedding.output")
    assert trace.output is not None
    assert made.tokenizer is not None
    logprobs = trace.output[0].double().log_softmax(-1)
    blanks = [
        t for t, number in enumerate(trace.run.inputs["tokens"][0].tolist()) if number == made.tokenizer.special.mask
    ]
    assert len(blanks) == 2
    assert found.logprob == pytest.approx(float(logprobs[blanks].max(-1).values.sum()), abs=1e-4)
    without = by_hand(made, (text,), found.attentions[1], 3)
    drop = found.logprob - sum(float(without[t, logprobs[t].argmax()]) for t in blanks)
    assert found.drops[1][3] == pytest.approx(drop, abs=1e-4)
    plain = head_importance(made, "The cat sat.")
    logprobs = made.trace("The cat sat.", keep="*.embedding.output").output[0].double().log_softmax(-1)  # type: ignore[index]
    ids = made.tokenizer.encode("The cat sat.").ids
    assert plain.logprob == pytest.approx(sum(float(logprobs[t, token]) for t, token in enumerate(ids)), abs=1e-4)


# ---- integrated gradients


@pytest.mark.parametrize(
    "name", ["transformer-tiny", "t5-small", "gpt2", "llama-15m", "vit-tiny", "bahdanau-gru", "awd-lstm"]
)
def test_attributions_sum_to_what_they_explain(name: str) -> None:
    made, asked = model(name), given(name)
    before = {key: value.clone() for key, value in made.network.state_dict().items()}
    found = integrated_gradients(made, *asked)
    trace = made.trace(*asked, keep="*.embedding.output")
    assert trace.output is not None
    logprobs = trace.output[0].double().log_softmax(-1).reshape(-1, trace.output.shape[-1])
    best = int(logprobs[-1].argmax())
    assert found.place == len(logprobs) - 1
    assert found.logprob == pytest.approx(float(logprobs[-1, best]), abs=1e-4)
    assert found.text == (str(best) if name == "vit-tiny" else trace.words.vocabulary[best])
    whole = found.logprob - found.baseline
    assert abs(whole) > 1e-3
    assert sum(found.source) + sum(found.target) == pytest.approx(whole + found.gap, abs=1e-9)
    assert abs(found.gap) <= 0.01 * abs(whole)
    assert len(found.source) == len(trace.words.source)
    assert len(found.target) == len(trace.words.target)
    assert all(torch.equal(value, before[key]) for key, value in made.network.state_dict().items())
    assert all(weight.grad is None for weight in made.network.parameters())


def test_attributions_by_a_sum_of_gradients() -> None:
    """captum's integral against the plainest one: the mean gradient over many points of the way."""
    made = model("gpt2")
    found = integrated_gradients(made, "The cat sat.", place=2, choice=7, steps=128)
    tokens = torch.tensor([made.tokenizer.encode("The cat sat.").ids])  # type: ignore[union-attr]
    embedding = made.network.decoder.embedding
    with torch.no_grad():
        positions = embedding.positions.weight[: tokens.shape[1]]
        full = embedding.tokens.weight[tokens] + positions
        empty = embedding.tokens.weight.mean(0) + positions.unsqueeze(0)
    total = torch.zeros_like(full)
    n = 200
    for i in range(n):
        point = (empty + (full - empty) * (i + 0.5) / n).requires_grad_()
        with listening(made.network, {"decoder.embedding.output": lambda *_, point=point: point}):
            value = made.network(tokens)[0, 2].log_softmax(-1)[7]
        total += torch.autograd.grad(value, point)[0] / n
    expected = ((full - empty) * total).sum(-1)[0]
    assert found.target == pytest.approx(expected.tolist(), abs=2e-2 * float(expected.abs().max()))
    assert found.target[3:] == (0.0,) * (tokens.shape[1] - 3), "what comes after the place adds nothing"


def test_attributions_of_a_blank_a_class_and_from_another_baseline() -> None:
    made = model("bert-tiny", MaskedLanguageModel(), "[MASK]")
    found = integrated_gradients(made, "The [MASK] sat.")
    assert found.words.source[found.place] == "[MASK]"
    assert made.tokenizer is not None
    same = integrated_gradients(made, "The [MASK] sat.", baseline=made.tokenizer.special.mask)
    assert same.source[same.place] == 0.0, "the blank is its own baseline"
    assert same.baseline != found.baseline
    classes = model("distilbert-base", Classifier(n_classes=5))
    one = integrated_gradients(classes, "The cat sat.", choice=3)
    assert (one.place, one.text) == (0, "3")
    assert len(one.source) == len(one.words.source)


def test_captum_that_is_missing_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "captum.attr", None)
    with pytest.raises(InputError, match="captum's, which is not installed: pip install captum"):
        integrated_gradients(model("gpt2"), "The cat sat.")


# ---- mistakes


def kept(made: Model, *keep: str) -> Trace:
    both = made.network.has_encoder and made.network.has_decoder
    return made.trace("The cat", *(("Le",) if both else ()), keep=keep)


def test_mistakes_are_one_sentence() -> None:
    recurrent, decoder = model("bahdanau-gru"), model("gpt2")
    vector = small.headed("bert-tiny", small.tokenizer("wordpiece"))
    weights, outputs = "*.weights", "*.embedding.output"
    mistakes: list[tuple[Any, str]] = [
        (lambda: logit_lens(recurrent, kept(recurrent, "*")), "this trace has no decoder made of blocks: there is no 'decoder.blocks.*.output'"),
        (lambda: logit_lens(decoder, kept(decoder, weights)), "this trace did not keep all of 'decoder.blocks.*.output'; trace again with keep='*'"),
        (lambda: logit_lens(vector, vector.trace("The cat")), "this model predicts no words and no classes, so there is no logit lens"),
        (lambda: rollout(kept(decoder, outputs), "decoder"), "this trace did not keep all of 'decoder.blocks.*.self_attention.weights'"),
        (lambda: rollout(kept(decoder, weights), "encoder"), "this trace has no encoder made of blocks"),
        (lambda: rollout(kept(decoder, weights), "decodr"), "stack: no choice 'decodr'; did you mean 'decoder'?"),  # type: ignore[arg-type]
        (lambda: residual_lengths(kept(recurrent, "*")), "this trace has no encoder made of blocks"),
        (lambda: residual_lengths(kept(decoder, "head.*")), "this trace holds no residual stream"),
        (lambda: head_importance(recurrent, "The cat", "Le"), "bahdanau-gru has no attention heads"),
        (lambda: head_importance(vector, "The cat"), "bert-tiny predicts no words and no classes, so there is no probability to explain"),
    ]  # fmt: skip
    mistakes += [
        (lambda: integrated_gradients(decoder, "The cat", place=9), "there is no place 9 among"),
        (lambda: integrated_gradients(decoder, "The cat", choice=999), "there is no choice 999 among"),
        (lambda: integrated_gradients(decoder, "The cat", steps=0), "steps=0 must be at least 1"),
        (lambda: integrated_gradients(decoder, "The cat", baseline=999), "token id 999 is outside"),
        (lambda: integrated_gradients(vector, "The cat"), "bert-tiny predicts no words and no classes"),
        (lambda: integrated_gradients(model("vit-tiny"), *given("vit-tiny"), baseline=3), "baseline=3 is a token; the baseline of an image is grey, so leave it out"),
    ]  # fmt: skip
    assert_mistakes(mistakes)


# ruff: noqa: E501
