"""Looking never changes the result: whichever taps somebody listens to, what comes out is the same."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import cutaway
from cutaway.models.build import build
from cutaway.parts.tap import taps
from tests.support.families import FAMILIES, example_inputs, noisy, shrunk

# What somebody has to listen to for a part to be written out: attention, norms, recurrent layers.
EXPLICIT = (".weights", ".normalized", ".hidden")


def close(found: Tensor, expected: Tensor) -> None:
    """Written out, a network adds in another order than fused: the bound of tests/contract, by the largest number, for
    what a sum of large ones comes to may be small."""
    bound = 2e-5 * max(1.0, float(expected[expected.isfinite()].abs().max()))
    torch.testing.assert_close(found, expected, rtol=2e-5, atol=bound)


@pytest.mark.parametrize("name", FAMILIES)
def test_any_pattern_of_taps(name: str) -> None:
    network = noisy(build(shrunk(name))).eval()
    inputs = example_inputs(network.config)
    names = sorted(taps(network))
    explicit = [each for each in names if each.endswith(EXPLICIT)]
    with torch.no_grad():
        plain = network(*inputs.args, **inputs.options)
    written_out = cutaway.trace(network, *inputs.args, keep=explicit, **inputs.options).output
    close(written_out, plain)

    @given(st.sets(st.sampled_from(names), max_size=12))
    @settings(max_examples=12, deadline=None, derandomize=True)
    def look(some: set[str]) -> None:
        kept = sorted(some) or ["head.*" if any(each.startswith("head.") for each in names) else "*.output"]
        seen = cutaway.trace(network, *inputs.args, keep=kept, **inputs.options)
        close(seen.output, plain)
        both = cutaway.trace(network, *inputs.args, keep=[*explicit, *kept], **inputs.options)
        assert torch.equal(both.output, written_out), "step by step it is the same to the last bit"

    look()
    with torch.no_grad():
        assert torch.equal(network(*inputs.args, **inputs.options), plain), "and nothing is left behind"
