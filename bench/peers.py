"""The peers, built to cutaway's presets: the same sizes, the same dropouts, the same batches.

Each comes as shipped, and with our settings: what a user of it could set after reading our docs/performance.md. What
remains different:

- nn.Transformer closes its encoder and its decoder with a layer norm each, which the paper does not have.
- nn.Transformer and nn.TransformerEncoder have one `dropout` for everything; what the preset does not drop (attention
  weights, the feed-forward's inner layer) is switched off on their modules afterwards, in both versions.
- Marian adds a bias to its logits (a buffer of zeros), and keeps its sinusoids as frozen parameters, not counted here.
- GPT-2 as shipped writes its tanh-GELU out in Python ("gelu_new"); with our settings torch's own, the same function.
"""

import math
import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn

from bench.data import PAD, Batch
from cutaway.machine.memory import keep_freed_memory
from cutaway.models.build import build
from cutaway.models.config import Config, StackConfig, TransformerConfig
from cutaway.models.presets import resolve
from cutaway.parts.positions import sinusoidal

Logits = Callable[[Batch], Tensor]
"""batch -> logits [B, T, V]"""


def cutaway_model(name: Config | str) -> tuple[nn.Module, Logits]:
    """cutaway as it is meant to be used."""
    keep_freed_memory()
    network = build(resolve(name))

    def logits(batch: Batch) -> Tensor:
        if batch.source is None:
            return network(batch.tokens)
        return network(batch.source, batch.tokens, mask=batch.source_mask)  # padding of the target is in the future

    return network, logits


def _set_dropouts(model: nn.Module, stack: StackConfig) -> None:
    """Switches off what the preset does not drop; no option of torch's layers does."""
    for layer in model.modules():
        if isinstance(layer, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
            layer.dropout.p = stack.ff_dropout
            layer.self_attn.dropout = stack.attention_dropout
            if isinstance(layer, nn.TransformerDecoderLayer):
                layer.multihead_attn.dropout = stack.attention_dropout


class TorchTransformer(nn.Module):
    """nn.Transformer as torch's translation tutorial wraps it, with tied embeddings and batches first."""

    def __init__(self, stack: StackConfig, *, padding_of_target: bool) -> None:
        super().__init__()
        D = stack.d_model
        self.padding_of_target = padding_of_target
        self.table = nn.Embedding(stack.vocabulary or 0, D, padding_idx=PAD)
        self.register_buffer("positions", sinusoidal(torch.arange(512), D), persistent=False)
        self.dropout = nn.Dropout(stack.dropout)
        self.transformer = nn.Transformer(
            D, stack.n_heads, stack.n_blocks, stack.n_blocks, stack.d_ff, stack.dropout, batch_first=True
        )  # fmt: skip
        for weight in self.parameters():
            if weight.dim() > 1:
                nn.init.xavier_uniform_(weight)
        nn.init.normal_(self.table.weight, std=D**-0.5)

    def embed(self, tokens: Tensor) -> Tensor:
        vectors = self.table(tokens) * math.sqrt(self.table.embedding_dim)
        return self.dropout(vectors + self.positions[: tokens.shape[1]])

    def forward(self, batch: Batch) -> Tensor:
        assert batch.source is not None
        T = batch.tokens.shape[1]
        hidden_source = batch.source == PAD
        states = self.transformer(
            self.embed(batch.source),
            self.embed(batch.tokens),
            tgt_mask=torch.ones(T, T, dtype=torch.bool).triu(1),
            src_key_padding_mask=hidden_source,
            tgt_key_padding_mask=batch.tokens == PAD if self.padding_of_target else None,
            memory_key_padding_mask=hidden_source,
            tgt_is_causal=True,
        )
        return nn.functional.linear(states, self.table.weight)


class TorchLanguageModel(nn.Module):
    """nn.TransformerEncoder with a causal mask, sized as GPT-2."""

    def __init__(self, stack: StackConfig) -> None:
        super().__init__()
        D = stack.d_model
        self.table = nn.Embedding(stack.vocabulary or 0, D)
        self.positions = nn.Embedding(stack.max_positions or 0, D)
        self.dropout = nn.Dropout(stack.dropout)
        layer = nn.TransformerEncoderLayer(
            D, stack.n_heads, stack.d_ff, stack.dropout, nn.GELU("tanh"), batch_first=True, norm_first=True
        )  # fmt: skip
        norm = nn.LayerNorm(D)
        self.encoder = nn.TransformerEncoder(layer, stack.n_blocks, norm, enable_nested_tensor=False)
        for weight in self.parameters():
            if weight.dim() > 1:
                nn.init.normal_(weight, std=0.02)

    def forward(self, batch: Batch) -> Tensor:
        T = batch.tokens.shape[1]
        x = self.dropout(self.table(batch.tokens) + self.positions(torch.arange(T)))
        mask = nn.Transformer.generate_square_subsequent_mask(T)
        return nn.functional.linear(self.encoder(x, mask=mask, is_causal=True), self.table.weight)


def torch_model(name: Config | str, *, our_settings: bool) -> tuple[nn.Module, Logits]:
    """Our settings: the allocator; no mask for what the causal mask hides already; not its inference fast path.

    The fast path (nested tensors) was slower on these batches, and fails under autocast on a CPU: "expected scalar type
    Float but found BFloat16".
    """
    warnings.filterwarnings("ignore", message=".*nested tensors.*", category=UserWarning)
    if our_settings:
        keep_freed_memory()
        torch.backends.mha.set_fastpath_enabled(False)
    config = resolve(name)
    assert isinstance(config, TransformerConfig)
    stack = config.last
    model: nn.Module
    if config.encoder is None:
        model = TorchLanguageModel(stack)
    else:
        model = TorchTransformer(stack, padding_of_target=not our_settings)
    _set_dropouts(model, stack)
    return model, model


def hugging_face_model(name: Config | str, *, our_settings: bool) -> tuple[nn.Module, Logits]:
    """Our settings: the allocator; Marian's attention written out, which is faster on short sequences; torch's GELU."""
    from transformers import GPT2Config, GPT2LMHeadModel, MarianConfig, MarianMTModel

    if our_settings:
        keep_freed_memory()
    config = resolve(name)
    assert isinstance(config, TransformerConfig)
    stack = config.last
    if config.encoder is None:
        model = GPT2LMHeadModel(
            GPT2Config(
                vocab_size=stack.vocabulary, n_positions=stack.max_positions, n_embd=stack.d_model,
                n_layer=stack.n_blocks, n_head=stack.n_heads, n_inner=stack.d_ff, embd_pdrop=stack.dropout,
                resid_pdrop=stack.dropout, attn_pdrop=stack.attention_dropout,
                activation_function="gelu_pytorch_tanh" if our_settings else "gelu_new",
            )
        )  # fmt: skip
        return model, lambda batch: model(batch.tokens, use_cache=False).logits
    model = MarianMTModel(
        MarianConfig(
            vocab_size=stack.vocabulary, d_model=stack.d_model, encoder_layers=stack.n_blocks,
            decoder_layers=stack.n_blocks, encoder_attention_heads=stack.n_heads, decoder_attention_heads=stack.n_heads,
            encoder_ffn_dim=stack.d_ff, decoder_ffn_dim=stack.d_ff, activation_function=stack.activation,
            dropout=stack.dropout, attention_dropout=stack.attention_dropout, activation_dropout=stack.ff_dropout,
            scale_embedding=True, max_position_embeddings=512, pad_token_id=PAD, eos_token_id=1,
            forced_eos_token_id=1, decoder_start_token_id=PAD,
            attn_implementation="eager" if our_settings else "sdpa",  # sdpa is what transformers chooses by itself
        )
    )  # fmt: skip

    def logits(batch: Batch) -> Tensor:
        mask = None if batch.source_mask is None else batch.source_mask.long()
        return model(batch.source, mask, decoder_input_ids=batch.tokens, use_cache=False).logits

    return model, logits


def build_peer(name: Config | str, peer: str, *, our_settings: bool) -> tuple[nn.Module, Logits]:
    """The model and its `batch -> logits`, in the mode it comes in."""
    if peer == "cutaway":
        return cutaway_model(name)
    if peer == "torch":
        return torch_model(name, our_settings=our_settings)
    if peer == "hugging face":
        return hugging_face_model(name, our_settings=our_settings)
    raise ValueError(f"no peer '{peer}' (known: cutaway, torch, hugging face)")
