"""Small networks of every family that write lively texts: unlike for unlike prompts, and of unlike lengths."""

import random
from collections import Counter
from dataclasses import replace
from functools import cache

import torch

import cutaway
from cutaway.decoding.generation import Generation, Prompt
from cutaway.decoding.search import write
from cutaway.models.network import Network
from cutaway.models.usage import Usage
from tests.families import SOURCE_VOCABULARY, VOCABULARY, noisy, shrunk

WRITERS = [
    "transformer-tiny",
    "t5-small",
    "flan-t5-small",
    "gpt2",
    "llama-15m",
    "llama-3.2-1b",
    "rnn-seq2seq",
    "lstm-seq2seq",
    "gru-seq2seq",
    "bahdanau-gru",
    "luong-gru",
    "awd-lstm",
]
START, NEVER, N_ENDS, N_NEW = 0, 2, 2, 8
LIVELY = 16  # of 12 texts as many unlike ones, and twice as many as there are lengths


def prompts(network: Network, n: int, seed: int = 0) -> list[Prompt]:
    """Of 1 to 6 tokens."""
    r = random.Random(seed)
    own = network.config.encoder is not None and network.config.encoder.vocabulary == SOURCE_VOCABULARY
    vocabulary = SOURCE_VOCABULARY if own else VOCABULARY
    return [Prompt(tuple(r.randrange(vocabulary) for _ in range(r.randint(1, 6)))) for _ in range(n)]


@cache
def writer(name: str) -> tuple[Network, Usage]:
    """The liveliest of some seeds, with end tokens that it writes now and then."""
    found: list[tuple[int, Network, Usage]] = []
    for seed in range(16):
        network = cutaway.build(shrunk(name), seed)
        noisy(network, seed, std=0.1)
        with torch.no_grad():
            for key, weight in network.named_parameters():
                if weight.dim() == 2 and "embedding" not in key:
                    weight *= 2.0 + seed % 4  # what is read counts for more than the token before
        usage = Usage(start=START, pad=NEVER, never=(NEVER,))
        counts = Counter(token for ids in _greedy(network, usage) for token in ids if token != START)
        for first in range(4):
            ends = tuple(token for token, _ in counts.most_common()[first : first + N_ENDS])
            texts = _greedy(network, replace(usage, end=ends))
            liveliness = len(set(texts)) + 2 * len({len(text) for text in texts})
            found.append((liveliness, network, replace(usage, end=ends)))
            if liveliness >= LIVELY:
                return network, replace(usage, end=ends)
    liveliness, network, usage = max(found, key=lambda each: each[0])
    assert liveliness >= LIVELY - 6, (name, liveliness)
    return network, usage


def _greedy(network: Network, usage: Usage) -> list[tuple[int, ...]]:
    generation = Generation(max_new_tokens=N_NEW)
    return [texts[0].ids for texts in write(network, prompts(network, 12), generation, usage)]
