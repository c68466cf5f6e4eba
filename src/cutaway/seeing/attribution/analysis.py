"""Analyses of a trace: the logit lens, attention rollout, the lengths of the residual stream's vectors. Analyses that
run the model again are here too: head importance (`importance.py`) and integrated gradients (`gradients.py`).
"""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from cutaway.checks import check, describe
from cutaway.errors import InputError
from cutaway.models.network import Network
from cutaway.parts.stack import Stack
from cutaway.seeing.attribution.gradients import Attribution as Attribution
from cutaway.seeing.attribution.gradients import integrated_gradients as integrated_gradients
from cutaway.seeing.attribution.importance import HeadImportance as HeadImportance
from cutaway.seeing.attribution.importance import head_importance as head_importance
from cutaway.seeing.interventions.compare import Place, places, probabilities
from cutaway.seeing.trace.labels import Words
from cutaway.seeing.trace.trace import Trace

if TYPE_CHECKING:
    from cutaway.model import Model

Side = Literal["encoder", "decoder"]


@dataclass(frozen=True)
class Layer:
    """One layer of the logit lens: the output if the model ended at the value `name`."""

    name: str
    places: tuple[Place, ...]


@dataclass(frozen=True)
class Lens:
    """The logit lens: the embedding's and each block's output, read by the head. `final` [layers, positions]: the
    probability that each layer gives to the last one's choice."""

    layers: tuple[Layer, ...]
    final: Tensor

    def to_json(self) -> dict[str, Any]:
        return {"layers": [asdict(layer) for layer in self.layers]}


def logit_lens(model: "Model | Network", trace: Trace, *, top: int = 5, row: int = 0) -> Lens:
    """The last norm and the head, applied to each block's output (nostalgebraist 2020).

    The head has learnt to read the last block only, so read the words of early ones with care.
    """
    network = _network(model)
    if trace.run.config != network.config:
        raise InputError("this trace is of another model, whose blocks this one's head can't read")
    names = _stream_names(trace, "decoder" if network.has_decoder else "encoder")
    found = [(name, read_early(network, trace, name, row)) for name in names]
    predicted = [probabilities(model, output) for _, output in found]
    if predicted[-1] is None:
        raise InputError("this model predicts no words and no classes, so there is no logit lens")
    best = predicted[-1].argmax(-1, keepdim=True)
    final = torch.stack([each.gather(-1, best).squeeze(-1) for each in predicted if each is not None])
    return Lens(tuple(Layer(name, places(model, output, trace.words, top)) for name, output in found), final)


def read_early(network: Network, trace: Trace, name: str, row: int = 0) -> Tensor:
    """The head's output for one text if the residual stream ended at the value of that name: [T, V] or [C]."""
    stack = getattr(network, "decoder" if network.has_decoder else "encoder")
    if not isinstance(stack, Stack):
        raise InputError("a recurrent model has no residual stream that its head could read early")
    inputs = trace.run.inputs
    mask = inputs.get("target_mask" if inputs.get("target") is not None else "mask")
    with torch.no_grad():
        hidden_BTD = trace[name][row : row + 1].to(network.device)
        hidden_BTD = hidden_BTD if stack.final_norm is None else stack.final_norm(hidden_BTD)
        mask = None if mask is None else mask[row : row + 1].to(network.device)
        return network.apply_head(hidden_BTD, mask)[0].cpu()


@dataclass(frozen=True)
class Rollout:
    """`through` [blocks, T, T]: the share of each input token in each token's vector, after each block."""

    stack: Side
    tokens: tuple[str, ...]
    through: Tensor

    @property
    def values(self) -> Tensor:
        """After the last block [T, T]; each row sums to 1."""
        return self.through[-1]

    def to_json(self) -> dict[str, Any]:
        return {"shape": list(self.values.shape), "values": self.values.tolist()}


def rollout(trace: Trace, stack: Side, *, row: int = 0) -> Rollout:
    """Attention rollout: attention through all blocks of a stack (Abnar & Zuidema 2020).

    Each block mixes tokens by the mean of its heads, and half of each token stays, for the residual connection:
    Â = (A + I) / 2, and Â_n · … · Â_1.
    """
    check("stack", stack, Side)
    blocks = _block_value_names(trace, stack, "self_attention.weights")
    mixed, through = None, []
    for name in blocks:
        weights_TS = trace[name][row].double().mean(0)
        step_TS = weights_TS + torch.eye(len(weights_TS), dtype=torch.double)
        step_TS = step_TS / step_TS.sum(-1, keepdim=True)
        mixed = step_TS if mixed is None else step_TS @ mixed
        through.append(mixed)
    return Rollout(stack, _tokens(trace.words, stack), torch.stack(through))


@dataclass(frozen=True)
class Lengths:
    """`values` [layers, T]: |x| of each token after the embedding and after each block, which `names` names."""

    stack: Side
    names: tuple[str, ...]
    tokens: tuple[str, ...]
    values: Tensor


def residual_lengths(trace: Trace, *, row: int = 0) -> tuple[Lengths, ...]:
    """The lengths of the residual stream's vectors, token by token, in each stack."""
    sides: tuple[Side, ...] = ("encoder", "decoder")
    found = []
    for side in sides:
        if any(name.startswith(f"{side}.") for name in trace):
            names = _stream_names(trace, side)
            values = torch.stack([trace[name][row].double().norm(dim=-1) for name in names])
            found.append(Lengths(side, tuple(names), _tokens(trace.words, side), values))
    if not found:
        raise InputError("this trace holds no residual stream; trace with keep='*' or '*.blocks.*.output'")
    return tuple(found)


def _network(model: "Model | Network") -> Network:
    if isinstance(model, Network):
        return model
    if not isinstance(getattr(model, "network", None), Network):
        raise InputError(f"the model is {describe(model)}; give a cutaway.Model, or a network")
    return model.network


def _stream_names(trace: Trace, side: Side) -> list[str]:
    """The residual stream before the first block and after each."""
    before = f"{side}.embedding.output"
    return [name for name in trace if name == before] + _block_value_names(trace, side, "output")


def _block_value_names(trace: Trace, side: Side, value: str) -> list[str]:
    """A value of each block of a stack, first to last."""
    begin, end = f"{side}.blocks.", f".{value}"
    numbers = [name[len(begin) : -len(end)] for name in trace if name.startswith(begin) and name.endswith(end)]
    found = sorted(int(number) for number in numbers if number.isdigit())
    config = trace.run.config
    n = len(found) if config is None else getattr(getattr(config, side), "n_blocks", 0)
    if not n:
        raise InputError(f"this trace has no {side} made of blocks: there is no '{begin}*{end}'")
    if len(found) < n:
        raise InputError(f"this trace did not keep all of '{begin}*{end}'; trace again with keep='*'")
    return [f"{begin}{number}{end}" for number in found]


def _tokens(words: Words, side: Side) -> tuple[str, ...]:
    return words.source if side == "encoder" else words.target
