"""A stack of blocks in 8 bits, all of them in one call of kernels/stack.c: what a step costs is then its products.

While somebody listens, and for what the kernel does not know, it runs block by block as ever.
"""

import ctypes
from typing import Any

import torch
from torch import Tensor

from cutaway import kernels as c
from cutaway.engines.fused_modules import FusedRotation
from cutaway.engines.int8_layers import FUSED, Int8Attention, Int8FeedForward, Int8Linear
from cutaway.kernels.arguments import address, axes
from cutaway.models.network import Network
from cutaway.parts.attention import Attention, split_heads
from cutaway.parts.block import Block
from cutaway.parts.cache import Cache
from cutaway.parts.kv_cache import KVCache
from cutaway.parts.masks import Bias
from cutaway.parts.norms import LayerNorm, RMSNorm
from cutaway.parts.stack import BlockContext, Stack
from cutaway.parts.tap import anybody_listens

LONGEST = 512  # keys of several queries; beyond, torch's attention is the faster one


class FusedStack(Stack):
    """A stack whose blocks run in one call."""

    call: "StackCall"

    def kernel(self, x_BTD: Tensor, context: BlockContext) -> Tensor | None:
        T, cache = x_BTD.shape[1], context.cache
        n_keys = T + (0 if cache is None else cache.length)
        unknown = self.call.cross and cache is None
        if T > 1:
            unknown = unknown or n_keys > LONGEST or (cache is not None and cache.step_row_index is not None)
        if self.windows:  # some blocks see less than others
            unknown = unknown or any(bias is not context.biases[0] for bias in context.biases)
        return None if unknown or anybody_listens() else self.call(x_BTD, context, n_keys)


class StackCall:
    """All blocks of a stack as the kernel takes them."""

    def __init__(self, stack: Stack, kernels: c.Kernels) -> None:
        self.stack, self.kernels = stack, kernels
        first: Block = stack.blocks[0]  # type: ignore[assignment]
        attention, cross = first.self_attention, first.cross_attention
        self.heads, self.groups = attention.n_heads, attention.n_kv_heads
        self.width = attention.q.out_features // self.heads
        blocks = (c.BlockRecord * len(stack.blocks))(*(_block(block) for block in stack.blocks))  # type: ignore[arg-type]
        self.record = c.StackRecord(
            blocks, len(blocks), attention.out.out_features, self.heads, self.groups, self.width,
            first.feedforward.down.in_features, first.norm_place == "post", cross is not None,
            FUSED[first.feedforward.activation] if first.feedforward.gate is not None else 0,
            attention.scale, 0.0 if cross is None else cross.scale, _norm(stack.final_norm),
        )  # fmt: skip
        self.blocks = blocks  # the record has its address only
        self.cross = cross is not None
        self.names = [(f"{i}.self_attention", f"{i}.cross_attention") for i in range(len(blocks))]
        self.addresses = ctypes.c_void_p * len(blocks)

    def __call__(self, x_BTD: Tensor, context: BlockContext, n_keys: int) -> Tensor:
        B, T, _ = x_BTD.shape
        cache, memory = context.cache, context.memory
        repeats = 1 if memory is None else B // len(memory)
        x_BTD = x_BTD.detach().contiguous()  # changed in place: nobody else has seen it
        call = c.CallRecord(rows=B, queries=T, past=n_keys - T, repeats=repeats)
        alive: list[object] = []  # until the kernel is done
        caches: list[KVCache] = []
        if cache is not None:
            caches = [cache.of(name) for name, _ in self.names]
            buffers = [each.reserve(B, self.groups, T, self.width) for each in caches]
            call.room = buffers[0][0].shape[2]
            call.keys, call.values = self._addresses(buffers, alive)
        if cache is not None and self.cross:
            made = [self._memory(i, context, cache) for i in range(len(self.blocks))]
            call.memory_room = made[0][0].shape[2]
            call.memory_keys = cache.kv[self.names[0][1]].length
            call.memory_k, call.memory_v = self._addresses(made, alive)
            call.memory_bias = self._bias(context.memory_bias, B // repeats, T, call.memory_keys, alive)
        call.bias = self._bias(context.biases[0], B, T, n_keys, alive)
        if cache is not None and cache.step_row_index is not None:
            call.row_index = address(cache.step_row_index, (B, n_keys), torch.int64)
        if context.rotation is not None:
            assert isinstance(context.rotation, FusedRotation)
            call.rotation = ctypes.pointer(context.rotation.record(B, T, self.width))
        self.kernels.run_stack(self.record, call, address(x_BTD, (B, T, self.record.width)))
        for each in caches:
            each.length = n_keys
        return x_BTD

    def _addresses(self, pairs: list[tuple[Tensor, Tensor]], alive: list[object]) -> tuple[int, int]:
        """Where the addresses of the keys are, and those of the values."""
        shape = pairs[0][0].shape
        keys = self.addresses(*(address(k, shape) for k, _ in pairs))
        values = self.addresses(*(address(v, shape) for _, v in pairs))
        alive += keys, values
        return ctypes.addressof(keys), ctypes.addressof(values)

    def _memory(self, i: int, context: BlockContext, cache: Cache) -> tuple[Tensor, Tensor]:
        """The keys and values of the memory, made once."""
        kv_cache = cache.of(self.names[i][1], grows=False)
        if kv_cache.filled is None:
            attention: Attention = self.stack.blocks[i].cross_attention  # type: ignore[assignment]
            assert context.memory is not None
            k, v = (split_heads(each(context.memory), self.groups) for each in (attention.k, attention.v))
            kv_cache.append(k, v)
        assert kv_cache.buffers is not None
        return kv_cache.buffers

    def _bias(self, bias: Bias, n_rows: int, T: int, n_keys: int, alive: list[object]) -> Any:
        if bias.dense is None:
            return None
        dense = bias.dense.expand(n_rows, self.heads, T, n_keys)
        dense = dense if dense.stride(3) == 1 else dense.contiguous()
        alive.append(dense)
        return ctypes.pointer(axes(dense))


def _norm(norm: LayerNorm | RMSNorm | None) -> c.NormRecord:
    if norm is None:
        return c.NormRecord()
    bias = norm.bias.data_ptr() if isinstance(norm, LayerNorm) else None
    return c.NormRecord(norm.weight.data_ptr(), bias, norm.epsilon)


def _record(layer: object) -> c.LinearRecord:
    assert isinstance(layer, Int8Linear)
    return layer.record


def _block(block: Block) -> c.BlockRecord:
    attention, cross, feedforward = block.self_attention, block.cross_attention, block.feedforward
    assert isinstance(attention, Int8Attention)
    assert isinstance(feedforward, Int8FeedForward)
    return c.BlockRecord(
        qkv=_record(attention.qkv), out=_record(attention.out),
        cross_q=c.LinearRecord() if cross is None else _record(cross.q),
        cross_out=c.LinearRecord() if cross is None else _record(cross.out),
        up=_record(feedforward.first), down=_record(feedforward.down),
        self_norm=_norm(block.self_attention_norm),
        cross_norm=c.NormRecord() if cross is None else _norm(block.cross_attention_norm),
        feedforward_norm=_norm(block.feedforward_norm),
    )  # fmt: skip


def install_fused_stacks(network: Network) -> None:
    """The stacks of a network in 8 bits, by kernels that can multiply them."""
    built = c.kernels()
    if built is None or not built.multiply:
        return
    for stack in network.modules():
        if isinstance(stack, Stack) and all(_known(block) for block in stack.blocks):  # type: ignore[arg-type]
            stack.__class__ = FusedStack
            assert isinstance(stack, FusedStack)
            stack.call = StackCall(stack, built)


def _known(block: Block) -> bool:
    return isinstance(block.feedforward, Int8FeedForward) and block.feedforward.activation in FUSED
