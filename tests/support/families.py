"""Every family, small enough to test: `shrunk(name)` is a config with all the behaviour of a preset and few numbers.

Sizes are unlike (B=3, T=5, S=7, H=4, G=2, K=6, D=24, F=20, V=19, ...), so that swapped axes cannot pass.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import Module

import cutaway
from cutaway.models.build import build
from cutaway.models.config import Classifier, Config, PatchConfig, RecurrentConfig, StackConfig, TransformerConfig
from cutaway.models.network import Network

FAMILIES = [
    "transformer-tiny",
    "t5-small",
    "flan-t5-small",
    "bert-tiny",
    "distilbert-base",
    "gpt2",
    "llama-15m",
    "llama-3.2-1b",
    "vit-tiny",
    "rnn-seq2seq",
    "lstm-seq2seq",
    "gru-seq2seq",
    "bahdanau-gru",
    "luong-gru",
    "awd-lstm",
]
"""One name for each distinct behaviour. All are presets but `luong-gru`: gru-seq2seq with Luong's dot attention."""

B, T, S = 3, 5, 7  # rows, target length, source length
VOCABULARY = 19  # words of the last stack
SOURCE_VOCABULARY = 17  # words of a recurrent encoder, which has its own table

_TRANSFORMER: dict[str, dict[str, Any]] = {
    "transformer-tiny": {},
    "t5-small": {"d_head": 5, "t5_buckets": 8, "t5_max_distance": 12},  # H · K = 20 is not D = 24, as in FLAN-T5-small
    "flan-t5-small": {"d_head": 5, "t5_buckets": 8, "t5_max_distance": 12},
    "bert-tiny": {"max_positions": 13},
    "distilbert-base": {"max_positions": 13},
    "gpt2": {"max_positions": 13},
    "llama-15m": {"n_kv_heads": 2, "max_positions": 13},
    "llama-3.2-1b": {"n_kv_heads": 1, "max_positions": 13, "rotary_base": 100.0},
    "vit-tiny": {"patches": PatchConfig(image_size=12, patch_size=4, channels=3)},
}


def shrunk(name: str) -> Config:
    """The preset `name` (or "luong-gru") with small, unlike sizes; what it does is unchanged."""
    if name == "luong-gru":
        config: Config = replace(cutaway.preset("gru-seq2seq"), attention="dot")
    else:
        config = cutaway.preset(name)
    if isinstance(config, RecurrentConfig):
        return _shrunk_recurrent(config)
    encoder = config.encoder and _shrunk_stack(config.encoder, n_blocks=3, **_TRANSFORMER[name])
    decoder = config.decoder and _shrunk_stack(config.decoder, n_blocks=2, **_TRANSFORMER[name])
    head = replace(config.head, n_classes=11) if isinstance(config.head, Classifier) else config.head
    return replace(config, encoder=encoder, decoder=decoder, head=head)


def _shrunk_stack(stack: StackConfig, **sizes: Any) -> StackConfig:
    if stack.rotary_scaling is not None:
        # With base 100 and K = 6 the wavelengths are 6, 29 and 135: one in each band (kept, blended, stretched).
        sizes["rotary_scaling"] = replace(stack.rotary_scaling, original_positions=32)
    vocabulary = None if stack.vocabulary is None else VOCABULARY
    return replace(stack, vocabulary=vocabulary, **{"d_model": 24, "n_heads": 4, "d_ff": 20} | sizes)


def _shrunk_recurrent(config: RecurrentConfig) -> RecurrentConfig:
    encoder = config.encoder and replace(config.encoder, vocabulary=SOURCE_VOCABULARY, d_model=6, d_hidden=10)
    return replace(
        config, encoder=encoder, decoder=replace(config.decoder, vocabulary=VOCABULARY, d_model=8, d_hidden=12)
    )  # fmt: skip


def with_stacks(config: Config, **changes: Any) -> Config:
    """The config with these fields in each of its stacks."""
    stacks = {"encoder": config.encoder, "decoder": config.decoder}
    return replace(config, **{half: stack and replace(stack, **changes) for half, stack in stacks.items()})


TRANSFORMERS = [name for name in FAMILIES if isinstance(shrunk(name), TransformerConfig)]
RECURRENT = [name for name in FAMILIES if name not in TRANSFORMERS]
WITH_DECODER = [name for name in FAMILIES if shrunk(name).decoder is not None]


@dataclass(frozen=True)
class Inputs:
    """What one network call takes: `network(*inputs.args, **inputs.options)`.

    `tokens` is the source of an encoder-decoder, the text of a one-sided model, or images [B, C, I, J].
    """

    tokens: Tensor
    target: Tensor | None = None
    mask: Tensor | None = None
    target_mask: Tensor | None = None
    segments: Tensor | None = None

    @property
    def args(self) -> tuple[Tensor, ...]:
        return (self.tokens,) if self.target is None else (self.tokens, self.target)

    @property
    def options(self) -> dict[str, Tensor]:
        given = {"mask": self.mask, "target_mask": self.target_mask, "segments": self.segments}
        return {name: value for name, value in given.items() if value is not None}


def example_inputs(
    config: Config, seed: int = 0, *, padding: Literal["right", "left"] | None = "right", rows: int = B
) -> Inputs:
    """Random inputs that `config` can take; row 0 is full, the others lack some tokens (lengths n, n-2, n-1, ...).

    Padding is random tokens too, with a mask that hides them: a model that looks at it is found out. Images have no
    padding, and so no mask.
    """
    generator = torch.Generator().manual_seed(seed)

    def tokens(vocabulary: int, length: int) -> Tensor:
        return torch.randint(vocabulary, (rows, length), generator=generator)

    def mask(length: int) -> Tensor | None:
        if padding is None:
            return None
        missing = torch.tensor([row if row % 3 == 0 else 3 * (row // 3) + 3 - row % 3 for row in range(rows)])
        real = torch.arange(length) < (length - missing).clamp(min=1)[:, None]
        return real if padding == "right" else real.flip(1)

    encoder, decoder = config.encoder, config.decoder
    if encoder is None:
        assert decoder is not None
        return Inputs(tokens(decoder.vocabulary, T), mask=mask(T))
    if isinstance(encoder, StackConfig) and encoder.patches is not None:
        p = encoder.patches
        return Inputs(torch.randn(rows, p.channels, p.image_size, p.image_size, generator=generator))
    source = tokens(encoder.vocabulary, S)
    if decoder is None:
        has_segments = isinstance(config, TransformerConfig) and encoder.n_segments
        return Inputs(source, mask=mask(S), segments=tokens(encoder.n_segments, S) if has_segments else None)
    return Inputs(source, tokens(decoder.vocabulary, T), mask(S), mask(T))


def noisy(network: Module, seed: int = 0, std: float = 0.2) -> Module:
    """The network with noise on every parameter, so that biases of 0 and norms of 1 cannot hide a mistake."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in network.parameters():
            weight += std * torch.randn(weight.shape, generator=generator)
    return network


def noisy_network(config: Config, seed: int = 0, std: float = 0.1) -> Network:
    """A network in which no bias is 0 and no γ is 1, so that forgetting one shows."""
    network = noisy(build(config, seed), seed, std)
    assert isinstance(network, Network)
    return network


def forward(network: Network, inputs: Inputs) -> Tensor:
    with torch.no_grad():
        return network(*inputs.args, **inputs.options)


def real(output: Tensor, inputs: Inputs) -> Tensor:
    """The outputs of real tokens: what is computed at padding is never read."""
    mask = inputs.mask if inputs.target is None else inputs.target_mask
    return output if output.dim() < 3 or mask is None or mask.shape != output.shape[:2] else output[mask]


def arrays(module: Module) -> dict[str, Any]:
    """The state dict as float64 numpy arrays: what the oracle takes."""
    return {name: value.double().numpy() for name, value in module.state_dict().items()}
