"""Tiny random models of transformers that write: peaked enough that float noise flips nothing, and texts that end."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers as hf

import cutaway
from cutaway.model import Model

hf.logging.set_verbosity_error()
hf.logging.disable_progress_bar()

V = 60
MARIAN = {
    "vocab_size": V, "d_model": 24, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 20, "decoder_ffn_dim": 28, "max_position_embeddings": 64,
    "pad_token_id": V - 1, "eos_token_id": 0, "decoder_start_token_id": V - 1, "forced_eos_token_id": 0,
    "activation_function": "swish", "scale_embedding": True,
}  # fmt: skip
T5 = {
    "vocab_size": V, "d_model": 24, "d_kv": 5, "num_heads": 4, "d_ff": 20, "num_layers": 2, "num_decoder_layers": 2,
    "relative_attention_num_buckets": 8, "relative_attention_max_distance": 12, "decoder_start_token_id": 0,
    "pad_token_id": 0, "eos_token_id": 1,
}  # fmt: skip
GPT2 = {
    "vocab_size": V, "n_embd": 24, "n_layer": 2, "n_head": 4, "n_positions": 40, "bos_token_id": 2,
    "eos_token_id": 1, "pad_token_id": 0,
}  # fmt: skip
LLAMA = {
    "vocab_size": V, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 20, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 1,
}  # fmt: skip
PEERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "marian": ("MarianConfig", "MarianMTModel", MARIAN),
    "t5": ("T5Config", "T5ForConditionalGeneration", T5),
    "flan-t5": ("T5Config", "T5ForConditionalGeneration",
                {**T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", GPT2),
    "llama": ("LlamaConfig", "LlamaForCausalLM", LLAMA),
    "mistral": ("MistralConfig", "MistralForCausalLM", {**LLAMA, "sliding_window": None}),
    "mistral, window": ("MistralConfig", "MistralForCausalLM", {**LLAMA, "sliding_window": 4}),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", LLAMA),
    "qwen2, window": ("Qwen2Config", "Qwen2ForCausalLM",
                      {**LLAMA, "use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1}),
}  # fmt: skip


@dataclass(frozen=True)
class Peer:
    """The same weights twice."""

    theirs: Any
    ours: Model
    reads: bool  # has an encoder

    def generate(self, prompts: list[list[int]], **options: Any) -> Any:
        """What transformers gives for prompts of one length, its scores too."""
        with torch.inference_mode():
            return self.theirs.generate(
                torch.tensor(prompts), return_dict_in_generate=True, output_scores=True, **options
            )  # fmt: skip


def make_peer(name: str, folder: Path, n_ends: int = 1, seed: int = 0) -> Peer:
    """Noise on every weight makes the logits spread over tens, so that ties within float noise do not occur."""
    config, model, options = PEERS[name]
    torch.manual_seed(seed)
    theirs = getattr(hf, model)(getattr(hf, config)(**options)).eval()
    with torch.no_grad():
        for weight in theirs.parameters():
            if weight.requires_grad:  # sinusoids do not
                weight += 0.35 * torch.randn(weight.shape)
    ends = _likely_ends(theirs, n_ends)
    theirs.config.eos_token_id = theirs.generation_config.eos_token_id = ends if n_ends > 1 else ends[0]
    if name == "marian":
        theirs.config.forced_eos_token_id = theirs.generation_config.forced_eos_token_id = ends[0]
    theirs.save_pretrained(folder)
    return Peer(theirs, cutaway.load(folder), theirs.config.is_encoder_decoder)


def _likely_ends(theirs: Any, n: int) -> list[int]:
    """Tokens that this model writes about once in ten: texts then end, but not at once."""
    prompts = torch.randint(3, V - 1, (32, 5))
    written = theirs.generate(
        prompts, attention_mask=torch.ones_like(prompts), do_sample=True, max_new_tokens=12, eos_token_id=None,
        forced_eos_token_id=None,
    )[:, -12:].flatten()  # fmt: skip
    counts = Counter(token for token in written.tolist() if 3 <= token < V - 1)
    wanted = len(written) / 10 / n
    return sorted(counts, key=lambda token: abs(counts[token] - wanted))[:n]
