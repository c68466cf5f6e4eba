"""A stack: embedding, N blocks, and what the blocks share: mask, rotation, T5's position bias, the last norm."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from torch import Tensor, nn

from cutaway.parts import masks, positions
from cutaway.parts.block import Block
from cutaway.parts.cache import Cache, Memory
from cutaway.parts.embedding import Embedding, PatchEmbedding
from cutaway.parts.masks import Bias
from cutaway.parts.norms import LayerNorm, RMSNorm
from cutaway.parts.positions import RelativeBias, Rotation


@dataclass(frozen=True, slots=True)
class Around:
    """What all blocks of a stack share in one pass; `Block.forward` says what each is."""

    memory: Tensor | None  # [B, S, D]
    biases: Sequence[Bias]  # of each block's self-attention
    memory_bias: Bias
    rotation: Rotation | None
    cache: Cache | None
    serves: int
    holders: Tensor | None


Through = Callable[[Tensor, Around], Tensor]
"""x [B, T, D] and what is around it -> what comes out of the last block, normalised if the stack does that."""


class Stack(nn.Module):
    """blocks(embedding(inputs)): the encoder, or the decoder, of a Transformer. ids [B, T] -> [B, T, D]

    `causal` hides the future; `windows` are the blocks' sliding windows (none: every block sees all);
    `rotate(positions, dtype=…)` gives their rotation; `relative_bias` T5's; `final_norm` closes a pre-norm stack.
    Each is made once here and given to every block.
    """

    def __init__(
        self,
        embedding: Embedding | PatchEmbedding,
        blocks: Iterable[Block],
        *,
        causal: bool,
        windows: Sequence[int | None] = (),
        rotate: Callable[..., Rotation] | None = None,
        relative_bias: RelativeBias | None = None,
        final_norm: LayerNorm | RMSNorm | None = None,
    ) -> None:
        super().__init__()
        self.causal = causal
        self.rotate = rotate
        self.embedding = embedding
        self.relative_bias = relative_bias
        self.blocks = nn.ModuleList(blocks)
        self.windows = tuple(windows) if any(windows) else ()
        self.final_norm = final_norm
        self.fused: Through | None = None  # all blocks in one go, which engines/ may give

    def forward(
        self,
        inputs: Tensor,
        memory: Memory | None = None,
        *,
        mask: Tensor | None = None,
        segments: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """`mask` [B, T], True = a real token. With a cache, `inputs` are the newest tokens only."""
        T = self.embedding.length(inputs)
        B = inputs.shape[0]
        if cache is not None:
            cache.check(B, memory)
        n_past = cache.length if cache is not None else 0
        if mask is not None:
            masks.checked(mask, (B, T), "the mask")
        visible_BS = mask if cache is None else cache.visible(mask, B, T, inputs.device)
        if visible_BS is not None:
            masks.require_tokens(visible_BS, "the mask")
        places = positions.count(n_past + T, visible_BS, inputs.device)  # of every key; the queries are the newest
        place = places[..., n_past:]
        x_BTD = self.embedding(inputs, place, n_past + T, segments)

        position_bias = None
        if self.relative_bias is not None:
            position_bias = self.relative_bias.between(T, n_past + T, places if places.dim() == 2 else None)
        bias_of = partial(
            masks.bias, T, n_past + T, x_BTD, causal=self.causal, visible_BS=visible_BS, positions_BHTS=position_bias
        )
        if self.windows:
            windows = [None if window is None or window >= n_past + T else window for window in self.windows]
            made = {window: bias_of(window=window) for window in set(windows)}
            biases = [made[window] for window in windows]
        else:
            biases = [bias_of()] * len(self.blocks)
        rotation = None if self.rotate is None else self.rotate(place, dtype=x_BTD.dtype)
        memory_BSD, memory_bias, serves = None, masks.NO_BIAS, 1
        if memory is not None:
            memory.check(B, x_BTD.shape[-1])
            memory_BSD, serves = memory.states, memory.serves
            memory_bias = masks.bias(T, memory_BSD.shape[1], x_BTD, causal=False, visible_BS=memory.mask)

        around = Around(
            memory_BSD, biases, memory_bias, rotation, cache, serves, None if cache is None else cache.held(T)
        )
        x_BTD = (self.fused or self.through_blocks)(x_BTD, around)
        if cache is not None:
            cache.advance(T, visible_BS)
        return x_BTD

    def through_blocks(self, x_BTD: Tensor, around: Around) -> Tensor:
        """Block by block, and the last norm."""
        for i, block in enumerate(self.blocks):
            x_BTD = block(
                x_BTD, around.memory, bias=around.biases[i], memory_bias=around.memory_bias, rotation=around.rotation,
                cache=around.cache, name=str(i), serves=around.serves, holders=around.holders,
            )  # fmt: skip
        return x_BTD if self.final_norm is None else self.final_norm(x_BTD)
