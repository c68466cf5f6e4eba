"""Each part on its two paths: fused, and written out with all its taps heard."""

import pytest
import torch

from cutaway.kernels import attention as attention_file
from cutaway.parts.tap import listening


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture(params=["fused", "written_out"])
def run(request, monkeypatch):
    """run(module, *inputs): one of the two paths, and the values of all taps if it is the written-out one."""
    is_fused = request.param == "fused"
    monkeypatch.setattr(attention_file, "torch_is_faster", lambda *_: is_fused)

    def runner(module, *args, **options):
        runner.seen = {}
        if is_fused:
            return module(*args, **options)
        with listening(module, {"*": lambda value, name: runner.seen.__setitem__(name, value)}):
            return module(*args, **options)

    runner.is_fused = is_fused
    return runner
