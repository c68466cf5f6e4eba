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
class BlockContext:
    """What the blocks of a stack share in one pass; `Block.forward` says what each is."""

    memory: Tensor | None  # [B, S, D]
    biases: Sequence[Bias]  # of each block's self-attention
    memory_bias: Bias
    rotation: Rotation | None
    cache: Cache | None


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
            cache.begin(T)
        n_past = cache.length if cache is not None else 0
        if mask is not None:
            masks.check_mask(mask, (B, T), "the mask")
        visible_BS = mask if cache is None else cache.visible(mask, B, T, inputs.device)
        if visible_BS is not None:
            masks.require_tokens(visible_BS, "the mask")
        of_keys = positions.position_ids(n_past + T, visible_BS, inputs.device)
        of_queries = of_keys[..., n_past:]  # the newest
        x_BTD = self.embedding(inputs, of_queries, n_past + T, segments)

        position_bias = None
        if self.relative_bias is not None:
            position_bias = self.relative_bias.between(T, n_past + T, of_keys if of_keys.dim() == 2 else None)
        bias_of = partial(
            masks.bias, T, n_past + T, x_BTD, causal=self.causal, visible_BS=visible_BS, positions_BHTS=position_bias
        )
        if self.windows:
            windows = [None if window is None or window >= n_past + T else window for window in self.windows]
            made = {window: bias_of(window=window) for window in set(windows)}
            biases = [made[window] for window in windows]
        else:
            biases = [bias_of()] * len(self.blocks)
        rotation = None if self.rotate is None else self.rotate(of_queries, dtype=x_BTD.dtype)
        memory_BSD, memory_bias = None, masks.NO_BIAS
        if memory is not None:
            memory.check(B, x_BTD.shape[-1])
            memory_BSD = memory.states
            memory_bias = masks.bias(T, memory_BSD.shape[1], x_BTD, causal=False, visible_BS=memory.mask)

        context = BlockContext(memory_BSD, biases, memory_bias, rotation, cache)
        if (y_BTD := self.kernel(x_BTD, context)) is None:
            for i, block in enumerate(self.blocks):
                x_BTD = block(
                    x_BTD, memory_BSD, bias=biases[i], memory_bias=memory_bias, rotation=rotation, cache=cache,
                    name=str(i),
                )  # fmt: skip
            y_BTD = x_BTD if self.final_norm is None else self.final_norm(x_BTD)
        if cache is not None:
            cache.advance(T, visible_BS)
        return y_BTD

    def kernel(self, x_BTD: Tensor, context: BlockContext) -> Tensor | None:  # for engines that have one
        """All blocks and the last norm in one go; None where they are run one by one."""
        return None
