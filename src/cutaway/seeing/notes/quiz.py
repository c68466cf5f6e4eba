"""The notes' quiz: seven questions, explanations of their answers, and parts that run to demonstrate them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cutaway.errors import InputError
from cutaway.models.build import build
from cutaway.models.config import TransformerConfig
from cutaway.models.network import Network
from cutaway.models.presets import preset, transformer
from cutaway.parts import masks
from cutaway.parts.attention import Attention
from cutaway.parts.embedding import Embedding, Positions
from cutaway.seeing.notes import notes
from cutaway.seeing.notes.arithmetic import number as written
from cutaway.seeing.notes.arithmetic import vector
from cutaway.seeing.notes.worked_examples import Step
from cutaway.seeing.trace.trace import trace


@dataclass(frozen=True)
class Question:
    """A multiple-choice question; `answers` are the letters of all options that are right."""

    number: int
    text: str
    options: Mapping[str, str]
    answers: Sequence[str]
    explanation: str


def questions() -> list[Question]:
    """All questions, in the order of the notes."""
    return [Question(**record) for record in notes.data()["quiz"]]


def question(number: int) -> Question:
    """One question."""
    known = {question.number: question for question in questions()}
    if number not in known:
        raise InputError(f"there is no question {number} in the quiz; choose one of {min(known)} to {max(known)}")
    return known[number]


def demonstrate(number: int) -> list[str]:
    """Runs the parts that a question is about and reports their results; the same lines every time."""
    question(number)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return _DEMONSTRATIONS[number]()


SOURCE, TARGET = torch.tensor([[1, 2, 3, 4, 5]]), torch.tensor([[0, 1, 2]])


def _small() -> Network:
    """The 2017 Transformer, shrunk: 2 + 2 blocks, 8 wide, 2 heads, 7 words."""
    return build(transformer(n_blocks=2, d_model=8, n_heads=2, d_ff=16, vocabulary=7))


def _stacks(name: str) -> TransformerConfig:
    config = preset(name)
    assert isinstance(config, TransformerConfig)
    return config


def _change(before: Tensor, after: Tensor) -> str:
    """The largest difference between two results, in words; one in the last bits of a float32 is none."""
    most = (before - after).abs().max().item()
    return "not at all" if most < 1e-6 else f"by up to {written(most)}"


def _a_transformer() -> list[str]:
    network, base = _small(), _stacks("transformer-base")
    assert base.encoder is not None
    assert base.decoder is not None
    memory = network.encode(SOURCE)
    logits = network.decode(TARGET, memory)
    n_weights = sum(weight.numel() for weight in network.parameters())
    return [
        f"A: a small Transformer is a network of {n_weights:,} learned weights.",
        f"B: encode() turns {SOURCE.shape[1]} source tokens into a memory of shape {list(memory.states.shape)}.",
        f"C: decode() reads that memory and scores {logits.shape[-1]} words at each of {TARGET.shape[1]} places, shape "
        f"{list(logits.shape)}; the best are the tokens {logits.argmax(-1)[0].tolist()} (untrained, so at random).",
        f"D: wrong; transformer-base has {base.encoder.n_blocks} encoder and {base.decoder.n_blocks} decoder blocks.",
    ]


def _positions() -> list[str]:
    words = ["the", "cat", "sat"]
    attention = Attention(4, 1)
    table = Embedding(len(words), 4).tokens  # the same vectors, whether positions are added or not
    lines = []
    kinds: list[tuple[str, Positions]] = [("without positions", "none"), ("with sinusoids", "sinusoidal")]
    for name, kind in kinds:
        embedding = Embedding(len(words), 4, positions=kind)
        embedding.tokens = table
        by_sentence = {}
        for order in ([0, 1, 2], [2, 1, 0]):
            out_TD = attention(embedding(torch.tensor([order]), torch.arange(3), 3))[0]
            by_sentence[" ".join(words[i] for i in order)] = out_TD[[order.index(i) for i in range(3)]]  # by word
        lines.append(f"Self-attention {name}:")
        lines += [f"  '{words[0]}' in '{text}' is {vector(of[0].tolist())}" for text, of in by_sentence.items()]
        lines.append(f"  Turning the sentence round changes the vectors of its words {_change(*by_sentence.values())}.")
    return lines


def _self_attention() -> list[str]:
    worked = notes.example(7)
    keys, weights, outputs = worked.step("keys"), worked.step("weights"), worked.step("heads")
    words = ", ".join(f"{word} is {vector(_row(keys, i))}" for i, word in enumerate(keys.rows))
    lines = [f"Example 7 of the notes: {words}."]
    for i, word in enumerate(weights.rows):
        shares = zip(weights.columns, map(written, _row(weights, i)), strict=True)
        given = ", ".join(f"{key} {share}" for key, share in shares)
        lines.append(f"{word} gives {given} and becomes {vector(_row(outputs, i))}.")
    return lines


def _row(step: Step, i: int) -> list[float]:
    table: Any = step.value
    return list(table[i])


def _eight_heads() -> list[str]:
    values = trace(Attention(512, 8), torch.zeros(1, 3, 512))
    heads, concatenated = list(values["heads"].shape), list(values["concatenated"].shape)
    return [
        f"Attention(512, 8) on 3 tokens. Its heads: {heads} (batch, head, token, width).",
        f"Side by side: {concatenated} (batch, token, width), and {heads[1]} × {heads[3]} = {concatenated[2]}.",
    ]


def _masking() -> list[str]:
    attention = Attention(4, 1)
    sentence = torch.randn(1, 3, 4)
    other = sentence.clone()
    other[0, 2] = torch.randn(4)
    lines = ["Three tokens go through self-attention; then the third is replaced by another."]
    for name, causal in (("Without the mask", False), ("With the mask", True)):
        bias = masks.bias(3, 3, sentence, causal=causal)
        weights = trace(attention, sentence, bias=bias)["weights"][0, 0, 0].tolist()
        first, after = (attention(x, bias=bias)[0, 0] for x in (sentence, other))
        lines.append(
            f"{name} the first token's weights are {vector(weights)}: its output changes {_change(first, after)}."
        )
    return lines


def _cross_attention() -> list[str]:
    name = "decoder.blocks.0.cross_attention"
    values = trace(_small(), SOURCE, TARGET, keep=f"{name}.*")
    shapes = {part: list(values[f"{name}.{part}"].shape) for part in ("queries", "keys", "values", "weights")}
    T, S = TARGET.shape[1], SOURCE.shape[1]
    return [
        f"A small Transformer with {S} source tokens and {T} target tokens; in {name}",
        f"  queries are {shapes['queries']}: one for each of the {T} target tokens, from the decoder;",
        f"  keys {shapes['keys']}, values {shapes['values']}: one for each of the {S} source tokens, from the encoder;",
        f"  weights {shapes['weights']}: each target token looks at every source token.",
        "  (The axes are batch, head, token, width; of the weights: batch, head, target, source.)",
    ]


def _bert() -> list[str]:
    lines = []
    for name in ("bert-base", "gpt2", "t5-small"):
        config = _stacks(name)
        halves = {"encoder": config.encoder, "decoder": config.decoder}
        found = (f"{half} of {stack.n_blocks} blocks" if stack else f"no {half}" for half, stack in halves.items())
        lines.append(f"{name}: {', '.join(found)}.")
    return lines


_DEMONSTRATIONS: Mapping[int, Callable[[], list[str]]] = {
    1: _a_transformer,
    2: _positions,
    3: _self_attention,
    4: _eight_heads,
    5: _masking,
    6: _cross_attention,
    7: _bert,
}
