"""Does the cost stay flat? 200,000 lines through `translate`, time and memory as it goes: `python -m bench.stream`.

A tiny translator with random weights and a small tokenizer reads an endless stream of made-up lines. For every part of
the stream a row says how long a line took and how much memory the process has, and had at most.
"""

import argparse
import random
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from bench.report import Table, machine_facts
from cutaway.machine.memory import keep_freed_memory
from cutaway.model import Model
from cutaway.models.build import build
from cutaway.models.config import TransformerConfig
from cutaway.models.presets import preset
from cutaway.models.usage import Usage
from cutaway.text.train import train_tokenizer

PAD, END = 0, 3  # of cutaway's own tokenizers


def lines(n: int) -> Iterator[str]:
    """Made as they are asked for: 4 to 20 words out of 300."""
    draw = random.Random(0)
    words = ["".join(draw.choices("aeioulmnrst", k=draw.randint(2, 8))) for _ in range(300)]
    for _ in range(n):
        yield " ".join(draw.choices(words, k=draw.randint(4, 20)))


def tiny() -> Model:
    tokenizer = train_tokenizer(list(lines(2000)), "bpe", 500)
    config = preset("transformer-tiny")
    assert isinstance(config, TransformerConfig)
    assert config.encoder is not None
    stack = replace(config.encoder, vocabulary=tokenizer.vocabulary_size, n_blocks=1, d_model=32, n_heads=2, d_ff=64)
    torch.manual_seed(0)
    network = build(replace(config, encoder=stack, decoder=stack)).eval()
    return Model(network, tokenizer, Usage(start=PAD, end=(END,), pad=PAD, never=(PAD,)))


def memory_mb() -> tuple[float, float]:
    """Resident now, and at most so far."""
    found = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    now, most = (int(found[key].split()[0]) / 1024 for key in ("VmRSS", "VmHWM"))
    return now, most


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.stream", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--lines", type=int, default=200_000)
    parser.add_argument("--parts", type=int, default=10, help="rows of the table")
    parser.add_argument("--new-tokens", type=int, default=4, help="of each translation")
    parser.add_argument("--engine", default="native")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--markdown", action="store_true", help="the table in Markdown")
    options = parser.parse_args()
    keep_freed_memory()
    model = tiny()
    written = model.translate(
        lines(options.lines), engine=options.engine, precision=options.precision, max_new_tokens=options.new_tokens
    )
    rows, count, since = [], 0, time.perf_counter()
    size = max(1, options.lines // options.parts)
    for count, _ in enumerate(written, 1):
        if count % size == 0:
            now, most = memory_mb()
            took = (time.perf_counter() - since) / size * 1e6
            rows.append([f"{count:,}", f"{took:.0f}", f"{now:.0f}", f"{most:.0f}"])
            since = time.perf_counter()
    table = Table(
        f"{options.lines:,} lines through translate ({options.engine}, {options.precision})",
        ["lines so far", "µs/line", "memory MB", "most MB"], rows, n_words=0,
        notes=[f"{count:,} translations for {options.lines:,} lines", machine_facts()["machine"]],
    )  # fmt: skip
    print(table.markdown() if options.markdown else table.text())
    if count != options.lines:
        raise SystemExit("lines were lost")


if __name__ == "__main__":
    main()
