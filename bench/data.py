"""The batches of the benches: made up from a seed, shaped like real ones."""

from dataclasses import dataclass

import torch
from torch import Tensor

PAD = 0
IGNORED = -100  # labels of padding, as torch's cross-entropy has it


@dataclass(frozen=True)
class Batch:
    """tokens and labels [B, T]; source [B, S] and which of it is real, None for a language model."""

    tokens: Tensor
    labels: Tensor
    source: Tensor | None = None
    source_mask: Tensor | None = None

    @property
    def n_tokens(self) -> int:
        """Real target tokens: what rates count."""
        return int((self.labels != IGNORED).sum())


def lengths(n_pairs: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Lengths of sentence pairs, in word pieces, like Multi30k's English and German.

    Log-normal: ln(source) ~ N(2.60, 0.31²), ln(target / source) ~ N(0, 0.18²), cut to 4 … 45.

                      source: mean  sd   1%  50%  99%    target: mean  sd   1%  50%  99%    correlation of the logs
        Multi30k, BPE         14.0  4.6   7   13   28            14.4  5.2   6   13   31    0.86
        these                 14.1  4.5   7   13   28            14.3  5.3   6   13   31    0.86
    """
    source = 2.60 + 0.31 * torch.randn(n_pairs, generator=generator)
    target = source + 0.18 * torch.randn(n_pairs, generator=generator)
    source_lengths, target_lengths = (log.exp().round().long().clamp(4, 45) for log in (source, target))
    return source_lengths, target_lengths


def translation_batches(vocabulary: int, n_tokens: int = 4096, seed: int = 0) -> list[Batch]:
    """A short, a typical and a long batch of about `n_tokens` real target tokens each.

    A corpus as large as Multi30k's (29,000 pairs) is sorted by target, then source length, and cut into batches; these
    are the middles of its three thirds. Whole epoch: 99 % of the target and 86 % of the source are real; on Multi30k
    99 % and 85 %. Targets get a start and an end symbol, sources an end symbol.
    """
    generator = torch.Generator().manual_seed(seed)
    n_source, n_target = (n + 1 for n in lengths(29000, generator))
    order = torch.argsort(n_target * 64 + n_source)
    batch_of = (n_target[order].cumsum(0) - 1) // n_tokens
    n_batches = int(batch_of[-1])  # the last, unfilled one left out

    def padded(lengths: Tensor) -> tuple[Tensor, Tensor]:
        mask = torch.arange(int(lengths.max())) < lengths[:, None]
        return torch.randint(1, vocabulary, mask.shape, generator=generator), mask

    batches = []
    for third in range(3):
        rows = order[batch_of == n_batches * (2 * third + 1) // 6]
        source, source_mask = padded(n_source[rows])
        tokens, target_mask = padded(n_target[rows])
        labels = torch.randint(1, vocabulary, tokens.shape, generator=generator)
        labels[:, :-1] = tokens[:, 1:]
        batches.append(
            Batch(
                tokens.masked_fill(~target_mask, PAD),
                labels.masked_fill(~target_mask, IGNORED),
                source.masked_fill(~source_mask, PAD),
                source_mask,
            )
        )
    return batches


def text_batches(vocabulary: int, n_rows: int = 4, length: int = 512, seed: int = 0) -> list[Batch]:
    """One batch of running text, for a language model: nothing is padded."""
    ids = torch.randint(0, vocabulary, (n_rows, length + 1), generator=torch.Generator().manual_seed(seed))
    return [Batch(ids[:, :-1], ids[:, 1:])]
