"""torch.compile runs every family and agrees with plain execution."""

import shutil
from dataclasses import fields, replace

import pytest
import torch

import cutaway
from cutaway.errors import InputError
from cutaway.models.config import Config, RecurrentConfig
from tests.support.families import FAMILIES, Inputs, example_inputs, forward, noisy_network, real, shrunk, with_stacks

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's own, while it traces

# Compiled code adds in another order: the same bound as between our own two paths, see test_promises.
CLOSE = {"rtol": 2e-5, "atol": 2e-5}


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def shallow(config: Config) -> Config:
    """Blocks are alike, and so are layers; each takes seconds to capture."""
    return with_stacks(config, **({"n_layers": 1} if isinstance(config, RecurrentConfig) else {"n_blocks": 1}))


def short(inputs: Inputs) -> Inputs:
    """The last 3 tokens, padding among them: a recurrent layer is captured word by word."""
    if inputs.tokens.dim() == 4:
        return inputs
    values = {field.name: getattr(inputs, field.name) for field in fields(inputs)}
    return Inputs(**{name: value if value is None else value[:, -3:] for name, value in values.items()})


@pytest.mark.parametrize("name", FAMILIES)
def test_captured_graph_agrees(name: str) -> None:
    """Capture and autograd's tracing, without the code generator: the part in which a model can go wrong."""
    config = shallow(shrunk(name))
    network, inputs = noisy_network(config), short(example_inputs(config))
    outputs, gradients = [], []
    for runner in (network, torch.compile(network, backend="aot_eager", fullgraph=True)):
        network.zero_grad()
        outputs.append(real(runner(*inputs.args, **inputs.options), inputs))
        outputs[-1].square().sum().backward()
        gradients.append({parameter: weight.grad for parameter, weight in network.named_parameters()})
    torch.testing.assert_close(outputs[1], outputs[0], **CLOSE)
    for parameter, plain in gradients[0].items():
        # Gradients are sums over all tokens and grow to some 100: relative to the largest of each weight.
        bound = 2e-5 * max(float(plain.abs().max()), 1.0)
        torch.testing.assert_close(gradients[1][parameter], plain, rtol=2e-5, atol=bound, msg=parameter)


def test_a_sliding_window_in_a_captured_graph() -> None:
    """Longer than the window, then shorter: one network, two graphs."""
    config = shallow(shrunk("llama-15m"))
    network = noisy_network(replace(config, decoder=replace(config.decoder, window=3)))
    compiled = torch.compile(network, backend="aot_eager", fullgraph=True, dynamic=True)
    for length in (7, 5, 2):
        tokens = torch.arange(2 * length).view(2, length)
        torch.testing.assert_close(compiled(tokens), network(tokens), **CLOSE)


@pytest.mark.skipif(
    shutil.which("g++") is None,
    reason="torch generates C++ for the CPU and needs g++ to build it; the captured graph is tested without",
)
@pytest.mark.parametrize("name", ["transformer-tiny", "bert-tiny", "llama-15m"])
def test_generated_code_agrees(name: str) -> None:
    """One of each family through the default code generator."""
    network, inputs = noisy_network(shrunk(name)), example_inputs(shrunk(name))
    compiled = torch.compile(network)
    torch.testing.assert_close(real(forward(compiled, inputs), inputs), real(forward(network, inputs), inputs), **CLOSE)


def test_a_trace_of_a_compiled_network_says_so() -> None:
    network, inputs = noisy_network(shrunk("gpt2")), example_inputs(shrunk("gpt2"), padding=None)
    with pytest.raises(InputError, match=r"trace the one you gave torch\.compile"):
        cutaway.trace(torch.compile(network, backend="aot_eager"), *inputs.args)
    network.compile(backend="aot_eager")
    with pytest.raises(InputError, match=r"trace the one you gave torch\.compile"):
        cutaway.trace(network, *inputs.args)


def test_taps_are_silent_when_compiled() -> None:
    """A compiled graph has no ears, and says so by an empty trace rather than by wrong values."""
    network, inputs = noisy_network(shrunk("gpt2")), example_inputs(shrunk("gpt2"), padding=None)
    compiled = torch.compile(network, backend="aot_eager", fullgraph=True)
    trace = cutaway.trace(network, *inputs.args)
    assert len(trace) > 0
    heard = []
    with cutaway.listening(network, {"*.weights": lambda _, name: heard.append(name)}):
        forward(compiled, inputs)
    assert heard == []
