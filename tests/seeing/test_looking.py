"""Looking never changes the result: whichever taps somebody listens to, what comes out is the same."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import cutaway
from cutaway.models.build import build
from cutaway.parts.tap import taps
from tests.families import FAMILIES, example_inputs, noisy, shrunk

# What somebody has to listen to for a part to be written out: attention, norms, recurrent layers.
EXPLICIT = (".weights", ".normalized", ".hidden")
# Written out, a network adds in another order than fused: the same bound as in tests/contract.
CLOSE = {"rtol": 2e-5, "atol": 2e-5}


@pytest.mark.parametrize("name", FAMILIES)
def test_any_pattern_of_taps(name: str) -> None:
    network = noisy(build(shrunk(name))).eval()
    inputs = example_inputs(network.config)
    names = sorted(taps(network))
    explicit = [each for each in names if each.endswith(EXPLICIT)]
    with torch.no_grad():
        plain = network(*inputs.args, **inputs.options)
    written_out = cutaway.trace(network, *inputs.args, keep=explicit, **inputs.options).output
    torch.testing.assert_close(written_out, plain, **CLOSE)

    @given(st.sets(st.sampled_from(names), max_size=12))
    @settings(max_examples=12, deadline=None, derandomize=True)
    def look(some: set[str]) -> None:
        kept = sorted(some) or ["head.*" if any(each.startswith("head.") for each in names) else "*.output"]
        seen = cutaway.trace(network, *inputs.args, keep=kept, **inputs.options)
        torch.testing.assert_close(seen.output, plain, **CLOSE)
        both = cutaway.trace(network, *inputs.args, keep=[*explicit, *kept], **inputs.options)
        assert torch.equal(both.output, written_out), "step by step it is the same to the last bit"

    look()
    with torch.no_grad():
        assert torch.equal(network(*inputs.args, **inputs.options), plain), "and nothing is left behind"
