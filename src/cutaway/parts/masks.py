"""Masks: which queries may attend to which keys. The only code that makes them.

A mask is boolean and True means *may attend*. Scores take it as a bias: 0 where one may look, -inf where not, so that
softmax gives the hidden keys a weight of exactly 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cutaway.checks import describe
from cutaway.errors import InputError


def from_ones_and_zeros(mask: Sequence[object] | Tensor) -> Tensor:
    """The notes write masks as 1 (look) and 0 (do not); we as True and False."""
    ones = torch.as_tensor(mask)
    if not bool(((ones == 0) | (ones == 1)).all()):
        raise InputError(f"a mask in the notes' form holds only 1 and 0, not {ones.tolist()}")
    return ones.bool()


def padding(tokens_BS: Sequence[object] | Tensor, pad: int) -> Tensor:
    """visible_BS = (token is not padding), the notes' form; batches know their lengths and take `of_lengths`."""
    return torch.as_tensor(tokens_BS) != pad


def of_lengths(lengths_B: Tensor, longest: int) -> Tensor:
    """visible_BS of a batch that is padded on the right: its first `lengths` tokens are real."""
    return torch.arange(longest, device=lengths_B.device) < lengths_B[:, None]


def pairs(visible_BS: Tensor) -> Tensor:
    """The notes' step from 1-D to 2-D: visible_BTS = both the query and the key are real tokens."""
    return visible_BS.unsqueeze(-1) & visible_BS.unsqueeze(-2)


def right_padded(visible_BS: Tensor) -> bool:
    """Whether every row is known to be real tokens first, padding after."""
    return _known((visible_BS[:, 1:] <= visible_BS[:, :-1]).all())


def _known(condition: Tensor) -> bool:
    """A shortcut that depends on values: a compiled graph, which is made once for all values, can't take it."""
    return not torch.compiler.is_compiling() and bool(condition)


def look_ahead(
    n_queries: int, n_keys: int | None = None, device: torch.device | None = None, window: int | None = None
) -> Tensor:
    """visible_TS: query t may look at keys up to and including itself; with a sliding window, at the last `window`.

    Right-aligned: the last query is the last key. In a cached step (fewer queries than keys) the queries are the newest
    tokens, so with 1 query and 5 keys everything is visible, or the last `window` keys.
    """
    n_keys = n_queries if n_keys is None else n_keys
    check_newest(n_queries, n_keys)
    itself = n_keys - n_queries  # the diagonal on which a query meets its own key
    visible_TS = torch.ones(n_queries, n_keys, dtype=torch.bool, device=device).tril(itself)
    return visible_TS if window is None else visible_TS.triu(itself - window + 1)


def check_newest(n_queries: int, n_keys: int) -> None:
    """Queries are the newest of the tokens that have keys."""
    if n_queries > n_keys:
        raise InputError(
            f"{n_queries} queries, but only {n_keys} keys; queries are the newest tokens, so have keys too"
        )


def combine(keys_BS: Tensor | None, ahead_TS: Tensor | None) -> Tensor | None:
    """visible_B1TS: a key is visible if it is a real token *and* not in the future. None hides nothing."""
    if keys_BS is None:
        return None if ahead_TS is None else ahead_TS[None, None]
    keys_B11S = keys_BS[:, None, None, :]
    return keys_B11S if ahead_TS is None else keys_B11S & ahead_TS


def to_bias(visible: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """0 where visible, -inf where hidden.

    A query that sees no key at all (a padding token to the left of a sentence) would be 0/0 in softmax. Its output is
    never read, so nothing is hidden from it: it gets a number, not NaN, and the same one on every path.
    """
    nothing_visible = ~visible.any(dim=-1, keepdim=True)
    hidden = ~(visible | nothing_visible)
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(hidden, -torch.inf)


@dataclass(frozen=True)
class Bias:
    """The term that an attention adds to its scores: the mask as 0 / -inf, and T5's position bias if there is one.

    `dense` always says it whole (None: nothing to add). `causal` says that it is just the square look-ahead mask, for
    which fused kernels have a shortcut; a path that does not know the shortcut still has its mask.
    """

    dense: Tensor | None = None  # [B or 1, H or 1, T, S]
    causal: bool = False

    def repeated(self, n_rows: int) -> Tensor | None:
        """`dense` for so many rows of queries, neighbours of which share one of these."""
        if self.dense is None or len(self.dense) in (1, n_rows):
            return self.dense
        return self.dense.repeat_interleave(n_rows // len(self.dense), dim=0)


NO_BIAS = Bias()


def bias(
    n_queries: int,
    n_keys: int,
    like: Tensor,
    *,
    causal: bool,
    window: int | None = None,
    visible_BS: Tensor | None = None,
    positions_BHTS: Tensor | None = None,
) -> Bias:
    """The bias of one attention; made once for a whole stack. `like` gives dtype and device.

    `window`: a causal query sees only so many of the newest keys, hidden ones counted, its own included.
    """
    if visible_BS is not None and _known(visible_BS.all()):
        visible_BS = None
    slides = window is not None and window < n_keys
    ahead_TS = None
    if causal and (n_queries > 1 or slides):
        ahead_TS = look_ahead(n_queries, n_keys, like.device, window if slides else None)
    visible = combine(visible_BS, ahead_TS)
    if visible is None:
        return NO_BIAS if positions_BHTS is None else Bias(positions_BHTS)
    dense = to_bias(visible, like.dtype)
    if positions_BHTS is not None:
        return Bias(dense + positions_BHTS)
    # Decided here: compiled, an open comparison is no bool.
    if visible_BS is None and n_queries == n_keys and not slides:
        return Bias(dense, causal=True)
    return Bias(dense)


def check_mask(mask: Tensor, shape: Sequence[int], what: str) -> Tensor:
    """A mask as given by a user: boolean and of the right shape."""
    if not isinstance(mask, Tensor):
        raise InputError(f"{what} is {describe(mask)}; give a torch tensor of booleans (masks.from_ones_and_zeros)")
    if mask.dtype != torch.bool:
        raise InputError(
            f"{what} has dtype {str(mask.dtype).removeprefix('torch.')}; a mask is boolean, True = may attend "
            "(from 1 and 0: masks.from_ones_and_zeros)"
        )
    if list(mask.shape) != list(shape):
        raise InputError(f"{what} has shape {list(mask.shape)}; the tokens it belongs to have {list(shape)}")
    return mask


def require_tokens(visible_BS: Tensor, what: str) -> None:
    """No sequence is hidden whole."""
    empty_B = ~visible_BS.any(dim=-1)
    if _known(empty_B.any()):
        row = int(empty_B.long().argmax())
        raise InputError(f"{what} hides every token of row {row}; leave at least one visible, or drop the row")
