"""Each test with the kernels, and as on a machine that can't build them."""

import pytest

from cutaway.kernels import choice, kernels


@pytest.fixture(params=["kernels", "torch"])
def either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "torch":
        monkeypatch.setattr(choice, "kernels", lambda: None)
    elif kernels() is None:
        pytest.skip("the kernels are off, or no C compiler built them; the same test runs by torch's steps")
    return str(request.param)
