"""The first weights of a whole model, in one function; each scheme is what its paper, or its authors' code, does."""

import torch
from torch import Tensor, nn

from cutaway.models.config import RecurrentConfig, TransformerConfig
from cutaway.models.network import Network
from cutaway.parts.attention import Attention
from cutaway.parts.embedding import PatchEmbedding
from cutaway.parts.feedforward import FeedForward
from cutaway.parts.lookup import EmbeddingTable
from cutaway.parts.positions import LearnedPositions, RelativeBias
from cutaway.parts.recurrent import RecurrentLayer


def initialize(network: Network, seed: int = 0) -> Network:
    """Fills every weight, in the order of the modules: the same seed gives the same network."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in network.named_parameters():
            if name.endswith(("bias", "start")):
                weight.zero_()
            elif weight.dim() == 1:  # γ of a norm
                weight.fill_(1.0)
        if not isinstance(network.config, TransformerConfig):
            _recurrent(network, generator)
        elif network.config.initialization == "t5":
            _t5(network, generator)
        elif network.config.initialization == "xavier":
            _xavier(network, generator)
        else:
            _normal(network, generator, truncated=network.config.initialization == "truncated_normal")
            if network.config.initialization == "normal_by_depth":
                _shrink_by_depth(network)
    return network


def _tables(network: nn.Module) -> list[Tensor]:
    """Every weight that is looked up rather than multiplied by, once if shared."""
    return [module.weight for module in network.modules() if isinstance(module, EmbeddingTable)]


def _head_table(network: nn.Module) -> list[Tensor]:
    """An untied head's own table of words."""
    return [weight for name, weight in network.named_parameters() if name == "head.vocabulary.weight"]


def _linears(network: nn.Module) -> list[nn.Linear]:
    return [module for module in network.modules() if isinstance(module, nn.Linear)]


def _xavier(network: nn.Module, generator: torch.Generator) -> None:
    """Transformer (2017): Glorot uniform; embeddings N(0, 1/D), so that times √D they have variance 1."""
    for linear in _linears(network):
        nn.init.xavier_uniform_(linear.weight, generator=generator)
    for table in _tables(network) + _head_table(network):
        nn.init.normal_(table, std=table.shape[1] ** -0.5, generator=generator)


def _normal(network: nn.Module, generator: torch.Generator, *, truncated: bool) -> None:
    """DistilBERT, GPT-2, Llama: N(0, 0.02²) everywhere; BERT, ViT: the same, cut at two deviations."""
    weights = [linear.weight for linear in _linears(network)] + _tables(network) + _head_table(network)
    weights += [module.start for module in network.modules() if isinstance(module, PatchEmbedding)]
    for weight in weights:
        if truncated:
            nn.init.trunc_normal_(weight, std=0.02, a=-0.04, b=0.04, generator=generator)
        else:
            nn.init.normal_(weight, std=0.02, generator=generator)


def _shrink_by_depth(network: Network) -> None:
    """GPT-2: what is added to the residual stream starts smaller by √(number of additions); positions by half."""
    assert isinstance(network.config, TransformerConfig)
    factor = (2 * network.config.last.n_blocks) ** -0.5
    for module in network.modules():
        if isinstance(module, Attention):
            module.out.weight.mul_(factor)
        elif isinstance(module, FeedForward):
            module.down.weight.mul_(factor)
        elif isinstance(module, LearnedPositions):
            module.weight.mul_(0.5)


def _t5(network: Network, generator: torch.Generator) -> None:
    """T5: variances such that scores need no 1/√K; that factor is in the queries' first weights."""

    assert isinstance(network.config, TransformerConfig)
    d_model = network.config.last.d_model

    def normal(weight: Tensor, std: float) -> None:
        nn.init.normal_(weight, std=std, generator=generator)

    _xavier(network, generator)  # what T5 itself does not have: the dense layers of other heads
    for module in network.modules():
        if isinstance(module, Attention):
            d_inner = module.q.out_features
            normal(module.q.weight, (d_model * d_inner / module.n_heads) ** -0.5)
            normal(module.k.weight, d_model**-0.5)
            normal(module.v.weight, d_model**-0.5)
            normal(module.out.weight, d_inner**-0.5)
        elif isinstance(module, FeedForward):
            for linear in _linears(module):
                normal(linear.weight, linear.in_features**-0.5)
        elif isinstance(module, RelativeBias):
            normal(module.weight, d_model**-0.5)
        elif isinstance(module, EmbeddingTable):
            normal(module.weight, 1.0)
    for table in _head_table(network):
        normal(table, 1.0)


def _recurrent(network: Network, generator: torch.Generator) -> None:
    """Orthogonal from state to state (Bahdanau 2015), Glorot elsewhere. An LSTM begins by remembering (bias 1), and so
    does a GRU that has no attention to look back with: with bias 0 half of its state is gone after each word."""
    looks_back = isinstance(network.config, RecurrentConfig) and network.config.attention is not None
    _xavier(network, generator)
    for module in network.modules():
        if isinstance(module, RecurrentLayer):
            for gate in module.state.weight.chunk(module.state.weight.shape[0] // module.d_hidden):
                nn.init.orthogonal_(gate, generator=generator)
            if module.cell == "lstm" or (module.cell == "gru" and not looks_back):  # its forget, or its update gate
                module.input.bias[module.d_hidden : 2 * module.d_hidden] = 1.0
