"""What an optimiser moves, what it decays, and that it goes on as if it had never stopped."""

import copy
from dataclasses import replace

import pytest
import torch

import cutaway
from cutaway.errors import CheckpointError
from cutaway.models.build import build
from cutaway.models.config import RecurrentConfig
from cutaway.models.network import Network
from cutaway.training.optimizer import Kind, Optimizer, matrices_of


def network(name: str = "transformer-tiny") -> Network:
    config = cutaway.preset(name)
    if isinstance(config, RecurrentConfig):
        sizes = {"vocabulary": 13, "n_layers": 1, "d_model": 6, "d_hidden": 8}
    else:
        sizes = {"vocabulary": 13, "n_blocks": 1, "d_model": 6, "n_heads": 2, "d_ff": 10}
    assert config.encoder is not None
    assert config.decoder is not None
    made = replace(config, encoder=replace(config.encoder, **sizes), decoder=replace(config.decoder, **sizes))  # type: ignore[arg-type]
    return build(made, seed=3).train()


def grow(of: Network, seed: int) -> None:
    """Some gradients."""
    generator = torch.Generator().manual_seed(seed)
    for weight in of.parameters():
        weight.grad = torch.randn(weight.shape, generator=generator)


def weights(of: Network) -> dict[str, torch.Tensor]:
    return {name: weight.detach().clone() for name, weight in of.named_parameters()}


@pytest.mark.parametrize("kind", ["adamw", "muon"])
@pytest.mark.parametrize("name", ["transformer-tiny", "bahdanau-gru"])
def test_goes_on_bit_for_bit(name: str, kind: Kind) -> None:
    settings = {"rate": 0.01, "decay": 0.1}
    first = network(name)
    optimizer = Optimizer(first, kind, **settings)  # type: ignore[arg-type]
    for step in range(3):
        grow(first, step)
        optimizer.step(0.5)
    second = copy.deepcopy(first)
    other = Optimizer(second, kind, **settings)  # type: ignore[arg-type]
    other.load_state({name: tensor.clone() for name, tensor in optimizer.tensors().items()})
    for step in range(3, 6):
        for each, by in ((first, optimizer), (second, other)):
            by.zero_gradients()
            grow(each, step)
            by.step(1.0)
    expected, found = weights(first), weights(second)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert optimizer.tensors().keys() == other.tensors().keys()
    fresh = copy.deepcopy(first)
    forgetful = Optimizer(fresh, kind, **settings)  # type: ignore[arg-type]
    for each, by in ((first, optimizer), (fresh, forgetful)):
        grow(each, 6)
        by.step(1.0)
    assert not all(torch.equal(weights(fresh)[name], weights(first)[name]) for name in expected), "memory matters"


@pytest.mark.parametrize("kind", ["adamw", "muon"])
@pytest.mark.parametrize("name", ["transformer-tiny", "bahdanau-gru"])
def test_only_matrices_decay(name: str, kind: Kind) -> None:
    """A gradient of 0 moves nothing, so what moves has decayed."""
    model = network(name)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(1.0)  # biases are 0 when they are new
    before, rates = weights(model), {"adamw": 0.01, "muon": 0.02}
    for weight in model.parameters():
        weight.grad = torch.zeros_like(weight)
    Optimizer(model, kind, rate=0.01, matrix_rate=0.02, decay=0.1).step(1.0)
    inside = {id(weight) for weight in matrices_of(model)}
    for name, weight in model.named_parameters():
        expected = before[name] * (1 - rates[kind] * 0.1) if id(weight) in inside else before[name]
        torch.testing.assert_close(
            weight.detach(), expected, rtol=1e-6, atol=0, msg=lambda text, n=name: f"{n}: {text}"
        )


@pytest.mark.parametrize("name", ["transformer-tiny", "bahdanau-gru"])
def test_muon_gets_the_matrices_inside_the_blocks_only(name: str) -> None:
    model = network(name)
    optimizer = Optimizer(model, "muon", rate=0.01)
    grow(model, 1)
    optimizer.step(1.0)
    by_adam = {key.rpartition("/")[0] for key in optimizer.tensors() if key.endswith("/exp_avg_sq")}
    by_muon = {key.rpartition("/")[0] for key in optimizer.tensors()} - by_adam
    assert by_adam | by_muon == dict(model.named_parameters()).keys()
    shapes = {name: weight.dim() for name, weight in model.named_parameters()}
    assert by_muon
    assert all(shapes[key] == 2 and key.endswith("weight") for key in by_muon)
    assert not [key for key in by_muon if "embedding" in key or key.startswith("head") or "norm" in key]
    left = [key for key in by_adam if shapes[key] == 2 and "embedding" not in key and not key.startswith("head")]
    assert not left, "matrices that AdamW has, though they are inside"


def test_all_matrices_of_a_transformer_block_are_found() -> None:
    model = network()
    n_encoder, n_decoder = 4 + 2, 8 + 2  # q, k, v, o (twice in the decoder), and the two of the feed-forward network
    assert len(matrices_of(model)) == n_encoder + n_decoder


MEMORIES: dict[str, tuple[Kind, str, torch.Tensor | None]] = {
    "a number in the place of a tensor": ("adamw", "exp_avg", torch.tensor(1.0)),
    "whole numbers": ("adamw", "exp_avg", torch.zeros(6, 10, dtype=torch.int64)),
    "another shape": ("adamw", "exp_avg_sq", torch.zeros(10, 6)),
    "a step of whole numbers": ("adamw", "step", torch.tensor(3)),
    "a step for each number": ("adamw", "step", torch.zeros(6, 10)),
    "nothing": ("adamw", "step", None),
    "a number for Muon": ("muon", "momentum", torch.tensor(1.0)),
}


@pytest.mark.parametrize("what", MEMORIES)
def test_memory_that_torch_would_read_or_write_past_is_refused(what: str) -> None:
    kind, key, value = MEMORIES[what]
    model = network()
    optimizer = Optimizer(model, kind, rate=0.01)
    grow(model, 0)
    optimizer.step(1.0)
    memory = optimizer.tensors()
    name = f"encoder.blocks.0.feedforward.down.weight/{key}"
    assert memory.pop(name).shape in ((6, 10), ())
    with pytest.raises(CheckpointError, match="the optimiser's state has .*feedforward.down.weight.*expected"):
        optimizer.load_state(memory if value is None else memory | {name: value})


def test_memory_of_another_model() -> None:
    with pytest.raises(CheckpointError, match="the optimiser's state has blocks.9.weight/exp_avg, which is no weight"):
        Optimizer(network(), rate=0.01).load_state({"blocks.9.weight/exp_avg": torch.zeros(2, 2)})
