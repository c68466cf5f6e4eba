"""Operations undo themselves, and names expand as the rules say."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cutaway.checkpoints.rules import FLIP, ROW, SAME, NameMap, Operation, Rule, flatten, halves, split, split_columns
from cutaway.errors import CheckpointError

OPERATIONS: dict[str, tuple[Operation, tuple[int, ...]]] = {
    "same": (SAME, (3, 5)),
    "flip": (FLIP, (3, 5)),
    "row": (ROW, (1, 4, 5)),
    "split": (split(3), (6, 5)),
    "flatten": (flatten(2, 4, 4), (3, 2, 4, 4)),
    "halves": (halves(2), (12, 5)),
    "columns": (split_columns(3), (5, 6)),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_saving_undoes_loading_bit_by_bit(name: str) -> None:
    operation, shape = OPERATIONS[name]
    theirs = torch.randn(shape)
    ours = operation.load(theirs)
    assert torch.equal(operation.save(ours), theirs)
    assert operation.save(tuple(tensor.to("meta") for tensor in ours)).shape == theirs.shape  # shapes alone suffice


def test_columns_are_queries_keys_and_values() -> None:
    q, k, v = torch.randn(3, 2, 5)
    conv = torch.cat((q.T, k.T, v.T), dim=1)  # [in, 3 · out]
    assert all(map(torch.equal, split_columns(3).load(conv), (q, k, v)))


@given(st.integers(1, 4), st.integers(1, 5))
def test_halves_put_even_rows_before_odd_ones(n_heads: int, half: int) -> None:
    rows = torch.arange(n_heads * half * 2).unsqueeze(1)
    (ours,) = halves(n_heads).load(rows)
    for head in ours.view(n_heads, 2 * half):
        start = int(head[0])
        assert head.tolist() == [*range(start, start + 2 * half, 2), *range(start + 1, start + 2 * half, 2)]


def test_names() -> None:
    names = NameMap(
        body=[
            Rule("h.{i}.ln.{weight,bias}", "decoder.blocks.{i}.norm.{weight,bias}"),
            Rule("h.{i}.qkv", "decoder.blocks.{i}.[q,k]", split(2)),
            Rule("other.{a,b}.{weight,bias}", "decoder.{x,y}.{weight,bias}"),
        ],
        head=[Rule("out", "head.weight")],
    )
    ours = dict.fromkeys([
        "decoder.blocks.0.norm.weight", "decoder.blocks.0.q", "decoder.blocks.0.k",
        "decoder.blocks.1.norm.weight", "decoder.blocks.1.norm.bias", "decoder.y.bias", "head.weight",
    ])  # fmt: skip
    pairs = {pair.theirs: (pair.ours, pair.in_head) for pair in names.pairs(ours)}
    assert pairs == {
        "h.0.ln.weight": (("decoder.blocks.0.norm.weight",), False),
        "h.1.ln.weight": (("decoder.blocks.1.norm.weight",), False),
        "h.1.ln.bias": (("decoder.blocks.1.norm.bias",), False),
        "h.0.qkv": (("decoder.blocks.0.q", "decoder.blocks.0.k"), False),
        "other.b.bias": (("decoder.y.bias",), False),
        "out": (("head.weight",), True),
    }
    with pytest.raises(CheckpointError, match="no name for encoder.x"):
        names.pairs(ours | {"encoder.x": None})


def test_ignored_names() -> None:
    names = NameMap(body=[], ignored=("h.*.attn.bias", "pooler.*"))
    assert names.is_unread("h.11.attn.bias")
    assert names.is_unread("pooler.dense.weight")
    assert not names.is_unread("h.1.attn.bias.x")
    assert not names.is_unread("hx1.attn.bias")
