"""Taps, and listening to them: names, replacements, nesting, threads."""

import asyncio
import threading
from functools import partial

import pytest
import torch
from torch import nn

from cutaway.errors import InputError
from cutaway.models.build import build
from cutaway.parts.attention import Attention
from cutaway.parts.norms import BatchNorm
from cutaway.parts.tap import Tap, heard, listening, taps
from tests.support.families import shrunk
from tests.support.parts import D, H, K, equal
from tests.support.threads import at_once


class Double(nn.Module):
    """Doubles, adds one, and shows both."""

    def __init__(self):
        super().__init__()
        self.doubled = Tap("BD", "2 x")
        self.output = Tap("BD", "2 x + 1")
        self.shown = Tap("BD", "the output once more", replaceable=False)

    def forward(self, x):
        y = self.output(self.doubled(2 * x) + 1)
        if heard(self.shown):
            self.shown(y)
        return y


X = torch.tensor([[1.0, 2.0, 3.0]])


def test_taps_have_names():
    module = nn.ModuleDict({"first": Double(), "second": Double()})
    names = [f"{half}.{name}" for half in ("first", "second") for name in ("doubled", "output", "shown")]
    assert list(taps(module)) == names
    assert taps(module)["second.doubled"] is module["second"].doubled
    assert not module.state_dict()  # checkpoints do not know them


def test_listener_hears_value_and_name():
    module, calls = Double(), []
    with listening(module, {"doubled": lambda value, name: calls.append((name, value))}):
        y = module(X)
    equal(y, 2 * X + 1)
    assert [name for name, _ in calls] == ["doubled"]
    equal(calls[0][1], 2 * X)


def test_listener_replaces():
    module = Double()
    with listening(module, {"doubled": lambda value, _: torch.zeros_like(value)}):
        equal(module(X), torch.ones(1, 3))
    equal(module(X), 2 * X + 1)


def test_replacement_keeps_the_dtype():
    module = Double()
    with listening(module, {"doubled": lambda value, _: value.double()}):
        assert module(X).dtype == torch.float32


def test_replacement_must_keep_the_shape():
    module = Double()
    expected = r"^a listener replaced 'doubled' by a tensor of shape \[1, 2\]; it must keep the shape \[1, 3\] \(BD\)$"
    with (
        listening(module, {"doubled": lambda value, _: value[:, :2]}),
        pytest.raises(InputError, match=expected),
    ):
        module(X)


def test_replacement_is_a_tensor():
    module = Double()
    for wrong in (3, [1.0], "x"):
        with (
            listening(module, {"doubled": lambda *_: wrong}),  # noqa: B023
            pytest.raises(InputError, match=r"a listener put .* in the place of 'doubled'; return a tensor, or None"),
        ):
            module(X)


def test_what_is_only_shown_cannot_be_replaced():
    module = Double()
    with (
        listening(module, {"shown": lambda value, _: value + 1}),
        pytest.raises(InputError, match=r"^'shown' is only for looking, nothing reads it afterwards"),
    ):
        module(X)


def test_listening_nests():
    module, order = Double(), []

    def plus(n):
        def listener(value, _):
            order.append(n)
            return value + n

        return listener

    with listening(module, {"doubled": plus(10)}):
        with listening(module, {"d*": plus(100)}):
            equal(module(X), 2 * X + 111)
        assert order == [10, 100]  # the outer one first
        equal(module(X), 2 * X + 11)
    equal(module(X), 2 * X + 1)
    assert order == [10, 100, 10]


def test_two_patterns_on_one_tap_are_both_called():
    module, calls = Double(), []
    with listening(module, {"d*": lambda *_: calls.append("d"), "*led": lambda *_: calls.append("led")}):
        module(X)
    assert calls == ["d", "led"]


def test_unknown_pattern_suggests():
    expected = r"^no tap 'doubeld'; did you mean 'doubled'\? \(known: doubled, output, shown\)$"
    with pytest.raises(InputError, match=expected), listening(Double(), {"doubeld": lambda *_: None}):
        pass


def test_heard():
    module = Double()
    assert not heard(module.doubled)
    with listening(module, {"doubled": lambda *_: None}):
        assert heard(module.doubled)
        assert heard(module.output, module.doubled)
        assert not heard(module.output)
        assert not heard(Double().doubled)  # another module's
    assert not heard(module.doubled)


def test_an_error_in_the_body_ends_the_listening():
    module, calls = Double(), []
    with pytest.raises(RuntimeError, match="boom"), listening(module, {"*": lambda *_: calls.append(1)}):
        raise RuntimeError("boom")
    module(X)
    assert not calls
    assert not heard(module.doubled)


def test_an_error_in_a_listener_ends_the_listening():
    module = Double()

    def broken(*_):
        raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"), listening(module, {"doubled": broken}):
        module(X)
    equal(module(X), 2 * X + 1)


def test_nothing_is_left_on_the_module():
    module = Double()
    before = {name: dict(vars(m)) for name, m in module.named_modules()}
    with listening(module, {"*": lambda *_: None}):
        module(X)
    assert {name: dict(vars(m)) for name, m in module.named_modules()} == before


def test_threads_do_not_hear_each_other():
    module = Double()
    inside, heard_by = threading.Barrier(3, timeout=10), {1: [], 2: []}
    results = {}

    def listen(n):
        with listening(module, {"doubled": lambda value, _: heard_by[n].append(value) or value + n}):
            inside.wait()  # all three run while two listen
            results[n] = module(n * X)

    def stranger():
        inside.wait()
        results[0] = module(X)

    at_once(partial(listen, 1), partial(listen, 2), stranger, seconds=10)
    equal(results[0], 2 * X + 1)
    for n in (1, 2):
        equal(results[n], 2 * n * X + 1 + n)
        assert len(heard_by[n]) == 1


def test_tasks_do_not_hear_each_other():
    module = Double()

    async def listen(n, both):
        with listening(module, {"doubled": lambda value, _: value + n}):
            await both.wait()  # the other task runs, and listens, meanwhile
            return module(X)

    async def main():
        both = asyncio.Barrier(2)
        return await asyncio.gather(listen(1, both), listen(2, both))

    first, second = asyncio.run(main())
    equal(first, 2 * X + 2)
    equal(second, 2 * X + 3)


def test_a_compiled_graph_has_no_ears(monkeypatch):
    module, calls = Double(), []
    with listening(module, {"*": lambda *_: calls.append(1)}):
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
        equal(module(X), 2 * X + 1)
        assert not heard(module.doubled)
    assert not calls


def test_tap_says_what_it_is():
    assert "BHTS: q kᵀ" in repr(Attention(8, 2).scores)


def test_formulas_say_what_is_computed():
    def formulas(part):
        return {name: tap.formula for name, tap in taps(part).items()}

    plain, bare = (formulas(Attention(D, H, d_head=K, qkv_bias=bias, out_bias=bias)) for bias in (True, False))
    assert (plain["queries"], plain["keys"], plain["output"]) == (
        "x W_Q + b_Q",
        "x W_K + b_K",
        "concatenated W_O + b_O",
    )
    assert (bare["queries"], bare["values"], bare["output"]) == ("x W_Q", "x W_V", "concatenated W_O")
    t5 = {name: tap.formula for name, tap in taps(build(shrunk("t5-small"))).items()}
    block = "decoder.blocks.0"
    assert t5[f"{block}.cross_attention.keys"] == "memory W_K"
    assert t5[f"{block}.cross_attention.queries"] == "x W_Q"
    assert t5[f"{block}.self_attention.keys"] == "x W_K"
    assert "position bias" in t5[f"{block}.self_attention.masked_scores"]
    assert "position bias" not in t5[f"{block}.cross_attention.masked_scores"]
    assert t5[f"{block}.feedforward.hidden"] == "x W₁"
    assert t5["head.vocabulary.logits"] == "hidden / √D · tableᵀ"
    awd = {name: tap.formula for name, tap in taps(build(shrunk("awd-lstm"))).items()}
    assert awd["head.vocabulary.logits"] == "hidden · tableᵀ + b"
    llama = {name: tap.formula for name, tap in taps(build(shrunk("llama-15m"))).items()}
    assert not [name for name, formula in llama.items() if " + b" in formula and "bias" not in formula]
    assert "running average" in formulas(BatchNorm(D))["mean"]
