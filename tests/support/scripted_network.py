"""A network whose logits are scripted, so that what a search must do with them is known exactly."""

import random
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from cutaway.models.config import LanguageModel, StackConfig, TransformerConfig
from cutaway.models.network import Network
from cutaway.parts.cache import Cache, Memory

LENGTH = 64  # of a history
V, END = 20, 1  # of the random scripts: how many tokens, and which one ends a text
Script = Callable[[tuple[int, ...]], Sequence[float]]
"""The tokens so far -> the logits of the next."""


class Scripted(Network):
    """A decoder that says what the script says. Its history is its state in the cache, as in a recurrent model."""

    def __init__(self, script: Script, vocabulary: int) -> None:
        super().__init__()
        self.script = script
        self.config = TransformerConfig(
            decoder=StackConfig(vocabulary=vocabulary, d_model=2, n_heads=1), head=LanguageModel()
        )
        self.n_reads: list[int] = []  # rows of every call
        self.eval()

    def encode(self, source: Tensor, mask: Tensor | None = None, segments: Tensor | None = None) -> Memory:
        raise AssertionError("it has no encoder")

    def decode_hidden(
        self, tokens: Tensor, memory: Memory | None = None, cache: Cache | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """The "hidden state" is the history itself, with -1 before its first token."""
        assert not self.training
        self.n_reads.append(len(tokens))
        new = tokens if mask is None else tokens.masked_fill(~mask, -1)
        past = cache.state[0] if cache is not None and cache.state else new[:, :0]
        whole = torch.cat((torch.full((len(new), LENGTH), -1), past, new), 1)
        if cache is not None:
            cache.state = (whole[:, -LENGTH:],)
            cache.advance(tokens.shape[1], None)
        ends = range(whole.shape[1] - new.shape[1] + 1, whole.shape[1] + 1)
        return torch.stack([whole[:, end - LENGTH : end] for end in ends], 1)

    def apply_head(self, hidden_BTD: Tensor, mask: Tensor | None = None) -> Tensor:
        rows = [
            [list(self.script(tuple(token for token in history if token >= 0))) for history in row]
            for row in hidden_BTD.tolist()
        ]
        return torch.tensor(rows, dtype=torch.float32)


def random_script(seed: int) -> Script:
    """Logits that depend on the last two tokens."""

    def script(history: tuple[int, ...]) -> list[float]:
        r = random.Random(f"{seed} {history[-2:]}")
        return [r.gauss(0, 2) + (0.5 if token == END else 0.0) for token in range(V)]

    return script
