"""Which value feeds which: the residual stream through the blocks of a stack."""

from cutaway.models.config import RecurrentConfig, StackConfig
from cutaway.seeing.explain.source import Source


def before(source: Source, side: str, block: str, sublayer: str) -> str:
    """The residual stream as it comes to a sublayer of a block ("encoder.blocks.0")."""
    if sublayer == "self_attention":
        return f"{block}.input"
    crossed = sublayer == "feedforward" and side == "decoder" and source.both
    return after(source.stack(side), block, "cross_attention" if crossed else "self_attention")


def after(stack: StackConfig, block: str, sublayer: str) -> str:
    return f"{block}.{sublayer}_norm.output" if stack.norm_place == "post" else f"{block}.{sublayer}_add"


def read_by(source: Source, side: str, block: str, sublayer: str) -> str:
    """What a sublayer reads: the stream itself, or normalised."""
    if source.stack(side).norm_place == "pre":
        return f"{block}.{sublayer}_norm.output"
    return before(source, side, block, sublayer)


def last_block(source: Source, side: str) -> str:
    return f"{side}.blocks.{source.stack(side).n_blocks - 1}.output"


def last(source: Source, side: str) -> str:
    """What comes out of a stack."""
    if isinstance(source.config, RecurrentConfig):
        return f"{side}.output"
    return f"{side}.final_norm.output" if source.stack(side).norm_place == "pre" else last_block(source, side)
