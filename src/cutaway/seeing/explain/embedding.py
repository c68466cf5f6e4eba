"""Tokens, or patches of an image, as vectors."""

from cutaway.models.config import RecurrentConfig
from cutaway.seeing.explain.expression import Expression, Number, Product
from cutaway.seeing.explain.linear import Row, added, added_rows, linear, root
from cutaway.seeing.explain.positions import position, sinusoid
from cutaway.seeing.explain.source import Source


def embedding(source: Source, side: str, value: str, at: tuple[int, ...]) -> Expression | None:
    here = f"{side}.embedding"
    if isinstance(source.config, RecurrentConfig):
        return _words(source, side, at) if value == "token_vectors" else source.number(f"{here}.token_vectors", *at)
    stack = source.stack(side)
    b, t, d = at
    match value:
        case "token_vectors":
            vector = _words(source, side, at)
            return Product((vector, root(stack.d_model))) if stack.scale_embedding else vector
        case "segment_vectors":
            segments = source.argument("segments")
            segment = 0 if segments is None else int(segments[b, t])
            return source.weight(f"{here}.segments.weight", segment, d)
        case "position_vectors":
            place = position(source, side, b, t)
            if stack.positions == "learned":
                return source.weight(f"{here}.positions.weight", place, d)
            return sinusoid(place, d, stack.d_model, stack.positions, source.epsilon)
        case "pixels":
            return _pixel(source, side, at)
        case "patch_vectors":
            return linear(source, f"{here}.patches", d, source.vector(f"{here}.pixels", b, t, None))
        case "output" if stack.norm_embedding:
            return source.number(f"{here}.norm.output", *at)
        case "output" if stack.patches is not None:
            where = source.number(f"{here}.position_vectors", *at)
            if t == 0:
                return added(source.weight(f"{here}.start", 0, 0, d), where)
            return added(source.number(f"{here}.patch_vectors", b, t - 1, d), where)
        case "output":
            return summed(source, side, b, t).one(d)
    return None


def summed(source: Source, side: str, b: int, t: int) -> Row:
    """token + segment + position: before the norm, if there is one."""
    stack = source.stack(side)
    names = [f"{side}.embedding.token_vectors"]
    names += [f"{side}.embedding.segment_vectors"] if stack.n_segments else []
    names += [f"{side}.embedding.position_vectors"] if stack.positions in _ADDED else []
    return Row(
        lambda d: added(*(source.number(name, b, t, d) for name in names)),
        lambda: added_rows(*(source.vector(name, b, t, None) for name in names)),
    )


_ADDED = ("learned", "sinusoidal", "sinusoidal_halves")
"""Positions that are vectors; others act inside attention."""


def _words(source: Source, side: str, at: tuple[int, ...]) -> Number:
    b, t, d = at
    return source.weight(f"{side}.embedding.tokens.weight", int(source.input(side)[b, t]), d)


def _pixel(source: Source, side: str, at: tuple[int, ...]) -> Number:
    """A pixel: patches go row by row from the top left, the numbers of a patch by channel, row, column."""

    b, patch, e = at
    cut = source.stack(side).patches
    assert cut is not None
    size = cut.patch_size
    row, column = divmod(patch, cut.image_size // size)
    channel, inside = divmod(e, size * size)
    i, j = divmod(inside, size)
    place = (b, channel, row * size + i, column * size + j)
    return Number(float(source.input(side)[place]), "tokens", place)
