"""ViT-tiny beside transformers, 32 images at a time and one: `python -m bench.recognize`.

Random weights, the same for all, and random pixels of the right size: what is timed is the network, from a tensor of
images to the classes' scores. cutaway runs through its engine, in each precision; transformers in float32 and bfloat16,
its attention fused (sdpa, as shipped) and written out (eager).
"""

import argparse
import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import cutaway
from bench import contest, harness
from bench.harness import Contestant, Work
from cutaway.model import Model
from cutaway.models.build import build
from cutaway.models.config import TransformerConfig
from cutaway.models.presets import preset


def prepare(place: Path, quick: bool) -> None:
    config = preset("vit-tiny")
    assert isinstance(config, TransformerConfig)
    if quick:
        config = replace(config, encoder=replace(config.encoder, n_blocks=2))  # type: ignore[type-var]
    torch.manual_seed(0)
    model = Model(build(config).eval())
    with torch.no_grad():
        for weight in model.network.parameters():
            weight += 0.02 * torch.randn_like(weight)  # scores that differ from image to image
    model.save(place / "cutaway")
    model.save(place / "huggingface", format="huggingface")
    images = torch.randn(32, 3, 224, 224)
    with torch.inference_mode():
        torch.save((images, model.network(images)), place / "asked.pt")


def _work(place: Path, n: int, read: Callable[[Tensor], Tensor]) -> Work:
    images, expected = torch.load(place / "asked.pt")
    parts = list(images.split(n))[: 1 if n > 1 else 8]
    found = torch.cat([read(part) for part in parts]).float()
    expected = expected[: len(found)]
    facts = {
        "same": float((found.argmax(-1) == expected.argmax(-1)).float().mean()),
        "cosine": float(torch.nn.functional.cosine_similarity(found, expected).min()),
    }
    return Work([lambda part=part: len(read(part)) for part in parts], lambda: None, facts)


def ours(place: Path, n: int, precision: str) -> Work:
    os.environ["CUTAWAY_CACHE"] = str(place / "cache")  # nothing is left behind
    torch.set_num_threads(harness.cores())
    model = cutaway.load(place / "cutaway")
    engine = model.engine("native", precision)
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    return _work(place, n, lambda images: engine.read(images.to(dtype)))


def transformers(place: Path, n: int, precision: str, attention: str) -> Work:
    import transformers as hf

    hf.logging.set_verbosity_error()
    hf.logging.disable_progress_bar()
    torch.set_num_threads(harness.cores())
    dtype = getattr(torch, precision)
    model = hf.ViTForImageClassification.from_pretrained(
        place / "huggingface", dtype=dtype, attn_implementation=attention
    ).eval()

    def read(images: Tensor) -> Tensor:
        with torch.inference_mode():
            return model(images.to(dtype)).logits

    return _work(place, n, read)


def bench(report: Any, options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        prepare(place, options.quick)
        for n in (32, 1):
            field = [
                *(
                    Contestant(f"cutaway native {precision}", ours, (place, n, precision))
                    for precision in ("float32", "bfloat16", "int8")
                ),
                *(
                    Contestant(f"transformers {precision}, {attention}", transformers, (place, n, precision, attention))
                    for precision, attention in product(("float32", "bfloat16"), ("sdpa", "eager"))
                ),
            ]
            notes = ["same: share of images with float32's best class; cosine: the least of the scores' to float32's"]
            results = contest.compete(options, field)
            columns = {"same": "{:.0%}", "cosine": "{:.4f}"}
            report.add(contest.table(f"ViT-tiny, {n} at a time", "images/s", results, columns, notes))


def main() -> None:
    options = contest.parser("recognize", __doc__).parse_args()
    bench(contest.report(options), options)


if __name__ == "__main__":
    main()
