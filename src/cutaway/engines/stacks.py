"""A stack of blocks in 8 bits, all of them in one call of c/stack.c: what a step costs is then its products.

Who listens, and what the kernels do not know, goes block by block as ever.
"""

import ctypes
from typing import Any

import torch
from torch import Tensor

from cutaway import kernels as c
from cutaway.engines.int8_layers import FUSED, Gated, Int8Linear
from cutaway.engines.steps import QuickRotation
from cutaway.kernels.arguments import address, axes
from cutaway.models.network import Network
from cutaway.parts.attention import Attention, split_heads
from cutaway.parts.block import Block
from cutaway.parts.cache import Cache
from cutaway.parts.feedforward import FeedForward
from cutaway.parts.kv_cache import KeyValues
from cutaway.parts.masks import Bias
from cutaway.parts.norms import LayerNorm, RMSNorm
from cutaway.parts.stack import Around, Stack
from cutaway.parts.tap import anybody_listens

LONGEST = 512  # keys of several queries; beyond, torch's attention is the faster one


class WholeStack:
    """`Stack.through_blocks` in one call."""

    def __init__(self, stack: Stack, kernels: c.Kernels) -> None:
        self.stack, self.kernels = stack, kernels
        first: Block = stack.blocks[0]  # type: ignore[assignment]
        attention, cross = first.self_attention, first.cross_attention
        self.heads, self.groups = attention.n_heads, attention.n_kv_heads
        self.width = attention.q.out_features // self.heads
        blocks = (c.Block * len(stack.blocks))(*(_block(block) for block in stack.blocks))  # type: ignore[arg-type]
        self.record = c.Stack(
            blocks, len(blocks), attention.out.out_features, self.heads, self.groups, self.width,
            first.feedforward.down.in_features, first.norm_place == "post", cross is not None,
            FUSED[first.feedforward.activation] if first.feedforward.gate is not None else 0,
            attention.scale, 0.0 if cross is None else cross.scale, _norm(stack.final_norm),
        )  # fmt: skip
        self.blocks = blocks  # the record has its address only
        self.cross = cross is not None
        self.names = [(f"{i}.self_attention", f"{i}.cross_attention") for i in range(len(blocks))]
        self.addresses = ctypes.c_void_p * len(blocks)

    def __call__(self, x_BTD: Tensor, around: Around) -> Tensor:
        B, T, _ = x_BTD.shape
        cache = around.cache
        n_keys = T + (0 if cache is None else cache.length)
        unknown = (self.cross and cache is None) or (T > 1 and (n_keys > LONGEST or around.holders is not None))
        if self.stack.windows:  # some see less than others
            unknown = unknown or any(bias is not around.biases[0] for bias in around.biases)
        if unknown or anybody_listens():
            return self.stack.through_blocks(x_BTD, around)
        x_BTD = x_BTD.detach().contiguous()  # changed in place: nobody else has seen it
        call = c.Call(rows=B, queries=T, past=n_keys - T, serves=around.serves)
        alive: list[object] = []  # until the kernel is done
        slots: list[KeyValues] = []
        if cache is not None:
            slots = [cache.slot(name) for name, _ in self.names]
            buffers = [slot.reserve(B, self.groups, T, self.width) for slot in slots]
            call.room = buffers[0][0].shape[2]
            call.keys, call.values = self._addresses(buffers, alive)
        if cache is not None and self.cross:
            made = [self._memory(i, around, cache) for i in range(len(self.blocks))]
            call.memory_room = made[0][0].shape[2]
            call.memory_keys = cache.slots[self.names[0][1]].length
            call.memory_k, call.memory_v = self._addresses(made, alive)
            call.memory_bias = self._bias(around.memory_bias, B // around.serves, T, call.memory_keys, alive)
        call.bias = self._bias(around.biases[0], B, T, n_keys, alive)
        if around.holders is not None:
            call.holders = address(around.holders, (B, n_keys), torch.int64)
        if around.rotation is not None:
            assert isinstance(around.rotation, QuickRotation)
            call.rotation = ctypes.pointer(around.rotation.record(B, T, self.width))
        self.kernels.run_stack(self.record, call, address(x_BTD, (B, T, self.record.width)))
        for slot in slots:
            slot.length = n_keys
        return x_BTD

    def _addresses(self, pairs: list[tuple[Tensor, Tensor]], alive: list[object]) -> tuple[int, int]:
        """Where the addresses of the keys are, and those of the values."""
        shape = pairs[0][0].shape
        keys = self.addresses(*(address(k, shape) for k, _ in pairs))
        values = self.addresses(*(address(v, shape) for _, v in pairs))
        alive += keys, values
        return ctypes.addressof(keys), ctypes.addressof(values)

    def _memory(self, i: int, around: Around, cache: Cache) -> tuple[Tensor, Tensor]:
        """The keys and values of the memory, made once."""
        slot = cache.slot(self.names[i][1], grows=False)
        if slot.keys is None or slot.values is None:
            attention: Attention = self.stack.blocks[i].cross_attention  # type: ignore[assignment]
            assert around.memory is not None
            k, v = (split_heads(each(around.memory), self.groups) for each in (attention.k, attention.v))
            slot.append(k, v)
        assert slot.keys is not None
        assert slot.values is not None
        return slot.keys, slot.values

    def _bias(self, bias: Bias, n_rows: int, T: int, n_keys: int, alive: list[object]) -> Any:
        if bias.dense is None:
            return None
        dense = bias.dense.expand(n_rows, self.heads, T, n_keys)
        dense = dense if dense.stride(3) == 1 else dense.contiguous()
        alive.append(dense)
        return ctypes.pointer(axes(dense))


def _norm(norm: LayerNorm | RMSNorm | None) -> c.Norm:
    if norm is None:
        return c.Norm()
    bias = norm.bias.data_ptr() if isinstance(norm, LayerNorm) else None
    return c.Norm(norm.weight.data_ptr(), bias, norm.epsilon)


def _record(layer: object) -> c.Linear:
    assert isinstance(layer, Int8Linear)
    return layer.record


def _block(block: Block) -> c.Block:
    attention, cross, feedforward = block.self_attention, block.cross_attention, block.feedforward
    up, down = feedforward.fused  # type: ignore[misc]
    return c.Block(
        joined=_record(attention.joined), out=_record(attention.out),
        cross_q=c.Linear() if cross is None else _record(cross.q),
        cross_out=c.Linear() if cross is None else _record(cross.out),
        up=_record(up.joined if isinstance(up, Gated) else up), down=_record(down),
        self_norm=_norm(block.self_attention_norm),
        cross_norm=c.Norm() if cross is None else _norm(block.cross_attention_norm),
        feedforward_norm=_norm(block.feedforward_norm),
    )  # fmt: skip


def with_whole_stacks(network: Network) -> None:
    """The stacks of a network in 8 bits, by kernels that can multiply them."""
    made = c.kernels()
    if made is None or not made.multiply:
        return
    for stack in network.modules():
        if isinstance(stack, Stack) and all(_known(block.feedforward) for block in stack.blocks):  # type: ignore[arg-type]
            stack.fused = WholeStack(stack, made)


def _known(feedforward: FeedForward) -> bool:
    return feedforward.fused is not None and feedforward.activation in FUSED
