"""Word alignment of a translation: cross-attention, drawn with shades."""

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cutaway.errors import InputError
from cutaway.parts.tap import taps
from cutaway.seeing.render.terminal import matrix

if TYPE_CHECKING:
    from cutaway.model import Model


@dataclass(frozen=True)
class Alignment:
    """weights [written, source]: the attention of each written word to each word of the source."""

    written: list[str]
    source: list[str]
    weights: Tensor

    def __str__(self) -> str:
        """A column for each source word; a row for each written word, and the source word with most of its weight."""
        width = shutil.get_terminal_size((100, 24)).columns
        return "\n".join(matrix(self.written, self.source, self.weights, width=width))


def alignment(model: "Model", text: str, written: str) -> Alignment:
    """The mean over the heads of the block whose attention is sharpest, by word.

    A source word of several tokens gets their sum, a written one their mean.
    """
    network, tokenizer = model.network, model.tokenizer
    if tokenizer is None or model.usage.start is None or not (network.has_encoder and network.has_decoder):
        raise InputError(f"{model.name} is no translator: alignment needs an encoder-decoder and its tokenizer")
    names = [name for name in taps(network) if name.endswith(("cross_attention.weights", "decoder.attention.weights"))]
    if not names:
        raise InputError(f"{model.name} has no attention over its source: there is nothing to draw")
    trace = model.trace(text, written, keep=names)
    blocks = [weights.reshape(-1, *weights.shape[-2:]).mean(0) for weights in (trace[name] for name in trace)]  # [T, S]
    sharpest = min(blocks, key=lambda weights_TS: float(-(weights_TS * (weights_TS + 1e-9).log()).sum()))
    words = trace.words
    rows = [number - 1 for number in words.of_target[1:]] + [max(words.of_target)]  # row t chose what row t + 1 reads
    sources = words.source_words
    targets = (*words.target_words[1:], tokenizer.names.get("end", "·"))
    columns = torch.tensor(words.of_source)
    by_word = torch.zeros(len(sharpest), len(sources)).index_add_(1, columns, sharpest)
    summed = torch.zeros(len(targets), len(sources)).index_add_(0, torch.tensor(rows), by_word)
    return Alignment(list(targets), list(sources), summed / torch.tensor(rows).bincount().unsqueeze(1))
