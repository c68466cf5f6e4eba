"""Every family learns to copy and to reverse, and is judged on sequences it never saw.

8 symbols and length 4 give 4,096 sequences; one in ten is kept out of training, and these are the test.
A model that had only learnt how often each symbol comes would be right at 1 of 8 places.
"""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import cutaway
from cutaway.models.build import build
from cutaway.models.config import (
    Classifier,
    Config,
    MaskedLanguageModel,
    PatchConfig,
    RecurrentConfig,
    StackConfig,
    TransformerConfig,
)
from cutaway.models.network import Network
from cutaway.parts.cache import Cache
from tests.support.families import FAMILIES

SYMBOLS, LENGTH = 8, 4
START, END = SYMBOLS, SYMBOLS + 1  # START also stands between a question and its answer
VOCABULARY = SYMBOLS + 2


def config_for(name: str) -> Config:
    """The family's own way of doing things, in a size that learns in seconds."""
    config = replace(cutaway.preset("gru-seq2seq"), attention="dot") if name == "luong-gru" else cutaway.preset(name)
    if isinstance(config, RecurrentConfig):
        sizes = {"vocabulary": VOCABULARY, "n_layers": 1, "d_model": 128, "d_hidden": 128, "dropout": 0.0,
                 "weight_dropout": 0.0}  # fmt: skip
        encoder = config.encoder and replace(config.encoder, **sizes)
        return replace(config, encoder=encoder, decoder=replace(config.decoder, **sizes))

    def small(stack: StackConfig | None) -> StackConfig | None:
        if stack is None:
            return None
        n_blocks = 1 if config.encoder and config.decoder else 2  # a block of cross-attention finds a place by itself
        sizes = {"n_blocks": n_blocks, "d_model": 48, "n_heads": 4, "d_ff": 96, "d_head": None, "dropout": 0.0,
                 "attention_dropout": 0.0, "ff_dropout": 0.0, "max_positions": 16}  # fmt: skip
        sizes |= {"n_kv_heads": 2} if stack.n_kv_heads else {}
        text = {"vocabulary": VOCABULARY} if stack.patches is None else {"patches": PatchConfig(
            image_size=9, patch_size=3, channels=1)}  # fmt: skip
        return replace(stack, **sizes, **text)

    head = config.head
    if config.decoder is None:
        head = Classifier(n_classes=SYMBOLS) if config.last.patches else MaskedLanguageModel()
    return replace(config, encoder=small(config.encoder), decoder=small(config.decoder), head=head)


def held_out(sequences_BT: Tensor) -> Tensor:
    """One sequence of ten is never trained on."""
    place = SYMBOLS ** torch.arange(LENGTH)
    return (sequences_BT * place).sum(1) % 10 == 0


def draw(n: int, generator: torch.Generator, *, test: bool) -> Tensor:
    sequences = torch.randint(SYMBOLS, (3 * n if not test else 30 * n, LENGTH), generator=generator)
    return sequences[held_out(sequences) == test][:n]


def answer(sequences_BT: Tensor, task: str) -> Tensor:
    return sequences_BT if task == "copy" else sequences_BT.flip(1)


def source(sequences_BT: Tensor) -> Tensor:
    """What an encoder reads: the sequence and its end, which T5's relative positions can hold on to."""
    return F.pad(sequences_BT, (0, 1), value=END)


def images(sequences_BT: Tensor) -> Tensor:
    """A picture of 3 × 3 patches of 3 × 3 pixels: symbol k lights pixel k of its patch; the last patches stay dark."""
    patches = F.pad(F.one_hot(sequences_BT, 9).float(), (0, 0, 0, 9 - LENGTH))
    return patches.view(-1, 1, 3, 3, 3, 3).transpose(3, 4).reshape(-1, 1, 9, 9)


def loss(network: Network, sequences_BT: Tensor, task: str) -> Tensor:
    config, wanted_BT = network.config, answer(sequences_BT, task)
    start_B1 = torch.full((len(sequences_BT), 1), START)
    if isinstance(config, TransformerConfig) and config.last.patches is not None:
        return F.cross_entropy(network(images(sequences_BT)), wanted_BT[:, 0])  # a picture has one class: the first
    if config.decoder is None:
        logits = network(sequences_BT)
    elif config.encoder is None:
        logits = network(torch.cat((sequences_BT, start_B1, wanted_BT[:, :-1]), 1))[:, LENGTH:]
    else:
        logits = network(source(sequences_BT), torch.cat((start_B1, wanted_BT[:, :-1]), 1))  # outputs, shifted right
    return F.cross_entropy(logits.flatten(0, 1), wanted_BT.flatten())


@torch.no_grad()
def accuracy(network: Network, sequences_BT: Tensor, task: str) -> float:
    """The share of places that are right when the model writes by itself, word after word."""
    config, wanted_BT = network.config, answer(sequences_BT, task)
    if isinstance(config, TransformerConfig) and config.last.patches is not None:
        return float((network(images(sequences_BT)).argmax(-1) == wanted_BT[:, 0]).float().mean())
    if config.decoder is None:
        return float((network(sequences_BT).argmax(-1) == wanted_BT).float().mean())
    cache, written = Cache(), []
    memory = network.encode(source(sequences_BT)) if config.encoder is not None else None
    tokens = torch.full((len(sequences_BT), 1), START)
    if config.encoder is None:
        tokens = torch.cat((sequences_BT, tokens), 1)
    for _ in range(LENGTH):
        tokens = network.decode(tokens, memory, cache)[:, -1:].argmax(-1)
        written.append(tokens)
    return float((torch.cat(written, 1) == wanted_BT).float().mean())


def train(network: Network, task: str, steps: int, rate: float) -> None:
    """Up to so many steps: it ends when it is all but sure of the batch it would learn from next."""
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.AdamW(network.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps, pct_start=0.1)
    network.train()
    for _ in range(steps):
        optimizer.zero_grad()
        error = loss(network, draw(64, generator, test=False), task)
        if error < 0.02:
            break
        error.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    network.eval()


@pytest.mark.parametrize("task", ["copy", "reverse"])
@pytest.mark.parametrize("name", FAMILIES)
def test_learns(name: str, task: str) -> None:
    network = build(config_for(name))
    unseen = draw(200, torch.Generator().manual_seed(2), test=True)
    assert accuracy(network, unseen, task) < 0.5, "an untrained network can't know"
    train(network, task, steps=300, rate=5e-3)
    assert accuracy(network, unseen, task) > 0.9  # over five seeds: 0.943 (t5-small, copy) to 1
