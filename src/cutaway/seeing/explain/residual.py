"""Names of the values along the residual stream: before, in and after each sublayer, and at the end of a stack."""

from cutaway.models.config import RecurrentConfig, StackConfig
from cutaway.seeing.explain.source import Source


def stream_before(source: Source, side: str, block: str, sublayer: str) -> str:
    """The residual stream before a sublayer of a block ("encoder.blocks.0")."""
    if sublayer == "self_attention":
        return f"{block}.input"
    crossed = sublayer == "feedforward" and side == "decoder" and source.is_encoder_decoder
    return stream_after(source.stack(side), block, "cross_attention" if crossed else "self_attention")


def stream_after(stack: StackConfig, block: str, sublayer: str) -> str:
    return f"{block}.{sublayer}_norm.output" if stack.norm_place == "post" else f"{block}.{sublayer}_add"


def sublayer_input(source: Source, side: str, block: str, sublayer: str) -> str:
    """The input of a sublayer: the stream, in a pre-norm block normalised."""
    if source.stack(side).norm_place == "pre":
        return f"{block}.{sublayer}_norm.output"
    return stream_before(source, side, block, sublayer)


def last_block(source: Source, side: str) -> str:
    return f"{side}.blocks.{source.stack(side).n_blocks - 1}.output"


def stack_output_name(source: Source, side: str) -> str:
    """The name of a stack's output in a trace: of its final norm if it is pre-norm, else of its last block."""
    if isinstance(source.config, RecurrentConfig):
        return f"{side}.output"
    return f"{side}.final_norm.output" if source.stack(side).norm_place == "pre" else last_block(source, side)
