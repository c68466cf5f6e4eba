"""Every family, head and option beside Hugging Face: `python -m bench.parity`.

Each case is a tiny random model made by `transformers`, with noise on every weight so that a bias of 0 or a norm of 1
hides nothing. It is saved by `transformers`, loaded by cutaway, run on the same inputs (without padding, padded on the
right, on the left), saved by cutaway, compared with the first file bit by bit, and loaded by `transformers` again.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers as hf
from safetensors import safe_open
from torch import Tensor

import cutaway
from cutaway.model import Model
from cutaway.models.config import AnswerSpan, Classifier, SentenceVector, TransformerConfig

Padding = str  # "none", "right", "left"
N_ROWS, N_SOURCE, N_TARGET = 3, 7, 5
LIMIT = 1e-4  # of |Δ| anywhere; what float32 leaves is printed


@dataclass(frozen=True)
class Case:
    """One model. `config` and `model` are names in `transformers`."""

    name: str
    config: str
    model: str
    options: dict[str, Any] = field(default_factory=dict)
    arguments: dict[str, Any] = field(default_factory=dict)  # of the model's constructor
    untie: bool = False  # give the head a table of its own, though the config calls it tied
    left: bool = True  # whether Hugging Face's model takes padding on the left
    unused: tuple[str, ...] = ()  # tensors that Hugging Face saves and never uses

    @property
    def family(self) -> str:
        return self.name.split(":")[0]


def _many(family: str, config: str, common: dict[str, Any], *cases: tuple[str, str, dict[str, Any]]) -> Iterator[Case]:
    for name, model, options in cases:
        options = common | options
        special = {key: options.pop(key) for key in ("arguments", "untie", "left", "unused") if key in options}
        yield Case(f"{family}: {name}", config, model, options, **special)


# Sizes are unlike, so that swapped axes cannot pass.
MARIAN = {
    "vocab_size": 37, "d_model": 24, "encoder_layers": 3, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 20, "decoder_ffn_dim": 28, "max_position_embeddings": 32,
    "pad_token_id": 36, "eos_token_id": 0, "decoder_start_token_id": 36, "forced_eos_token_id": 0,
    "activation_function": "swish", "scale_embedding": True, "left": False,  # it counts positions with the padding
}  # fmt: skip
T5 = {
    "vocab_size": 37, "d_model": 24, "d_kv": 5, "num_heads": 4, "d_ff": 20, "num_layers": 3, "num_decoder_layers": 2,
    "relative_attention_num_buckets": 8, "relative_attention_max_distance": 12, "decoder_start_token_id": 0,
}  # fmt: skip
BERT = {
    "vocab_size": 37, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 20,
    "max_position_embeddings": 13, "type_vocab_size": 2,
}  # fmt: skip
DISTILBERT = {"vocab_size": 37, "dim": 24, "n_layers": 3, "n_heads": 4, "hidden_dim": 20, "max_position_embeddings": 13}
GPT2 = {
    "vocab_size": 37, "n_embd": 24, "n_layer": 3, "n_head": 4, "n_positions": 13, "bos_token_id": 36,
    "eos_token_id": 36, "pad_token_id": 35,
}  # fmt: skip
LLAMA = {
    "vocab_size": 37, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 20, "max_position_embeddings": 64, "pad_token_id": 35,
}  # fmt: skip
VIT = {
    "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 20, "image_size": 12,
    "patch_size": 4, "num_channels": 3,
}  # fmt: skip
LLAMA_3 = {
    "rope_type": "llama3", "rope_theta": 100.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip

CASES: list[Case] = [
    *_many(
        "MarianMT", "MarianConfig", MARIAN,
        ("translation", "MarianMTModel", {}),
        ("two vocabularies", "MarianMTModel", {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 41}),
        ("own output table", "MarianMTModel",
         {"tie_word_embeddings": False, "untie": True, "unused": ("model.shared.weight",)}),
        ("relu, unscaled embedding", "MarianMTModel", {"activation_function": "relu", "scale_embedding": False}),
        ("body", "MarianModel", {"unused": ("encoder.embed_positions.weight", "decoder.embed_positions.weight")}),
    ),
    *_many(
        "T5", "T5Config", T5,
        ("v1.0", "T5ForConditionalGeneration", {}),
        ("v1.1 and FLAN", "T5ForConditionalGeneration",
         {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "untie": True}),
        ("gated silu", "T5ForConditionalGeneration", {"feed_forward_proj": "gated-silu"}),
        ("body", "T5Model", {}),
        ("encoder", "T5EncoderModel", {}),
    ),
    *_many(
        "BERT", "BertConfig", BERT,
        ("body and pooler", "BertModel", {}),
        ("body", "BertModel", {"arguments": {"add_pooling_layer": False}}),
        ("masked LM", "BertForMaskedLM", {}),
        ("masked LM, own table", "BertForMaskedLM",
         {"tie_word_embeddings": False, "untie": True, "unused": ("cls.predictions.bias",)}),
        ("classifier", "BertForSequenceClassification", {"num_labels": 5}),
        ("answers", "BertForQuestionAnswering", {}),
        ("pre-training", "BertForPreTraining", {}),
        ("one segment, tanh-gelu", "BertForMaskedLM", {"type_vocab_size": 1, "hidden_act": "gelu_new"}),
    ),
    *_many(
        "DistilBERT", "DistilBertConfig", DISTILBERT,
        ("body", "DistilBertModel", {}),
        ("masked LM", "DistilBertForMaskedLM", {}),
        ("classifier", "DistilBertForSequenceClassification", {"num_labels": 5}),
        ("answers", "DistilBertForQuestionAnswering", {}),
        ("sinusoidal start", "DistilBertModel", {"sinusoidal_pos_embds": True}),
    ),
    *_many(
        "GPT-2", "GPT2Config", GPT2,
        ("language model", "GPT2LMHeadModel", {}),
        ("own output table", "GPT2LMHeadModel", {"tie_word_embeddings": False, "untie": True}),
        ("narrow, exact gelu, unscaled", "GPT2LMHeadModel",
         {"n_inner": 20, "activation_function": "gelu", "scale_attn_weights": False}),
        ("classifier", "GPT2ForSequenceClassification", {"num_labels": 5}),
        ("answers", "GPT2ForQuestionAnswering", {}),
        ("body", "GPT2Model", {}),
    ),
    *_many(
        "Llama", "LlamaConfig", LLAMA,
        ("grouped queries", "LlamaForCausalLM", {}),
        ("tied", "LlamaForCausalLM", {"tie_word_embeddings": True}),
        ("one key head, wide heads", "LlamaForCausalLM", {"num_key_value_heads": 1, "head_dim": 10}),
        ("Llama 3 rotation", "LlamaForCausalLM", {"rope_parameters": LLAMA_3}),
        ("biases", "LlamaForCausalLM", {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 4}),
        ("classifier", "LlamaForSequenceClassification", {"num_labels": 5}),
        ("answers", "LlamaForQuestionAnswering", {}),
        ("body", "LlamaModel", {}),
    ),
    *_many(
        "Mistral", "MistralConfig", LLAMA | {"sliding_window": None},
        ("language model", "MistralForCausalLM", {}),
        ("window as long as its context", "MistralForCausalLM", {"sliding_window": 64}),
        ("sliding window", "MistralForCausalLM", {"sliding_window": 3}),
    ),
    *_many(
        "Qwen2", "Qwen2Config", LLAMA,
        ("language model", "Qwen2ForCausalLM", {}),
        ("sliding window in the last blocks", "Qwen2ForCausalLM",
         {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1}),
        ("sliding window in one block", "Qwen2ForCausalLM",
         {"use_sliding_window": True, "sliding_window": 2,
          "layer_types": ["full_attention", "sliding_attention", "full_attention"]}),
    ),
    *_many(
        "ViT", "ViTConfig", VIT,
        ("classifier", "ViTForImageClassification", {"num_labels": 5}),
        ("body and pooler", "ViTModel", {}),
        ("body, no q, k, v biases", "ViTModel", {"arguments": {"add_pooling_layer": False}, "qkv_bias": False}),
    ),
]  # fmt: skip


@dataclass
class Outcome:
    """What one case gave."""

    name: str
    difference: dict[Padding, float] = field(default_factory=dict)  # max |Δ| of the output
    stage: str = ""  # the first named value that differs, if any does
    largest: float = 0.0  # |output|, to compare with
    bit_equal: bool = False  # file -> ours -> file
    reloaded: float = float("nan")  # max |Δ| of transformers' own output, before and after
    error: str = ""

    @property
    def good(self) -> bool:
        return not self.error and self.bit_equal and self.reloaded == 0 and max(self.difference.values()) <= LIMIT


def make(case: Case, seed: int = 0) -> hf.PreTrainedModel:
    """The model, with noise on every weight."""
    torch.manual_seed(seed)
    config = getattr(hf, case.config)(**case.options)
    model = getattr(hf, case.model)(config, **case.arguments).eval()
    head = model.get_output_embeddings()
    if case.untie and head is not None:
        head.weight = torch.nn.Parameter(head.weight.detach().clone())
    with torch.no_grad():
        for name, weight in [*model.named_parameters(), *model.named_buffers()]:
            if weight.is_floating_point() and "inv_freq" not in name and "embed_positions" not in name:
                weight += 0.2 * torch.randn_like(weight)
    return model


@dataclass(frozen=True)
class Inputs:
    ours: tuple[Tensor, ...]
    our_options: dict[str, Tensor]
    theirs: dict[str, Tensor]
    mask: Tensor | None  # of the output's tokens


def inputs(case: Case, config: TransformerConfig, padding: Padding) -> Inputs:
    generator = torch.Generator().manual_seed(1)
    if config.last.patches is not None:
        size = config.last.patches.image_size
        images = torch.randn(N_ROWS, config.last.patches.channels, size, size, generator=generator)
        return Inputs((images,), {}, {"pixel_values": images}, None)

    def tokens(n_words: int | None, length: int) -> Tensor:
        return torch.randint(1, (n_words or 37) - 3, (N_ROWS, length), generator=generator)

    def mask(length: int) -> Tensor | None:
        real = torch.arange(length) < torch.tensor([length, length - 2, length - 3])[:, None]
        return {"none": None, "right": real, "left": real.flip(1)}[padding]

    first = tokens((config.encoder or config.last).vocabulary, N_SOURCE)
    first_mask = mask(N_SOURCE)
    theirs = {"input_ids": first}
    options: dict[str, Tensor] = {}
    if first_mask is not None:
        pad = case.options.get("pad_token_id", 0)
        theirs = {"input_ids": first.masked_fill(~first_mask, pad), "attention_mask": first_mask.long()}
        options["mask"] = first_mask
        if padding == "left" and config.last.positions in ("learned", "rotary"):
            theirs["position_ids"] = (first_mask.long().cumsum(1) - 1).clamp(min=0)
    if config.last.n_segments:
        segments = torch.randint(config.last.n_segments, first.shape, generator=generator)
        theirs["token_type_ids"] = options["segments"] = segments
    if config.encoder is None or config.decoder is None:
        return Inputs((first,), options, theirs, first_mask)
    target, target_mask = tokens(config.decoder.vocabulary, N_TARGET), mask(N_TARGET)
    theirs["decoder_input_ids"] = target
    if target_mask is not None:
        theirs["decoder_attention_mask"] = target_mask.long()
        options["target_mask"] = target_mask
    return Inputs((first, target), options, theirs, target_mask)


def theirs_of(model: hf.PreTrainedModel, given: Inputs, config: TransformerConfig) -> Tensor:
    """The output that ours is to be compared with."""
    with torch.no_grad():
        out = model(**given.theirs)
    if isinstance(config.head, AnswerSpan):
        return torch.stack((out.start_logits, out.end_logits), dim=-1)
    if "logits" in out:
        return out.logits
    if "prediction_logits" in out:
        return out.prediction_logits
    return out.pooler_output if config.head is not None else out.last_hidden_state


def largest(ours: Tensor, theirs: Tensor, mask: Tensor | None) -> float:
    """max |Δ| over real tokens."""
    delta = (ours.double() - theirs.double()).abs()
    if mask is not None and delta.dim() == 3:
        delta = delta[mask]
    return float(delta.nan_to_num(nan=torch.inf).max())


def first_difference(model: hf.PreTrainedModel, ours: Model, given: Inputs) -> str:
    """The first block whose output differs: where to look for the mistake."""
    with torch.no_grad():
        out = model(**given.theirs, output_hidden_states=True)
    trace = cutaway.trace(ours.network, *given.ours, keep=["*.input", "*.output"], **given.our_options)
    stages: list[tuple[str, Tensor]] = []
    for half in ("encoder", "decoder"):
        states = out.get(f"{half}_hidden_states") or (
            out.get("hidden_states") if getattr(ours.config, half) is not None else None
        )
        if states is not None and getattr(ours.config, half) is not None:
            stages += [(f"{half}.blocks.{i}.input", state) for i, state in enumerate(states[:-1])]
    for name, state in stages:
        mask = given.our_options.get("mask" if name.startswith("encoder") or len(given.ours) == 1 else "target_mask")
        if largest(trace[name], state, mask) > LIMIT:
            return name
    return "after the last block"


def same_bits(a: Path, b: Path, unused: tuple[str, ...] = ()) -> bool:
    """Whether two safetensors files hold the same names, shapes, dtypes and bits."""
    with safe_open(a, "pt") as one, safe_open(b, "pt") as other:
        names = set(one.keys()) - set(unused)
        return names == set(other.keys()) and all(_same(one.get_tensor(n), other.get_tensor(n)) for n in names)


def _same(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)


def try_case(case: Case, folder: Path, model_of: Callable[[Case], hf.PreTrainedModel] = make) -> Outcome:
    outcome = Outcome(case.name)
    theirs = model_of(case)
    theirs.save_pretrained(folder / "theirs")
    ours = cutaway.load(folder / "theirs")
    assert isinstance(ours.config, TransformerConfig)
    for padding in ("none", "right", "left"):
        if padding == "left" and not (case.left and _reads_left_padding(ours.config)):
            continue
        given = inputs(case, ours.config, padding)
        with torch.no_grad():
            output = ours.network(*given.ours, **given.our_options)
        expected = theirs_of(theirs, given, ours.config)
        outcome.difference[padding] = largest(output, expected, given.mask)
        outcome.largest = max(outcome.largest, float(expected.abs().max()))
        if outcome.difference[padding] > LIMIT and not outcome.stage:
            outcome.stage = f"{padding}: {first_difference(theirs, ours, given)}"
        if given.mask is None and ours.config.last.patches is not None:
            break  # images have no padding
    ours.save(folder / "back", format="huggingface")
    files = [folder / place / "model.safetensors" for place in ("theirs", "back")]
    outcome.bit_equal = same_bits(files[0], files[1], case.unused)
    again, info = getattr(hf, case.model).from_pretrained(folder / "back", output_loading_info=True, **case.arguments)
    missing = set(info["missing_keys"]) - set(case.unused)
    if missing or info["unexpected_keys"]:
        outcome.error = f"transformers misses {missing}, did not expect {info['unexpected_keys']}"
    given = inputs(case, ours.config, "none")
    outcome.reloaded = largest(theirs_of(again.eval(), given, ours.config), theirs_of(theirs, given, ours.config), None)
    return outcome


def _reads_left_padding(config: TransformerConfig) -> bool:
    """Hugging Face's poolers read the first token even if it is padding."""
    return not isinstance(config.head, Classifier | SentenceVector) or config.head.pooling != "first"


def table(outcomes: list[Outcome]) -> str:
    def number(outcome: Outcome, padding: Padding) -> str:
        return f"{outcome.difference[padding]:.1e}" if padding in outcome.difference else "–"

    lines = [
        "| model | max \\|Δ\\|, no padding | padded right | padded left | largest output | file → ours → file |",
        "| --- | ---: | ---: | ---: | ---: | --- |",
    ]
    for outcome in outcomes:
        if outcome.error:
            lines.append(f"| {outcome.name} | {outcome.error} |||||")
            continue
        numbers = " | ".join(number(outcome, padding) for padding in ("none", "right", "left"))
        trip = "bit-equal" if outcome.bit_equal else "DIFFERS"
        trip += "" if outcome.reloaded == 0 else f", reloaded Δ {outcome.reloaded:.1e}"
        trip += f", first at {outcome.stage}" if outcome.stage else ""
        lines.append(f"| {outcome.name} | {numbers} | {outcome.largest:.3g} | {trip} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="only cases whose name contains one of these")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    hf.logging.set_verbosity_error()
    hf.logging.disable_progress_bar()
    chosen = [case for case in CASES if not arguments.names or any(name in case.name for name in arguments.names)]
    outcomes = []
    for case in chosen:
        with tempfile.TemporaryDirectory() as folder:
            try:
                outcomes.append(try_case(case, Path(folder)))
            except Exception as error:
                outcomes.append(Outcome(case.name, error=f"{type(error).__name__}: {error}"))
    if arguments.json:
        print(json.dumps([asdict(outcome) for outcome in outcomes], indent=2))
    else:
        print(f"torch {torch.__version__}, transformers {hf.__version__}, float32; limit {LIMIT:g}\n")
        print(table(outcomes))
    bad = [outcome.name for outcome in outcomes if not outcome.good]
    if bad:
        print(f"\n{len(bad)} of {len(outcomes)} differ: {', '.join(bad)}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
