"""Small networks of every family that write lively texts: unlike for unlike prompts, and of unlike lengths."""

import random
from functools import cache

import torch

import cutaway
from cutaway.decoding.search import write
from cutaway.generation import Generation, Prompt
from cutaway.models.network import Network
from cutaway.models.usage import Usage
from tests.support.families import SOURCE_VOCABULARY, VOCABULARY, noisy, shrunk

# A seed whose texts differ, and two tokens it writes now and then: those end them.
WRITERS: dict[str, tuple[int, tuple[int, ...]]] = {
    "transformer-tiny": (15, (3, 10)),
    "t5-small": (12, (9, 10)),
    "flan-t5-small": (0, (6, 4)),
    "gpt2": (1, (18, 5)),
    "llama-15m": (0, (9, 14)),
    "llama-3.2-1b": (0, (16, 18)),
    "rnn-seq2seq": (0, (5, 11)),
    "lstm-seq2seq": (0, (16, 18)),
    "gru-seq2seq": (0, (13, 4)),
    "bahdanau-gru": (0, (11, 15)),
    "luong-gru": (0, (9, 8)),
    "awd-lstm": (1, (18, 7)),
}


def prompts(network: Network, n: int, seed: int = 0) -> list[Prompt]:
    """Of 1 to 6 tokens."""
    r = random.Random(seed)
    own = network.config.encoder is not None and network.config.encoder.vocabulary == SOURCE_VOCABULARY
    vocabulary = SOURCE_VOCABULARY if own else VOCABULARY
    return [Prompt(tuple(r.randrange(vocabulary) for _ in range(r.randint(1, 6)))) for _ in range(n)]


@cache
def writer(name: str) -> tuple[Network, Usage]:
    """Weights that are large, so that what is read counts, and that choices are far from ties within float noise."""
    seed, ends = WRITERS[name]
    network = cutaway.build(shrunk(name), seed)
    noisy(network, seed, std=0.1)
    with torch.no_grad():
        for key, weight in network.named_parameters():
            if weight.dim() == 2 and "embedding" not in key:
                weight *= 2.0 + seed % 4
    usage = Usage(start=0, pad=2, never=(2,), end=ends)
    answers = write(network, prompts(network, 12), Generation(max_new_tokens=8), usage)
    texts = [texts[0].ids for texts in answers]
    assert len(set(texts)) >= 5, "all texts alike prove nothing"
    assert len({len(text) for text in texts}) >= 3, "texts that end together prove nothing"
    return network, usage
