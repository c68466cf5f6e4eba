"""Blocks and stacks against the numpy oracle, and where their dropout acts."""

import math

import pytest
import torch
from torch import nn

from cutaway.errors import InputError
from cutaway.parts.attention import Attention
from cutaway.parts.block import Block
from cutaway.parts.cache import Memory
from cutaway.parts.embedding import Embedding, PatchEmbedding
from cutaway.parts.feedforward import FeedForward
from cutaway.parts.recurrent import RecurrentLayer
from cutaway.parts.stack import Stack
from cutaway.parts.tap import listening
from tests.numbers import oracle
from tests.support.families import arrays, noisy
from tests.support.parts import SAME_SUMS, B, D, F, H, K, S, T, close, double, equal


def oracle_block(p, x, memory, place, kind):
    """One block by itself, over the names of the parameters."""
    formula = {"layer": oracle.layer_norm, "rms": oracle.rms_norm}[kind]
    for name in ("self_attention", "cross_attention", "feedforward"):
        part, scale = oracle.under(p, f"{name}."), oracle.under(p, f"{name}_norm.")
        if not part:
            continue

        def f(y, part=part, name=name):
            if name == "feedforward":
                return oracle.feedforward(part, y, "relu")
            return oracle.attention(part, y, memory if name == "cross_attention" else None, n_heads=H)

        x = x + f(formula(scale, x, 0.1)) if place == "pre" else formula(scale, x + f(x), 0.1)
    return x


@pytest.mark.parametrize("cross", [True, False])
@pytest.mark.parametrize("place", ["pre", "post"])
@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_block(run, kind, place, cross):
    block = noisy(
        Block(
            Attention(D, H, d_head=K),
            FeedForward(D, F),
            Attention(D, H, d_head=K) if cross else None,
            norm_kind=kind,
            norm_place=place,
            norm_epsilon=0.1,
        )
    )
    x, memory = torch.randn(B, T, D), torch.randn(B, S, D) if cross else None
    y = run(block, x, memory)
    for b in range(B):
        theirs = oracle_block(arrays(block), double(x[b]), double(memory[b]) if cross else None, place, kind)
        close(y[b], theirs, rtol=0, atol=3e-5)  # three parts, one after another
    if not run.is_fused:
        equal(run.seen["input"], x)
        equal(run.seen["output"], y)


def drops(module, *args, **options):
    """Whether two runs in training differ; in evaluation they must not."""
    module.eval()
    equal(module(*args, **options), module(*args, **options))
    module.train()
    return not torch.equal(module(*args, **options), module(*args, **options))


def test_where_dropout_acts(run):
    x, tokens, images = torch.randn(B, T, D), torch.randint(19, (B, T)), torch.randn(B, 3, 12, 12)

    def block(p):
        return Block(Attention(D, 2), FeedForward(D, F), dropout=p)

    for p in (0.0, 0.5):
        assert drops(lambda_module(run, Attention(D, 2, dropout=p)), x) is (p > 0)
        assert drops(lambda_module(run, FeedForward(D, F, dropout=p)), x) is (p > 0)
        assert drops(lambda_module(run, block(p)), x) is (p > 0)
        assert drops(lambda_module(run, Embedding(19, D, dropout=p)), tokens, torch.arange(T), T) is (p > 0)
        patches = PatchEmbedding(D, image_size=12, patch_size=4, dropout=p)
        assert drops(lambda_module(run, patches), images, torch.arange(10), 10) is (p > 0)
        assert drops(RecurrentLayerOutputs("gru", D, 8, weight_dropout=p), x) is (p > 0)


def lambda_module(run, module):
    """The module, run on the path of this test."""

    class Run(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = module

        def forward(self, *args, **options):
            return run(self.inner, *args, **options)

    return Run()


class RecurrentLayerOutputs(RecurrentLayer):
    def forward(self, *args, **options):
        return super().forward(*args, **options)[0]


def test_residual_dropout_falls_on_what_is_added():
    """post: norm(x + dropout(f(x))); the stream itself is never dropped."""
    block = Block(Attention(D, 2), FeedForward(D, F), norm_place="pre", dropout=0.5)
    seen = {}
    x = torch.randn(200, T, D)
    with listening(block, {"*": lambda value, name: seen.__setitem__(name, value)}):
        block(x)
    added = seen["self_attention_add"] - x
    dropped = added == 0
    assert dropped.float().mean() == pytest.approx(0.5, abs=5 * 0.5 / math.sqrt(added.numel()))  # 5 deviations
    kept = 2 * seen["self_attention.output"][~dropped]
    torch.testing.assert_close(added[~dropped], kept, **SAME_SUMS)


def tiny_stack(**options):
    block = Block(Attention(D, 2), FeedForward(D, F), Attention(D, 2) if options.pop("cross", False) else None)
    return Stack(Embedding(19, D), [block], causal=True, **options)


def test_a_block_reads_a_memory_if_and_only_if_it_has_cross_attention():
    x = torch.zeros(B, T, D)
    plain = Block(Attention(D, H, d_head=K), FeedForward(D, D))
    with pytest.raises(InputError, match="a memory was given, but this block has no cross-attention"):
        plain(x, x)
    with pytest.raises(InputError, match="has a cross-attention, which needs a memory"):
        Block(Attention(D, H, d_head=K), FeedForward(D, D), Attention(D, H, d_head=K))(x)


def test_stack_errors():
    with pytest.raises(InputError, match=r"^2 target rows, but the memory has 3; they must be the same$"):
        tiny_stack(cross=True)(torch.zeros(2, T).long(), Memory(torch.randn(3, S, D)))
    with pytest.raises(InputError, match=r"^the mask has shape \[3, 4\]; the tokens it belongs to have \[3, 5\]$"):
        tiny_stack()(torch.zeros(B, T).long(), mask=torch.ones(B, 4).bool())
