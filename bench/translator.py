"""Trains the translators that bench.generate times: real weights, so that texts end where they should and BLEU counts.

    python -m bench.translator train.en train.de OUT --shape base --epochs 10

A plain loop with Adam, the paper's schedule and label smoothing; run again, it goes on where it stopped.
"""

import argparse
import json
import math
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional as F

from bench.data import IGNORED, Batch
from cutaway.loading import load
from cutaway.machine.memory import keep_freed_memory
from cutaway.model import Model
from cutaway.models.build import build
from cutaway.models.config import LanguageModel, TransformerConfig
from cutaway.models.presets import preset
from cutaway.models.usage import Usage
from cutaway.text.train import train_tokenizer

PAD, END = 0, 3  # of cutaway's own tokenizers


def config_of(shape: str, vocabulary: int) -> TransformerConfig:
    """The preset as MarianMT has it, so that transformers can run it too."""
    config = preset(f"transformer-{shape}")
    assert isinstance(config, TransformerConfig)
    assert config.encoder is not None
    stack = replace(config.encoder, vocabulary=vocabulary, positions="sinusoidal_halves", max_positions=512)
    return replace(config, encoder=stack, decoder=stack, head=LanguageModel(bias=True))


def batches(pairs: list[tuple[list[int], list[int]]], n_tokens: int, seed: int) -> Iterator[Batch]:
    """Pairs of like length, about `n_tokens` target tokens each, in a random order."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.rand(len(pairs), generator=generator).tolist()
    order = sorted(range(len(pairs)), key=lambda i: (len(pairs[i][1]), len(pairs[i][0]) + noise[i]))
    groups: list[list[int]] = [[]]
    for i in order:
        if (len(groups[-1]) + 1) * len(pairs[i][1]) > n_tokens:
            groups.append([])
        groups[-1].append(i)
    for g in torch.randperm(len(groups), generator=generator).tolist():
        rows = [pairs[i] for i in groups[g]]
        source = torch.full((len(rows), max(len(s) for s, _ in rows)), PAD)
        labels = torch.full((len(rows), max(len(t) for _, t in rows)), IGNORED)
        for row, (s, t) in enumerate(rows):
            source[row, : len(s)] = torch.tensor(s)
            labels[row, : len(t)] = torch.tensor(t)
        tokens = torch.full_like(labels, PAD)
        tokens[:, 1:] = labels[:, :-1].masked_fill(labels[:, :-1] == IGNORED, PAD)
        yield Batch(tokens, labels, source, source != PAD)


def train(
    source: Path, target: Path, out: Path, shape: str, epochs: int, n_tokens: int, rate: float, warm: int
) -> None:  # fmt: skip
    keep_freed_memory()
    texts = [path.read_text(encoding="utf-8").splitlines() for path in (source, target)]
    if (out / "config.json").is_file():
        model = load(out)
        state = json.loads((out / "training.json").read_text())
    else:
        torch.manual_seed(0)
        tokenizer = train_tokenizer(texts[0] + texts[1], "bpe", 10000)
        network = build(config_of(shape, tokenizer.vocabulary_size))
        usage = Usage(start=PAD, end=(END,), pad=PAD, never=(PAD,), max_length=128)
        model, state = Model(network, tokenizer, usage), {"epoch": 0, "step": 0}
    assert model.tokenizer is not None
    network = model.network.train()
    sources = model.tokenizer.encode_ids(texts[0])
    targets = [ids[1:] for ids in model.tokenizer.encode_ids(texts[1])]  # the start is the model's own
    pairs = list(zip(sources, targets, strict=True))
    weights = dict(network.named_parameters())
    optimizer = torch.optim.AdamW(weights.values(), lr=rate, betas=(0.9, 0.98), eps=1e-9, weight_decay=1e-4, fused=True)
    moments = out / "training.safetensors"
    if moments.is_file():
        kept = load_file(moments)
        for name, weight in weights.items():
            optimizer.state[weight] = {
                "step": torch.tensor(float(state["step"])),
                "exp_avg": kept[f"{name}.m"],
                "exp_avg_sq": kept[f"{name}.v"],
            }
    for epoch in range(state["epoch"], epochs):
        begin, losses, count = time.perf_counter(), 0.0, 0
        for batch in batches(pairs, n_tokens, epoch):
            state["step"] += 1
            optimizer.param_groups[0]["lr"] = rate * min(state["step"] / warm, math.sqrt(warm / state["step"]))
            assert batch.source is not None
            logits = network(batch.source, batch.tokens, mask=batch.source_mask)
            loss = F.cross_entropy(logits.flatten(0, 1), batch.labels.flatten(), label_smoothing=0.1)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(weights.values(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            losses += float(loss.detach()) * batch.n_tokens
            count += batch.n_tokens
        state["epoch"] = epoch + 1
        model.save(out)
        kept = {f"{n}.m": optimizer.state[w]["exp_avg"] for n, w in weights.items()}
        kept |= {f"{n}.v": optimizer.state[w]["exp_avg_sq"] for n, w in weights.items()}
        save_file(kept, moments)
        (out / "training.json").write_text(json.dumps(state))
        rate_seen = count / (time.perf_counter() - begin)
        print(f"epoch {epoch + 1}: loss {losses / count:.3f}, {rate_seen:.0f} target tokens/s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--shape", choices=("tiny", "base"), default="tiny")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=3000)
    parser.add_argument("--rate", type=float, default=7e-4)
    parser.add_argument("--warmup", type=int, default=1000)
    args = parser.parse_args()
    train(args.source, args.target, args.out, args.shape, args.epochs, args.tokens, args.rate, args.warmup)


if __name__ == "__main__":
    main()
