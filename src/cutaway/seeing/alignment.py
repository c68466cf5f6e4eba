"""Which words of the source a translator looked at for each word it wrote: cross-attention, drawn with shades."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cutaway.errors import InputError
from cutaway.parts.tap import taps
from cutaway.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from cutaway.model import Model

_SHADES = " ░▒▓█"


@dataclass(frozen=True)
class Alignment:
    """weights [written, source]: of each written word, how much attention went to each word of the source."""

    written: list[str]
    source: list[str]
    weights: Tensor

    def __str__(self) -> str:
        """A column for each word of the source, a row for each that was written, and the word it looked at most."""
        width = max(len(word) for word in self.written)
        edge = " " * (width + 1)
        heads = [f"{edge}{'│ ' * i}{word}" for i, word in enumerate(self.source)]
        rows = []
        for word, row in zip(self.written, self.weights.tolist(), strict=True):
            cells = "".join(2 * _SHADES[min(len(_SHADES) - 1, round(weight * 5))] for weight in row)
            rows.append(f"{word:>{width}} {cells}  {self.source[row.index(max(row))]}")
        return "\n".join([*heads, *rows])


def alignment(model: "Model", text: str, written: str) -> Alignment:
    """The mean over the heads of the block in which attention is sharpest; pieces of words are put together.

    A word that is read in pieces gets their sum, one that is written in pieces their mean.
    """
    network, tokenizer = model.network, model.tokenizer
    if tokenizer is None or model.usage.start is None or not (network.has_encoder and network.has_decoder):
        raise InputError(f"{model.name} does not attend from what it writes to what it read: it is no translator")
    names = [name for name in taps(network) if name.endswith(("cross_attention.weights", "decoder.attention.weights"))]
    if not names:
        raise InputError(f"{model.name} has no attention over its source: there is nothing to draw")
    trace = model.trace(text, written, keep=names)
    blocks = [weights.reshape(-1, *weights.shape[-2:]).mean(0) for weights in (trace[name] for name in trace)]  # [T, S]
    sharpest = min(blocks, key=lambda weights_TS: float(-(weights_TS * (weights_TS + 1e-9).log()).sum()))
    source_ids, written_ids = tokenizer.encode(text).ids, tokenizer.encode_target(written).ids
    sources, columns = words(tokenizer, source_ids)
    targets, rows = words(tokenizer, written_ids)
    weights_TS = sharpest[: len(written_ids)]  # row t chose word t
    by_word = torch.zeros(len(weights_TS), len(sources)).index_add_(1, torch.tensor(columns), weights_TS)
    summed = torch.zeros(len(targets), len(sources)).index_add_(0, torch.tensor(rows), by_word)
    return Alignment(targets, sources, summed / torch.tensor(rows).bincount().unsqueeze(1))


def words(tokenizer: Tokenizer, ids: Sequence[int]) -> tuple[list[str], list[int]]:
    """The words that these tokens are pieces of, and for each token the number of its word.

    A token begins a word if the text so far, decoded, ends in a space before it; special tokens stand alone.
    """
    found: list[list[int]] = []
    places: list[int] = []
    special = {number for number in vars(tokenizer.special).values() if number is not None}
    alone = True
    for number in ids:
        piece = tokenizer.token_of(number) or ""
        text = tokenizer.decode([number], skip_special=False)
        begins = alone or number in special or piece[:1] in ("Ġ", "▁") or text[:1].isspace()
        alone = number in special
        if begins:
            found.append([])
        found[-1].append(number)
        places.append(len(found) - 1)
    texts = (tokenizer.decode(pieces, skip_special=False) for pieces in found)  # a character may be in several pieces
    return [text.strip() or "·" for text in texts], places
